/* SPDX-License-Identifier: MIT
 *
 * Devices: the rules on synthetic interfaces. test_device_sysfs.c has speed and PCI location, test_device_scan.c scans
 * this machine, tests/netns/test_interfaces.py real interfaces of all kinds.
 */
#include "check.h"
#include "device/local.h"
#include "device/scan.h"
#include "device/select.h"

#include <arpa/inet.h>
#include <errno.h>
#include <unistd.h>

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

/* ---- names ---- */

static const struct {
	const char *list, *name;
	bool match;
} names[] = {
	{"eth0", "eth0", true},
	{"eth", "eth0", true},
	{"eth0", "eth01", true},
	{"eth0", "eth", false},
	{"eth,ib", "ib3", true},
	{"eth,ib", "lo", false},
	{"=eth0", "eth0", true},
	{"=eth0", "eth01", false},
	{"=eth", "eth0", false},
	{"=eth0,ib0", "ib0", true},
	{"=eth0,ib0", "ib01", false},
	{"^docker,lo", "eth0", true},
	{"^docker,lo", "docker0", false},
	{"^docker,lo", "lo", false},
	{"^=eth0", "eth0", false},
	{"^=eth0", "eth01", true},
	{"=^eth0", "^eth0", true},
	{"eth0:1", "eth0", true},
	{"eth0:1:2:3,ib", "ib0", true},
	{"=eth0:1,ib0:2", "ib0", true},
	{"=eth0:1", "eth0:1", false},
	{",,eth0,", "eth0", true},
	{",,eth0,", "lo", false},
	{":7,eth0", "lo", false},
	{"", "eth0", true},
	{",", "eth0", true},
	{"^", "eth0", false},
	{"=", "eth0", true},
	{" eth0", "eth0", false},
	{"ETH0", "eth0", false},
};

static void test_names(void)
{
	for (size_t i = 0; i < COUNT(names); i++) {
		if (bnet_ifname_match(names[i].list, names[i].name) == names[i].match)
			continue;
		fprintf(stderr, "list \"%s\", name \"%s\"\n", names[i].list, names[i].name);
		exit(1);
	}
}

static const struct {
	const char *ifname, *family;
	int ret, parsed_family;
	bool by_name;
} rules[] = {
	{NULL, NULL, 0, AF_UNSPEC, false},        {"", "", 0, AF_UNSPEC, false},
	{"e", NULL, 0, AF_UNSPEC, false}, /* as in NCCL */
	{"lo", "AF_INET", 0, AF_INET, true},      {"lo", "AF_INET6", 0, AF_INET6, true},
	{"lo", "IPv6", -EINVAL, AF_UNSPEC, true}, {NULL, "AF_INET ", -EINVAL, AF_UNSPEC, false},
};

static void test_rules(void)
{
	for (size_t i = 0; i < COUNT(rules); i++) {
		struct bnet_rules parsed;

		check_int(bnet_rules_parse(&parsed, rules[i].ifname, rules[i].family, NULL), rules[i].ret);
		check_int(parsed.family, rules[i].parsed_family);
		check_int(parsed.ifname != NULL, rules[i].by_name);
	}
}

/* ---- choice ---- */

#define UP (IFF_UP | IFF_RUNNING)
#define V4 BNET_ADDRESS_IPV4
#define V6 BNET_ADDRESS_IPV6
#define LOOP4 BNET_ADDRESS_IPV4_LOOPBACK
#define LL4 BNET_ADDRESS_IPV4_LINK_LOCAL
#define LL6 BNET_ADDRESS_IPV6_LINK_LOCAL
#define NO BNET_ADDRESS_NONE

#define LO IF("lo", UP | IFF_LOOPBACK, LOOP4)
#define LO_OF_HOST IF("lo", UP | IFF_LOOPBACK, V4)
#define IF(n, f, r)                              \
	{                                        \
		.name = n, .flags = f, .rank = r \
	}
#define TUN(n, f, r)                                             \
	{                                                        \
		.name = n, .flags = f, .rank = r, .tunnel = true \
	}

#define DUMMY(f, r)                                                    \
	{                                                              \
		.name = "dummy0", .flags = f, .rank = r, .dummy = true \
	}

