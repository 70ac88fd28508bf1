/* SPDX-License-Identifier: MIT
 *
 * See traffic.h. The counters are read from /proc: netlink would wait for the kernel's RTNL lock, which a card that
 * recovers, or pods that come and go, hold for up to seconds, and this runs under the engine's lock.
 */
#include "device/traffic.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* Of the calling thread's network namespace. A row: NAME: 16 counters, of which the first and the ninth are bytes. */
#define COUNTERS "/proc/thread-self/net/dev"

static bool is_member(const struct bnet_device *dev, const char *name)
{
	for (int i = 0; i < dev->nmembers; i++)
		if (strcmp(dev->members[i]->name, name) == 0)
			return true;
	return false;
}

/* Adds the counters of a row that is a member's. */
static int add(const struct bnet_device *dev, char *row, struct bnet_traffic *traffic)
{
	char *colon = strchr(row, ':'), *name = row + strspn(row, " ");
	uint64_t received, sent;

	if (!colon)
		return 0;
	*colon = '\0';
	if (!is_member(dev, name) ||
	    sscanf(colon + 1, "%" SCNu64 " %*u %*u %*u %*u %*u %*u %*u %" SCNu64, &received, &sent) != 2)
		return 0;
	traffic->received += received;
	traffic->sent += sent;
	return 1;
}

static bool has_passive_member(const struct bnet_device *dev)
{
	for (int i = 0; i < dev->nmembers; i++)
		if (dev->members[i]->passive)
			return true;
	return false;
}

struct bnet_traffic bnet_device_traffic(const struct bnet_device *dev)
{
	struct bnet_traffic traffic = {0}, unknown = {0};
	FILE *file = has_passive_member(dev) ? NULL : fopen(COUNTERS, "re");
	char row[512];
	int found = 0;

	if (!file)
		return unknown;
	while (found < dev->nmembers && fgets(row, sizeof(row), file))
		found += add(dev, row, &traffic);
	fclose(file);
	return found == dev->nmembers ? traffic : unknown;
}
