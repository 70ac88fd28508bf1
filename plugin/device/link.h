/* SPDX-License-Identifier: MIT
 *
 * What the kernel says about an interface (rtnetlink). It is asked there and not in /sys, which may show another
 * network namespace. Any thread; no state.
 */
#ifndef BNET_LINK_H
#define BNET_LINK_H

#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <stdbool.h>

/* A link's description with all its attributes, as the kernel sends it. */
struct bnet_link {
	union {
		struct nlmsghdr header;
		char bytes[16384];
	} reply;
};

/* A descriptor to ask with, which the caller closes; -1: none is to be had. */
int bnet_link_open(void);
/* Some microseconds. false: the kernel does not answer, or has no such interface. */
bool bnet_link_describe(int fd, int ifindex, struct bnet_link *link);
/* NULL: the description has no such attribute (IFLA_*). */
const struct rtattr *bnet_link_attribute(const struct bnet_link *link, int type);

/* Does it carry its packets inside those of another interface, as VPNs and overlays do? */
bool bnet_link_is_tunnel(const struct bnet_link *link);
/* Does it drop what is sent through it, and only lend its address to the host? */
bool bnet_link_is_dummy(const struct bnet_link *link);
/* The rule for tunnels. type: ARPHRD_*; kind: the kernel's name for the driver, "" if it has none. Pure. */
bool bnet_link_tunnels(unsigned short type, const char *kind);

#endif
