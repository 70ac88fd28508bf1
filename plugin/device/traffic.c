/* SPDX-License-Identifier: MIT
 *
 * See traffic.h.
 */
#include "device/traffic.h"

#include <linux/if_link.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>
#include <unistd.h>

#include "device/link.h"

/* Adds an interface's counters. */
static bool add(int fd, int ifindex, struct bnet_traffic *traffic)
{
	struct rtnl_link_stats64 stats = {0};
	const struct rtattr *found;
	struct bnet_link link;

	if (!bnet_link_describe(fd, ifindex, &link))
		return false;
	found = bnet_link_attribute(&link, IFLA_STATS64);
	if (!found || RTA_PAYLOAD(found) < offsetof(struct rtnl_link_stats64, rx_errors))
		return false;
	memcpy(&stats, RTA_DATA(found), RTA_PAYLOAD(found) < sizeof(stats) ? RTA_PAYLOAD(found) : sizeof(stats));
	traffic->sent += stats.tx_bytes;
	traffic->received += stats.rx_bytes;
	return true;
}

struct bnet_traffic bnet_device_traffic(const struct bnet_device *dev)
{
	struct bnet_traffic traffic = {0}, unknown = {0};
	int fd = bnet_link_open();
	bool known = fd >= 0;

	for (int i = 0; i < dev->nmembers && known; i++)
		known = add(fd, dev->members[i]->ifindex, &traffic);
	if (fd >= 0)
		close(fd);
	return known ? traffic : unknown;
}
