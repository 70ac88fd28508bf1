/* SPDX-License-Identifier: MIT
 *
 * NCCL's rules for selecting interfaces, and a reason for each interface that they reject. Pure: any thread.
 */
#include "device/select.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/prefix.h"

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

/* NCCL excludes the first two. Container engines create the others, which lead to no other host either. */
static const char *const bridge_prefixes[] = {
	"docker", "virbr", "cni", "podman", "flannel", "cilium", "cali", "lxcbr", "lxdbr", "incusbr", "kube-",
};

/* ---- NCCL_SOCKET_IFNAME ---- */

bool bnet_ifname_match(const char *list, const char *name)
{
	bool exclude = *list == '^';
	bool exact, found = false, empty = true;

	list += exclude;
	exact = *list == '=';
	list += exact;
	while (*list) {
		size_t entry = strcspn(list, ",");
		size_t len = strcspn(list, ":,");

		if (len > 0) {
			empty = false;
			if (strncmp(name, list, len) == 0 && (!exact || !name[len]))
				found = true;
		}
		list += entry;
		list += *list == ',';
	}
	return (found || empty) != exclude; /* an empty list matches everything, as in NCCL */
}

int bnet_rules_parse(struct bnet_rules *rules, const char *ifname, const char *family, const char *prefixes)
{
	*rules = (struct bnet_rules){.ifname = NULL, .family = AF_UNSPEC};
	if (ifname && strlen(ifname) > 1)
		rules->ifname = ifname;
	if (prefixes && *prefixes)
		rules->prefixes = prefixes;
	if (!family || !*family)
		return 0;
	if (strcmp(family, "AF_INET") == 0)
		rules->family = AF_INET;
	else if (strcmp(family, "AF_INET6") == 0)
		rules->family = AF_INET6;
	else
		return -EINVAL;
	return 0;
}

/* ---- addresses ---- */

bool bnet_family_is_wanted(const struct bnet_rules *rules, const struct sockaddr *addr)
{
	return rules->family == AF_UNSPEC || rules->family == addr->sa_family;
}

bool bnet_prefix_is_wanted(const struct bnet_rules *rules, const struct sockaddr *addr)
{
	size_t len;

	return !rules->prefixes || bnet_prefixes_find(rules->prefixes, addr, &len);
}

void bnet_note_misnamed(const struct bnet_rules *rules, struct bnet_interface *candidate, const struct sockaddr *addr)
{
	const char *list = rules->ifname;

	if (list && *list != '^' && !candidate->misnamed)
		candidate->misnamed = bnet_prefixes_find(list + (*list == '='), addr, &candidate->misnamed_len);
}

enum bnet_address_rank bnet_address_rank(const struct sockaddr *addr)
{
	const struct in6_addr *in6;
	uint32_t in;

	switch (addr->sa_family) {
	case AF_INET:
		in = ntohl(((const struct sockaddr_in *)addr)->sin_addr.s_addr);
		if (in >> 24 == IN_LOOPBACKNET)
			return BNET_ADDRESS_IPV4_LOOPBACK;
		return in >> 16 == 0xa9fe /* 169.254/16 */ ? BNET_ADDRESS_IPV4_LINK_LOCAL : BNET_ADDRESS_IPV4;
	case AF_INET6:
		in6 = &((const struct sockaddr_in6 *)addr)->sin6_addr;
		if (IN6_IS_ADDR_LOOPBACK(in6))
			return BNET_ADDRESS_IPV6_LOOPBACK;
		return IN6_IS_ADDR_LINKLOCAL(in6) ? BNET_ADDRESS_IPV6_LINK_LOCAL : BNET_ADDRESS_IPV6;
	default:
		return BNET_ADDRESS_NONE;
	}
}

/* ---- tiers ---- */

/* Docker names its bridges br- and twelve hexadecimal digits. Others, such as br-ex, lead to real networks. */
static bool is_docker_network(const char *name)
{
	return strncmp(name, "br-", 3) == 0 && strspn(name + 3, "0123456789abcdef") == 12 && !name[15];
}

static bool is_bridge(const char *name)
{
	for (size_t i = 0; i < COUNT(bridge_prefixes); i++)
		if (strncmp(name, bridge_prefixes[i], strlen(bridge_prefixes[i])) == 0)
			return true;
	return is_docker_network(name);
}

/* Whoever sends from its address sends through another interface. */
static bool leads_nowhere(const struct bnet_interface *row)
{
	return (row->flags & IFF_LOOPBACK) || row->dummy;
}

static bool has_host_address(const struct bnet_interface *row)
{
	return row->rank < BNET_ADDRESS_IPV4_LOOPBACK;
}

bool bnet_is_passive(const struct bnet_interface *row)
{
	return leads_nowhere(row) && has_host_address(row);
}

static enum bnet_tier tier_of(const struct bnet_interface *candidate)
{
	if (candidate->bridge_port || is_bridge(candidate->name))
		return BNET_TIER_BRIDGE;
	if (leads_nowhere(candidate))
		return has_host_address(candidate) ? BNET_TIER_HOST : BNET_TIER_LOOPBACK;
	if (candidate->rank == BNET_ADDRESS_IPV4_LINK_LOCAL || candidate->rank == BNET_ADDRESS_IPV6_LINK_LOCAL)
		return BNET_TIER_LINK_LOCAL;
	/* The job's own address leads through this tunnel, so its ranks may have no other way to each other. */
	if (candidate->tunnel && !candidate->on_route)
		return BNET_TIER_TUNNEL;
	return strncmp(candidate->name, "ib", 2) == 0 ? BNET_TIER_IB : BNET_TIER_PLAIN;
}

