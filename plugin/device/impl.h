/* SPDX-License-Identifier: MIT
 *
 * What the device_*.c files share: the rules that choose interfaces, which are pure, and the facts that sysfs holds.
 */
#ifndef BNET_DEVICE_IMPL_H
#define BNET_DEVICE_IMPL_H

#include "device/device.h"

#include <stddef.h>

/* ---- device_select.c: pure ---- */

/* How good an address is for reaching other hosts; the lowest of an interface is used. */
enum bnet_address_rank {
	BNET_ADDRESS_IPV4,
	BNET_ADDRESS_IPV6,
	BNET_ADDRESS_IPV6_LOOPBACK,
	BNET_ADDRESS_IPV4_LINK_LOCAL,
	BNET_ADDRESS_IPV6_LINK_LOCAL,
	BNET_ADDRESS_NONE,
};

/* Without NCCL_SOCKET_IFNAME, the first tier that has a usable interface gives all devices. */
enum bnet_tier {
	BNET_TIER_IB,         /* IP over InfiniBand: NCCL's own order, and ranks must agree */
	BNET_TIER_PLAIN,
	BNET_TIER_LINK_LOCAL, /* management ports and host ends of container links have such an address only */
	BNET_TIER_LOOPBACK,
	BNET_TIER_BRIDGE,     /* leads to this host's own containers or virtual machines */
	BNET_TIER_NONE,
};

/* One interface of this machine and the best of its addresses. */
struct bnet_interface {
	char name[IF_NAMESIZE];
	int ifindex;
	unsigned int flags;     /* IFF_UP, … */
	bool bridge_port;
	bool other_family;      /* it has an address, but of a family that is not wanted */
	enum bnet_address_rank rank;
	struct sockaddr_storage addr;
	socklen_t addr_len;
};

/* NCCL_SOCKET_IFNAME and NCCL_SOCKET_FAMILY. */
struct bnet_rules {
	const char *ifname; /* NULL: the tiers decide */
	int family;         /* AF_UNSPEC: any */
};

/* -EINVAL: unknown family. NCCL ignores an ifname of less than two characters, and so does this. */
int bnet_rules_parse(struct bnet_rules *rules, const char *ifname, const char *family);
enum bnet_address_rank bnet_address_rank(const struct sockaddr *addr);
/* BNET_TIER_NONE when no interface is usable or the rules name the interfaces. */
enum bnet_tier bnet_choose_tier(const struct bnet_rules *rules, const struct bnet_interface *all, int count);
/* Is it a device? If not, reason says why (size: that of struct bnet_rejected's). */
bool bnet_is_selected(const struct bnet_rules *rules, enum bnet_tier chosen, const struct bnet_interface *candidate,
		      char *reason, size_t size);

/* ---- device_sysfs.c: root is BNET_SYSFS_NET, or a copy of such a tree ---- */

#define BNET_SYSFS_NET "/sys/class/net"

/* Does sysfs speak of this very interface, and not of its namesake in another network namespace? */
bool bnet_sysfs_has(const char *root, const char *name, int ifindex);
/* Mb/s; 0: unknown. What lies below a bond, a VLAN or a bridge counts before its own word. */
int bnet_sysfs_speed(const char *root, const char *name);
bool bnet_sysfs_is_bridge_port(const char *root, const char *name);
/* The PCI device's folder; "" where there is none. */
void bnet_sysfs_pci_path(const char *root, const char *name, char *path, size_t size);
/* -1: unknown. */
int bnet_sysfs_numa_node(const char *root, const char *name);
/* The same for all functions of one PCI device of this host, otherwise for this interface only. */
uint64_t bnet_sysfs_guid(const char *root, const char *name, const char *pci_path);

#endif