/* chosen: the names that become devices. rejected: one interface that does not, with a part of its reason. */
static const struct {
	const char *ifname, *chosen, *rejected, *reason;
	struct bnet_interface all[5];
} choices[] = {
	{NULL, "lo", NULL, NULL, {LO}},
	{NULL,
	 "eth0",
	 "lo",
	 "loopback, while others exist; NCCL_SOCKET_IFNAME==lo selects it",
	 {LO, IF("eth0", UP, V4)}},
	{NULL, "eth0 eth1", NULL, NULL, {IF("eth0", UP, V4), IF("eth1", UP, V6)}},
	{NULL, "ib0 ib1", "eth0", "NCCL prefers ib*", {IF("eth0", UP, V4), IF("ib0", UP, V4), IF("ib1", UP, V4)}},
	{NULL, "eth0", "ib0", "down; `ip link set ib0 up`", {IF("eth0", UP, V4), IF("ib0", 0, V4)}},
	{NULL, "lo", "eth0", "down", {LO, IF("eth0", IFF_BROADCAST, V4)}},
	{NULL, "lo", "eth0", "no carrier", {LO, IF("eth0", IFF_UP, V4)}},
	{NULL, "lo", "eth0", "no IP address", {LO, IF("eth0", UP, NO)}},
	{NULL, "eth0", "docker0", "NCCL_SOCKET_IFNAME==docker0 selects it", {IF("docker0", UP, V4), IF("eth0", UP, V4)}},
	{NULL, "eth0", "docker0", "leads to no other host", {IF("docker0", IFF_UP, V4), IF("eth0", UP, V4)}},
	{NULL, "lo", "virbr0", "leads to no other host", {IF("virbr0", UP, V4), LO}},
	{NULL, "eth0", "br-0123456789ab", "leads to no other host", {IF("br-0123456789ab", UP, V4), IF("eth0", UP, V4)}},
	{NULL,
	 "br-ex br-0123456789a eth0",
	 NULL,
	 NULL,
	 {IF("br-ex", UP, V4), IF("br-0123456789a", UP, V4), IF("eth0", UP, V4)}},
	{NULL,
	 "br0",
	 "eth0",
	 "a port of a bridge",
	 {IF("br0", UP, V4), {.name = "eth0", .flags = UP, .rank = LL6, .bridge_port = true}}},
	{NULL, "docker0", NULL, NULL, {IF("docker0", UP, V4)}},
	{NULL, "eth0", "wg0", "a VPN or overlay, while others exist", {TUN("wg0", UP, V4), IF("eth0", UP, V4)}},
	{NULL, "eth0", "wg0", "NCCL_SOCKET_IFNAME==wg0 selects it", {TUN("wg0", 0, NO), IF("eth0", UP, V4)}},
	{NULL, "wg0", "lo", "loopback", {LO, TUN("wg0", UP, V4), IF("idrac", UP, LL4)}},
	{NULL, "lo", "wg0", "down; `ip link set wg0 up`", {LO, TUN("wg0", 0, V4)}},
	{NULL,
	 "eth0 wg0",
	 "wg1",
	 "a VPN or overlay",
	 {IF("eth0", UP, V4), {.name = "wg0", .flags = UP, .tunnel = true, .on_route = true}, TUN("wg1", UP, V4)}},
	{"wg", "wg0", "eth0", "not selected by", {TUN("wg0", UP, V4), IF("eth0", UP, V4)}},
	{NULL, "eth0", "idrac", "only a link-local address", {IF("eth0", UP, V4), IF("idrac", UP, LL4)}},
	{NULL, "eth0", "veth12", "only a link-local address", {IF("eth0", UP, V6), IF("veth12", UP, LL6)}},
	{NULL, "eth0", "lo", "loopback", {LO, IF("eth0", UP, LL6)}},
	{NULL, "lo", "lan0", "only a link-local address", {LO_OF_HOST, IF("lan0", UP, LL6)}},
	{NULL, "lo", "wg0", "a VPN or overlay", {LO_OF_HOST, TUN("wg0", UP, V4)}},
	{NULL, "eth0", "lo", "loopback, while others exist", {LO_OF_HOST, IF("eth0", UP, V4)}},
	{NULL, "dummy0", "lan0", "only a link-local address", {LO, DUMMY(UP, V4), IF("lan0", UP, LL6)}},
	{NULL, "dummy0", "lo", "loopback", {LO, DUMMY(UP, V6)}},
	{NULL,
	 "eth0",
	 "dummy0",
	 "a dummy, while others exist; NCCL_SOCKET_IFNAME==dummy0 selects it",
	 {DUMMY(UP, V4), IF("eth0", UP, V4)}},
	{NULL, "lan0", "dummy0", "a dummy", {DUMMY(UP, LL4), IF("lan0", UP, LL6)}},
	{NULL,
	 "lo",
	 "kube-ipvs0",
	 "leads to no other host",
	 {LO, {.name = "kube-ipvs0", .flags = UP, .rank = V4, .dummy = true}}},
	{"dummy", "dummy0", "eth0", "not selected by", {DUMMY(UP, V4), IF("eth0", UP, V4)}},
	{"docker",
	 "docker0",
	 "eth0",
	 "not selected by NCCL_SOCKET_IFNAME=docker",
	 {IF("docker0", UP, V4), IF("eth0", UP, V4)}},
	{"^docker",
	 "eth0 lo",
	 "docker0",
	 "excluded by NCCL_SOCKET_IFNAME=^docker",
	 {IF("docker0", UP, V4), IF("eth0", UP, V4), LO}},
	{"=eth1,ib", "eth1", "eth10", "not selected by", {IF("eth1", UP, V4), IF("eth10", UP, V4)}},
	{"veth", "veth12", NULL, NULL, {IF("veth12", UP, LL6), IF("eth0", UP, V4)}},
	{"eth", "", "eth0", "down", {IF("eth0", 0, V4), LO}},
	{"nothing", "", "lo", "not selected by NCCL_SOCKET_IFNAME=nothing", {LO}},
	{"\"eth0\"", "", "eth0", "IFNAME=\"eth0\"; its quotes are part of it", {IF("eth0", UP, V4), LO}},
	{"=eth0 ", "", "eth0", "IFNAME==eth0 ; a blank is part of it", {IF("eth0", UP, V4), LO}},
};

