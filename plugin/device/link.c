/* SPDX-License-Identifier: MIT
 *
 * See link.h.
 */
#include "device/link.h"

#include <linux/if_arp.h>
#include <stddef.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

#define KIND_SIZE 32

/* Interfaces without a link layer of their own: WireGuard, TUN, IPIP, GRE and the like, PPP. No card has such a
 * type. */
static const unsigned short tunnel_types[] = {
	ARPHRD_NONE, ARPHRD_PPP, ARPHRD_TUNNEL, ARPHRD_TUNNEL6, ARPHRD_SIT, ARPHRD_IPGRE, ARPHRD_IP6GRE,
};

/* Those that carry Ethernet frames. TAP has TUN's kind. */
static const char *const tunnel_kinds[] = {"tun",       "vxlan",  "geneve",    "gretap",
					   "ip6gretap", "erspan", "ip6erspan", "amt"};

/* ---- asking ---- */

int bnet_link_open(void)
{
	return socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, NETLINK_ROUTE);
}

static bool ask(int fd, int ifindex)
{
	struct {
		struct nlmsghdr header;
		struct ifinfomsg link;
	} request = {
		.header = {.nlmsg_len = sizeof(request), .nlmsg_type = RTM_GETLINK, .nlmsg_flags = NLM_F_REQUEST},
		.link = {.ifi_family = AF_UNSPEC, .ifi_index = ifindex},
	};

	return send(fd, &request, sizeof(request), 0) == sizeof(request);
}

bool bnet_link_describe(int fd, int ifindex, struct bnet_link *link)
{
	ssize_t size;

	if (fd < 0 || !ask(fd, ifindex))
		return false;
	/* The kernel has answered by the time that send returns. */
	size = read(fd, link->reply.bytes, sizeof(link->reply));
	return size > 0 && NLMSG_OK(&link->reply.header, (size_t)size) &&
	       link->reply.header.nlmsg_type == RTM_NEWLINK &&
	       link->reply.header.nlmsg_len >= NLMSG_LENGTH(sizeof(struct ifinfomsg));
}

/* ---- reading ---- */

static const struct rtattr *find(const struct rtattr *attribute, int left, int type)
{
	for (; RTA_OK(attribute, left); attribute = RTA_NEXT(attribute, left))
		if (attribute->rta_type == type)
			return attribute;
	return NULL;
}

const struct rtattr *bnet_link_attribute(const struct bnet_link *link, int type)
{
	const struct nlmsghdr *header = &link->reply.header;

	return find(IFLA_RTA(NLMSG_DATA(header)), (int)IFLA_PAYLOAD(header), type);
}

static void read_kind(const struct bnet_link *link, char kind[KIND_SIZE])
{
	const struct rtattr *info = bnet_link_attribute(link, IFLA_LINKINFO);
	const struct rtattr *found = info ? find(RTA_DATA(info), (int)RTA_PAYLOAD(info), IFLA_INFO_KIND) : NULL;
	size_t size = found ? RTA_PAYLOAD(found) : 0;

	memset(kind, 0, KIND_SIZE);
	if (size > 0 && size < KIND_SIZE)
		memcpy(kind, RTA_DATA(found), size);
}

/* ---- kinds ---- */

bool bnet_link_tunnels(unsigned short type, const char *kind)
{
	for (size_t i = 0; i < COUNT(tunnel_types); i++)
		if (type == tunnel_types[i])
			return true;
	for (size_t i = 0; i < COUNT(tunnel_kinds); i++)
		if (strcmp(kind, tunnel_kinds[i]) == 0)
			return true;
	return false;
}

bool bnet_link_is_tunnel(const struct bnet_link *link)
{
	const struct ifinfomsg *about = NLMSG_DATA(&link->reply.header);
	char kind[KIND_SIZE];

	read_kind(link, kind);
	return bnet_link_tunnels(about->ifi_type, kind);
}

bool bnet_link_is_dummy(const struct bnet_link *link)
{
	char kind[KIND_SIZE];

	read_kind(link, kind);
	return strcmp(kind, "dummy") == 0;
}
