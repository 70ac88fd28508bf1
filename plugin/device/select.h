/* SPDX-License-Identifier: MIT
 *
 * The rules that select interfaces: NCCL's, and ours for interfaces that lead nowhere or by a detour. Pure: any thread.
 */
#ifndef BNET_SELECT_H
#define BNET_SELECT_H

#include <net/if.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/socket.h>

#include "device/device.h"

/* How suitable an address is for reaching other hosts, best first. The best address that the rules allow is used. */
enum bnet_address_rank {
	BNET_ADDRESS_IPV4,
	BNET_ADDRESS_IPV6,
	BNET_ADDRESS_IPV4_LOOPBACK,
	BNET_ADDRESS_IPV6_LOOPBACK,
	BNET_ADDRESS_IPV4_LINK_LOCAL,
	BNET_ADDRESS_IPV6_LINK_LOCAL,
	BNET_ADDRESS_NONE,
};

/* Without NCCL_SOCKET_IFNAME, all devices come from the first tier that has a usable interface. */
enum bnet_tier {
	BNET_TIER_IB, /* IP over InfiniBand: NCCL's own order, and ranks must agree */
	BNET_TIER_PLAIN,
	BNET_TIER_HOST,   /* a loopback or dummy one with an address of the host's, to which routes lead (BGP, OSPF) */
	BNET_TIER_TUNNEL, /* a VPN or an overlay, whose packets travel over another interface of this machine */
	BNET_TIER_LINK_LOCAL, /* management ports and host ends of container links often have only such an address */
	BNET_TIER_LOOPBACK,
	BNET_TIER_BRIDGE, /* leads only to this host's containers or virtual machines */
	BNET_TIER_NONE,
};

/* One interface of this machine and the best of its addresses: of those that the rules allow, if there are any. */
struct bnet_interface {
	char name[IF_NAMESIZE];
	int ifindex;
	unsigned int flags; /* IFF_UP, … */
	bool bridge_port;
	bool tunnel;
	bool dummy;        /* nothing leaves through it, as with loopback */
	bool on_route;     /* this machine reaches the job's rendezvous from an address of it */
	bool other_family; /* has only addresses of an unwanted family */
	bool outside;      /* has only addresses that are in none of the prefixes */
	/* An entry of NCCL_SOCKET_IFNAME that is no name but has an address of this interface; NULL: none. */
	const char *misnamed;
	size_t misnamed_len;
	enum bnet_address_rank rank;
	struct sockaddr_storage addr;
};

/* NCCL_SOCKET_IFNAME, NCCL_SOCKET_FAMILY and BAGUA_NET_ADDRESS_PREFIX. */
struct bnet_rules {
	const char *ifname;   /* NULL: the tiers decide */
	int family;           /* AF_UNSPEC: any */
	const char *prefixes; /* NULL: all addresses */
};

/* -EINVAL: unknown family. Ignores an ifname of less than two characters, as NCCL does. */
int bnet_rules_parse(struct bnet_rules *rules, const char *ifname, const char *family, const char *prefixes);
/* Is the address of the wanted family? And is it in one of the prefixes? */
bool bnet_family_is_wanted(const struct bnet_rules *rules, const struct sockaddr *addr);
bool bnet_prefix_is_wanted(const struct bnet_rules *rules, const struct sockaddr *addr);
/* Notes an address of the interface that stands among NCCL_SOCKET_IFNAME's names. */
void bnet_note_misnamed(const struct bnet_rules *rules, struct bnet_interface *candidate, const struct sockaddr *addr);
enum bnet_address_rank bnet_address_rank(const struct sockaddr *addr);
/* As in struct bnet_nic. */
bool bnet_is_passive(const struct bnet_interface *row);
/* BNET_TIER_NONE if no interface is usable or the rules name interfaces. */
enum bnet_tier bnet_choose_tier(const struct bnet_rules *rules, const struct bnet_interface *all, int count);
/* Does the interface become a device? If not, writes the reason. size: that of struct bnet_rejected's reason. */
bool bnet_is_selected(const struct bnet_rules *rules, enum bnet_tier chosen, const struct bnet_interface *candidate,
		      char *reason, size_t size);
/* Does the interface name match a list in NCCL's syntax ("eth,ib", "=eth0", "^docker,lo")? An entry may end in
 * ":port", which is ignored. Pure. */
bool bnet_ifname_match(const char *list, const char *name);

#endif