static void check_choice(size_t row)
{
	const struct bnet_interface *all = choices[row].all;
	char chosen[128] = "", reason[160];
	struct bnet_rules parsed;
	enum bnet_tier tier;
	int count = 0;

	while (count < (int)COUNT(choices[row].all) && all[count].name[0])
		count++;
	check_int(bnet_rules_parse(&parsed, choices[row].ifname, NULL, NULL), 0);
	tier = bnet_choose_tier(&parsed, all, count);
	for (int i = 0; i < count; i++) {
		if (bnet_is_selected(&parsed, tier, &all[i], reason, sizeof(reason))) {
			strcat(strcat(chosen, chosen[0] ? " " : ""), all[i].name);
		} else if (choices[row].rejected && strcmp(all[i].name, choices[row].rejected) == 0) {
			if (!strstr(reason, choices[row].reason))
				fprintf(stderr, "choices[%zu]: %s\n", row, reason);
			check(strstr(reason, choices[row].reason));
		}
	}
	if (strcmp(chosen, choices[row].chosen) != 0)
		fprintf(stderr, "choices[%zu]\n", row);
	check_str(chosen, choices[row].chosen);
}

static void test_choices(void)
{
	for (size_t i = 0; i < COUNT(choices); i++)
		check_choice(i);
}

/* A passive device drops the packets of a socket that is bound to it. */
static void test_passive(void)
{
	static const struct {
		struct bnet_interface row;
		bool passive;
	} rows[] = {
		{LO_OF_HOST, true}, {DUMMY(UP, V4), true},       {DUMMY(UP, V6), true},
		{LO, false},        {IF("eth0", UP, V4), false}, {TUN("wg0", UP, V4), false},
	};

	for (size_t i = 0; i < COUNT(rows); i++)
		check_int(bnet_is_passive(&rows[i].row), rows[i].passive);
}

static void test_family_reason(void)
{
	struct bnet_interface candidate = {.name = "eth0", .flags = UP, .rank = NO, .other_family = true};
	char reason[160];
	struct bnet_rules parsed;

	check_int(bnet_rules_parse(&parsed, NULL, "AF_INET6", NULL), 0);
	check(!bnet_is_selected(&parsed, BNET_TIER_NONE, &candidate, reason, sizeof(reason)));
	check_str(reason, "no IPv6 address, and NCCL_SOCKET_FAMILY=AF_INET6");
}

static void parse_address(const char *text, struct sockaddr_storage *addr)
{
	struct sockaddr_in *in = (struct sockaddr_in *)addr;
	struct sockaddr_in6 *in6 = (struct sockaddr_in6 *)addr;

	memset(addr, 0, sizeof(*addr));
	addr->ss_family = strchr(text, ':') ? AF_INET6 : AF_INET;
	if (addr->ss_family == AF_INET)
		check_int(inet_pton(AF_INET, text, &in->sin_addr), 1);
	else
		check_int(inet_pton(AF_INET6, text, &in6->sin6_addr), 1);
}

