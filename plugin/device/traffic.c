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

static int expected(const struct bnet_device *dev)
{
	for (int i = 0; i < dev->nmembers; i++)
		if (dev->members[i]->passive)
			return 0;
	return dev->nmembers;
}

/* Adds a row's counters to those of the devices of which it is a member; found: members so far. Returns for how many. */
static int add(const struct bnet_device *devices, int count, char *row, struct bnet_traffic *traffic, int *found)
{
	char *colon = strchr(row, ':'), *name = row + strspn(row, " ");
	uint64_t received, sent;
	int added = 0;

	if (!colon)
		return 0;
	*colon = '\0';
	if (sscanf(colon + 1, "%" SCNu64 " %*u %*u %*u %*u %*u %*u %*u %" SCNu64, &received, &sent) != 2)
		return 0;
	for (int i = 0; i < count; i++) {
		if (!expected(&devices[i]) || !is_member(&devices[i], name))
			continue;
		traffic[i].received += received;
		traffic[i].sent += sent;
		found[i]++;
		added++;
	}
	return added;
}

void bnet_devices_traffic(const struct bnet_device *devices, int count, struct bnet_traffic *traffic)
{
	int found[BNET_MAX_DEVICES] = {0}, left = 0;
	FILE *file;
	char row[512];

	memset(traffic, 0, (size_t)count * sizeof(*traffic));
	for (int i = 0; i < count; i++)
		left += expected(&devices[i]);
	file = left ? fopen(COUNTERS, "re") : NULL;
	while (file && left > 0 && fgets(row, sizeof(row), file))
		left -= add(devices, count, row, traffic, found);
	if (file)
		fclose(file);
	for (int i = 0; i < count; i++)
		if (found[i] != devices[i].nmembers)
			traffic[i] = (struct bnet_traffic){0};
}

struct bnet_traffic bnet_device_traffic(const struct bnet_device *dev)
{
	struct bnet_traffic traffic;

	bnet_devices_traffic(dev, 1, &traffic);
	return traffic;
}
