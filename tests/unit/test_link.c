/* SPDX-License-Identifier: MIT
 *
 * What tells a VPN from a card, and the way to the job's rendezvous. tests/netns/test_interfaces.py has real tunnels
 * and routes.
 */
#include <arpa/inet.h>
#include <linux/if_arp.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <unistd.h>

#include "check.h"
#include "device/link.h"
#include "device/route.h"

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

static const struct {
	unsigned short type;
	const char *kind;
	bool tunnel;
} kinds[] = {
	{ARPHRD_ETHER, "", false},       {ARPHRD_ETHER, "veth", false},    {ARPHRD_ETHER, "vlan", false},
	{ARPHRD_ETHER, "bond", false},   {ARPHRD_ETHER, "bridge", false},  {ARPHRD_ETHER, "macvlan", false},
	{ARPHRD_ETHER, "macsec", false}, {ARPHRD_INFINIBAND, "", false},   {ARPHRD_INFINIBAND, "ipoib", false},
	{ARPHRD_LOOPBACK, "", false},    {ARPHRD_NONE, "wireguard", true}, {ARPHRD_NONE, "tun", true},
	{ARPHRD_NONE, "", true},         {ARPHRD_ETHER, "tun", true},      {ARPHRD_ETHER, "vxlan", true},
	{ARPHRD_ETHER, "geneve", true},  {ARPHRD_ETHER, "gretap", true},   {ARPHRD_TUNNEL, "ipip", true},
	{ARPHRD_TUNNEL6, "", true},      {ARPHRD_SIT, "sit", true},        {ARPHRD_IPGRE, "gre", true},
	{ARPHRD_IP6GRE, "ip6gre", true}, {ARPHRD_PPP, "", true},
};

static void test_kinds(void)
{
	for (size_t i = 0; i < COUNT(kinds); i++) {
		if (bnet_link_tunnels(kinds[i].type, kinds[i].kind) == kinds[i].tunnel)
			continue;
		fprintf(stderr, "type %d, kind \"%s\"\n", kinds[i].type, kinds[i].kind);
		exit(1);
	}
}

/* The kernel's description of a device of this kind. */
static struct bnet_link link_of_kind(const char *kind)
{
	struct bnet_link link = {.reply = {.bytes = ""}};
	struct nlmsghdr *header = &link.reply.header;
	struct rtattr *info = (struct rtattr *)(void *)(link.reply.bytes + NLMSG_SPACE(sizeof(struct ifinfomsg)));
	struct rtattr *name = RTA_DATA(info);

	name->rta_type = IFLA_INFO_KIND;
	name->rta_len = (unsigned short)RTA_LENGTH(strlen(kind) + 1);
	strcpy(RTA_DATA(name), kind);
	info->rta_type = IFLA_LINKINFO;
	info->rta_len = (unsigned short)RTA_LENGTH(RTA_ALIGN(name->rta_len));
	header->nlmsg_len = NLMSG_SPACE(sizeof(struct ifinfomsg)) + RTA_ALIGN(info->rta_len);
	return link;
}

static void test_dummies(void)
{
	struct bnet_link dummy = link_of_kind("dummy"), veth = link_of_kind("veth"), vxlan = link_of_kind("vxlan");

	check(bnet_link_is_dummy(&dummy));
	check(!bnet_link_is_dummy(&veth));
	check(!bnet_link_is_tunnel(&dummy));
	check(bnet_link_is_tunnel(&vxlan));
}

static void test_loopback_is_no_tunnel(void)
{
	int fd = bnet_link_open();
	struct bnet_link link;

	check(fd >= 0);
	check(bnet_link_describe(fd, 1, &link));
	check(bnet_link_attribute(&link, IFLA_IFNAME));
	check(!bnet_link_is_tunnel(&link));
	check(!bnet_link_is_dummy(&link));
	check(!bnet_link_describe(fd, 0x7fffffff, &link));
	close(fd);
	check(!bnet_link_describe(-1, 1, &link));
}

/* Loopback alone is on every machine. source "": unknown. */
static const struct {
	const char *to, *source;
} routes[] = {
	{"127.0.0.1", "127.0.0.1"},
	{"127.3.0.1:29500", "127.0.0.1"},
	{"[127.0.0.1]:1", "127.0.0.1"},
	{"localhost", ""},
	{"localhost:29500", ""},
	{"", ""},
	{":29500", ""},
	{"[::1", "::1"},
	{"::1", "::1"},
	{"[::1]:29500", "::1"},
	{"fe80::1", ""},
	{"0123456789012345678901234567890123456789012345678901234567890123456789", ""},
};

static bool has_ipv6(void)
{
	struct sockaddr_in6 loopback = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT};
	int fd = socket(AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	bool bound = fd >= 0 && bind(fd, (struct sockaddr *)&loopback, sizeof(loopback)) == 0;

	if (fd >= 0)
		close(fd);
	return bound;
}

static void check_route(const char *to, const char *expected)
{
	struct sockaddr_storage source;
	char text[INET6_ADDRSTRLEN] = "";

	if (bnet_route_source(to, &source))
		inet_ntop(source.ss_family,
			  source.ss_family == AF_INET ? (void *)&((struct sockaddr_in *)&source)->sin_addr
						      : (void *)&((struct sockaddr_in6 *)&source)->sin6_addr,
			  text, sizeof(text));
	check_str(text, expected);
}

static void test_routes(void)
{
	bool ipv6 = has_ipv6();

	for (size_t i = 0; i < COUNT(routes); i++)
		if (ipv6 || !strchr(routes[i].source, ':'))
			check_route(routes[i].to, routes[i].source);
	check_route(NULL, "");
}

static void check_meeting_point(const char *id, const char *master, const char *expected)
{
	check_int(id ? setenv("NCCL_COMM_ID", id, 1) : unsetenv("NCCL_COMM_ID"), 0);
	check_int(master ? setenv("MASTER_ADDR", master, 1) : unsetenv("MASTER_ADDR"), 0);
	check((bnet_route_rendezvous() == NULL) == (expected == NULL));
	if (expected)
		check_str(bnet_route_rendezvous(), expected);
}

static void test_meeting_point(void)
{
	check_meeting_point(NULL, NULL, NULL);
	check_meeting_point("", "", NULL);
	check_meeting_point(NULL, "10.0.0.1", "10.0.0.1");
	check_meeting_point("10.0.0.2:7", "10.0.0.1", "10.0.0.2:7");
}

int main(void)
{
	test_kinds();
	test_dummies();
	test_loopback_is_no_tunnel();
	test_routes();
	test_meeting_point();
	return 0;
}