/* Addresses in place of names: the interface that has one says so, whether or not it would be used with that one. */
static void test_address_reason(void)
{
	static const struct {
		const char *list, *address, *shown; /* shown NULL: the list counts as names */
	} lists[] = {
		{"10.0.0.4", "10.0.0.4", "10.0.0.4"},      {"=10.0.0.4", "10.0.0.4", "10.0.0.4"},
		{"eth7,10.0.0.4", "10.0.0.4", "10.0.0.4"}, {"fd00::4", "fd00::4", "fd00::4"},
		{"10.0.0.0/8", "10.0.0.4", "10.0.0.0/8"},  {"10.0.0.40", "10.0.0.4", NULL},
		{"^eth,10.0.0.4", "10.0.0.4", NULL},
	};

	for (size_t i = 0; i < COUNT(lists); i++) {
		struct bnet_interface candidate = {.name = "eth0", .flags = UP, .rank = V4};
		char expected[160], reason[160];
		struct sockaddr_storage addr;
		struct bnet_rules parsed;

		parse_address(lists[i].address, &addr);
		check_int(bnet_rules_parse(&parsed, lists[i].list, NULL, NULL), 0);
		bnet_note_misnamed(&parsed, &candidate, (struct sockaddr *)&addr);
		check(!bnet_is_selected(&parsed, BNET_TIER_NONE, &candidate, reason, sizeof(reason)));
		snprintf(expected, sizeof(expected),
			 "NCCL_SOCKET_IFNAME takes names: =eth0 for %s, or BAGUA_NET_ADDRESS_PREFIX=%s in its place",
			 lists[i].shown ? lists[i].shown : "", lists[i].shown ? lists[i].shown : "");
		if (lists[i].shown)
			check_str(reason, expected);
		else
			check(!strstr(reason, "takes names"));
	}
}

/* However long the list, the reason names the variable. */
static void test_long_list(void)
{
	struct bnet_interface candidate = {.name = "eth0", .flags = UP, .rank = V4};
	struct bnet_rules parsed;
	char list[2000], reason[160];

	memset(list, 'x', sizeof(list) - 1);
	list[sizeof(list) - 1] = '\0';
	check_int(bnet_rules_parse(&parsed, list, NULL, NULL), 0);
	check(!bnet_is_selected(&parsed, BNET_TIER_NONE, &candidate, reason, sizeof(reason)));
	check(strncmp(reason, "not selected by NCCL_SOCKET_IFNAME=xxx", 38) == 0);
}

static const struct {
	const char *text;
	enum bnet_address_rank rank;
} addresses[] = {
	{"10.0.0.1", BNET_ADDRESS_IPV4},        {"127.0.0.1", BNET_ADDRESS_IPV4_LOOPBACK},
	{"169.253.255.255", BNET_ADDRESS_IPV4}, {"169.254.1.1", BNET_ADDRESS_IPV4_LINK_LOCAL},
	{"2001:db8::1", BNET_ADDRESS_IPV6},     {"fd00::1", BNET_ADDRESS_IPV6},
	{"::1", BNET_ADDRESS_IPV6_LOOPBACK},    {"fe80::1", BNET_ADDRESS_IPV6_LINK_LOCAL},
};

static void test_address_ranks(void)
{
	for (size_t i = 0; i < COUNT(addresses); i++) {
		struct sockaddr_storage addr;

		parse_address(addresses[i].text, &addr);
		check_int(bnet_address_rank((struct sockaddr *)&addr), addresses[i].rank);
	}
}

/* ---- local addresses ---- */

static const struct {
	const char *text;
	bool local;
} locals[] = {
	{"127.0.0.1", true},
	{"127.9.8.7", true},
	{"::ffff:127.0.0.1", true},
	{"198.51.100.77", false},
	{"::ffff:198.51.100.77", false},
	{"2001:db8::77", false},
};

static void test_local_addresses(void)
{
	for (size_t i = 0; i < COUNT(locals); i++) {
		struct sockaddr_storage addr;

		parse_address(locals[i].text, &addr);
		check_int(bnet_address_is_local((struct sockaddr *)&addr), locals[i].local);
	}
}

int main(void)
{
	test_names();
	test_rules();
	test_choices();
	test_passive();
	test_family_reason();
	test_address_reason();
	test_long_list();
	test_address_ranks();
	test_local_addresses();
	return 0;
}