static bool is_usable(const struct bnet_interface *candidate)
{
	return (candidate->flags & IFF_UP) && (candidate->flags & IFF_RUNNING) &&
	       candidate->rank != BNET_ADDRESS_NONE && !candidate->outside;
}

enum bnet_tier bnet_choose_tier(const struct bnet_rules *rules, const struct bnet_interface *all, int count)
{
	enum bnet_tier best = BNET_TIER_NONE;

	if (rules->ifname)
		return BNET_TIER_NONE;
	for (int i = 0; i < count; i++)
		if (is_usable(&all[i]) && tier_of(&all[i]) < best)
			best = tier_of(&all[i]);
	return best;
}

/* ---- reasons ---- */

/* What a reader of the list does not see, and a shell or a YAML file left in it. */
static const char *oddity(const char *list)
{
	if (strpbrk(list, "\"'"))
		return "; its quotes are part of it";
	return strpbrk(list, " \t\r\n") ? "; a blank is part of it" : "";
}

static void explain_list(const char *list, const struct bnet_interface *candidate, char *reason, size_t size)
{
	int len = (int)candidate->misnamed_len;

	if (candidate->misnamed)
		snprintf(reason, size,
			 "NCCL_SOCKET_IFNAME takes names: =%s for %.*s, or BAGUA_NET_ADDRESS_PREFIX=%.*s in its place",
			 candidate->name, len, candidate->misnamed, len, candidate->misnamed);
	else
		snprintf(reason, size, "%s NCCL_SOCKET_IFNAME=%.60s%s",
			 *list == '^' ? "excluded by" : "not selected by", list, oddity(list));
}

static void explain_unusable(const struct bnet_rules *rules, const struct bnet_interface *candidate, char *reason,
			     size_t size)
{
	const char *name = candidate->name;

	if (!(candidate->flags & IFF_UP))
		snprintf(reason, size, "down; `ip link set %s up` brings it up", name);
	else if (!(candidate->flags & IFF_RUNNING))
		snprintf(reason, size, "no carrier; check its cable, its switch or its peer");
	else if (candidate->other_family)
		snprintf(reason, size, "no %s address, and NCCL_SOCKET_FAMILY=%s",
			 rules->family == AF_INET ? "IPv4" : "IPv6", rules->family == AF_INET ? "AF_INET" : "AF_INET6");
	else
		snprintf(reason, size, "no IP address; `ip address add ADDRESS/LENGTH dev %s` gives it one", name);
}

static void explain_tier(const struct bnet_interface *candidate, char *reason, size_t size)
{
	const char *name = candidate->name;

	switch (tier_of(candidate)) {
	case BNET_TIER_LOOPBACK:
	case BNET_TIER_HOST:
		snprintf(reason, size, "%s, while others exist; NCCL_SOCKET_IFNAME==%s selects it",
			 candidate->dummy ? "a dummy" : "loopback", name);
		break;
	case BNET_TIER_BRIDGE:
		snprintf(reason, size, "%s, leads to no other host; NCCL_SOCKET_IFNAME==%s selects it",
			 candidate->bridge_port ? "a port of a bridge" : "a network of containers or virtual machines",
			 name);
		break;
	case BNET_TIER_TUNNEL:
		snprintf(reason, size, "a VPN or overlay, while others exist; NCCL_SOCKET_IFNAME==%s selects it", name);
		break;
	case BNET_TIER_LINK_LOCAL:
		snprintf(reason, size,
			 "only a link-local address, while others exist; NCCL_SOCKET_IFNAME==%s selects it", name);
		break;
	default:
		snprintf(reason, size, "NCCL prefers ib*; NCCL_SOCKET_IFNAME==%s selects this one", name);
	}
}

/* It would still not be selected, so its state is not the reason. */
static bool bringing_up_is_no_use(enum bnet_tier tier, enum bnet_tier chosen)
{
	if (tier == BNET_TIER_HOST || tier == BNET_TIER_TUNNEL)
		return chosen < tier;
	return (tier == BNET_TIER_LOOPBACK || tier == BNET_TIER_BRIDGE) && chosen != BNET_TIER_NONE;
}

bool bnet_is_selected(const struct bnet_rules *rules, enum bnet_tier chosen, const struct bnet_interface *candidate,
		      char *reason, size_t size)
{
	enum bnet_tier tier = tier_of(candidate);
	bool other_tier = !rules->ifname && tier != chosen;

	if (rules->ifname && !bnet_ifname_match(rules->ifname, candidate->name)) {
		explain_list(rules->ifname, candidate, reason, size);
		return false;
	}
	if (candidate->outside) {
		snprintf(reason, size, "no address in BAGUA_NET_ADDRESS_PREFIX=%.80s", rules->prefixes);
		return false;
	}
	if (other_tier && bringing_up_is_no_use(tier, chosen)) {
		explain_tier(candidate, reason, size);
		return false;
	}
	if (!is_usable(candidate)) {
		explain_unusable(rules, candidate, reason, size);
		return false;
	}
	if (other_tier) {
		explain_tier(candidate, reason, size);
		return false;
	}
	return true;
}
