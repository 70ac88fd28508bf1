/* SPDX-License-Identifier: MIT
 *
 * Collects this machine's interfaces, selected and rejected. Makes blocking system calls and keeps no state: any
 * thread.
 */
#include "device/scan.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <linux/ethtool.h>
#include <linux/sockios.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/address.h"
#include "base/config.h"
#include "device/link.h"
#include "device/route.h"
#include "device/select.h"
#include "device/sysfs.h"

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

/* Drivers without hardware that report a speed nevertheless. */
static const char *const fake_speed_drivers[] = {"veth", "tun"};

/* ---- collecting ---- */

struct interfaces {
	struct bnet_interface *rows;
	int count;
	int netlink;
};

static void describe(struct bnet_interface *row, int netlink)
{
	struct bnet_link link;

	if (!bnet_link_describe(netlink, row->ifindex, &link))
		return;
	row->tunnel = bnet_link_is_tunnel(&link);
	row->dummy = bnet_link_is_dummy(&link);
}

/* The length of an interface's name without the ":label" that an IPv4 address may append. */
static size_t name_length(const char *name)
{
	size_t len = strcspn(name, ":");

	return len < IF_NAMESIZE ? len : IF_NAMESIZE - 1;
}

static struct bnet_interface *find_or_add(struct interfaces *all, const struct ifaddrs *entry)
{
	struct bnet_interface *row;
	size_t len = name_length(entry->ifa_name);

	for (int i = 0; i < all->count; i++) {
		row = &all->rows[i];
		if (strlen(row->name) == len && memcmp(row->name, entry->ifa_name, len) == 0)
			return row;
	}
	row = &all->rows[all->count++];
	memcpy(row->name, entry->ifa_name, len);
	row->ifindex = (int)if_nametoindex(row->name);
	row->flags = entry->ifa_flags;
	row->rank = BNET_ADDRESS_NONE;
	describe(row, all->netlink);
	if (bnet_sysfs_has(BNET_SYSFS_NET, row->name, row->ifindex))
		row->bridge_port = bnet_sysfs_is_bridge_port(BNET_SYSFS_NET, row->name);
	return row;
}

static int family_of(const struct ifaddrs *entry)
{
	int family = entry->ifa_addr ? entry->ifa_addr->sa_family : AF_UNSPEC;

	return family == AF_INET || family == AF_INET6 ? family : AF_UNSPEC;
}

/* Keeps the first address of the best rank. */
static void keep_best_address(struct bnet_interface *row, const struct sockaddr *addr)
{
	enum bnet_address_rank rank = bnet_address_rank(addr);
	struct sockaddr_in6 *in6 = (struct sockaddr_in6 *)&row->addr;

	if (rank >= row->rank)
		return;
	row->rank = rank;
	memset(&row->addr, 0, sizeof(row->addr));
	memcpy(&row->addr, addr, addr->sa_family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(*in6));
	if (rank == BNET_ADDRESS_IPV6_LINK_LOCAL)
		in6->sin6_scope_id = (uint32_t)row->ifindex;
}

/* Keeps an address that the rules do not allow, of an interface that has no other: it shows why. */
static void keep_for_the_reason(struct bnet_interface *row, const struct bnet_rules *rules, const struct sockaddr *addr)
{
	if (row->rank != BNET_ADDRESS_NONE && !row->outside)
		return;
	if (!bnet_family_is_wanted(rules, addr)) {
		row->other_family = true;
		return;
	}
	row->outside = true;
	keep_best_address(row, addr);
}

/* Rows for those with an address that the rules allow first, in NCCL's order. */
static void add_rows(struct interfaces *all, const struct ifaddrs *list, const struct bnet_rules *rules)
{
	for (const struct ifaddrs *entry = list; entry; entry = entry->ifa_next)
		if (family_of(entry) != AF_UNSPEC && bnet_family_is_wanted(rules, entry->ifa_addr) &&
		    bnet_prefix_is_wanted(rules, entry->ifa_addr))
			keep_best_address(find_or_add(all, entry), entry->ifa_addr);
	for (const struct ifaddrs *entry = list; entry; entry = entry->ifa_next) {
		struct bnet_interface *row = find_or_add(all, entry);

		if (family_of(entry) == AF_UNSPEC)
			continue;
		keep_for_the_reason(row, rules, entry->ifa_addr);
		bnet_note_misnamed(rules, row, entry->ifa_addr);
	}
}

/* source: the address from which this machine reaches the job's rendezvous. */
static void mark_route(struct interfaces *all, const struct ifaddrs *list, const struct sockaddr *source)
{
	for (const struct ifaddrs *entry = list; entry; entry = entry->ifa_next)
		if (entry->ifa_addr && bnet_same_host(entry->ifa_addr, source))
			find_or_add(all, entry)->on_route = true;
}

static int collect(struct interfaces *all, const struct bnet_rules *rules, const char *rendezvous)
{
	struct sockaddr_storage source;
	struct ifaddrs *list;
	size_t entries = 0;

	if (getifaddrs(&list))
		return -errno;
	for (const struct ifaddrs *entry = list; entry; entry = entry->ifa_next)
		entries++;
	*all = (struct interfaces){.rows = calloc(entries + 1, sizeof(*all->rows)), .netlink = bnet_link_open()};
	if (all->rows) {
		add_rows(all, list, rules);
		if (bnet_route_source(rendezvous, &source))
			mark_route(all, list, (struct sockaddr *)&source);
	}
	if (all->netlink >= 0)
		close(all->netlink);
	freeifaddrs(list);
	return all->rows ? 0 : -ENOMEM;
}

/* ---- the table ---- */

static void format_address(const struct bnet_interface *row, char *text, size_t size)
{
	const void *in = row->addr.ss_family == AF_INET
				 ? (const void *)&((const struct sockaddr_in *)&row->addr)->sin_addr
				 : (const void *)&((const struct sockaddr_in6 *)&row->addr)->sin6_addr;
	char plain[INET6_ADDRSTRLEN];

	text[0] = '\0';
	if (row->rank == BNET_ADDRESS_NONE || !inet_ntop(row->addr.ss_family, in, plain, sizeof(plain)))
		return;
	if (row->rank == BNET_ADDRESS_IPV6_LINK_LOCAL)
		snprintf(text, size, "%s%%%s", plain, row->name);
	else
		snprintf(text, size, "%s", plain);
}

static int mtu_of(int fd, const char *name)
{
	struct ifreq request = {0};

	snprintf(request.ifr_name, sizeof(request.ifr_name), "%s", name);
	return fd >= 0 && ioctl(fd, SIOCGIFMTU, &request) == 0 ? request.ifr_mtu : 0;
}

static bool speed_is_fake(int fd, const char *name)
{
	struct ethtool_drvinfo info = {.cmd = ETHTOOL_GDRVINFO};
	struct ifreq request = {0};

	snprintf(request.ifr_name, sizeof(request.ifr_name), "%s", name);
	request.ifr_data = (char *)&info;
	if (fd < 0 || ioctl(fd, SIOCETHTOOL, &request))
		return false;
	for (size_t i = 0; i < COUNT(fake_speed_drivers); i++)
		if (strcmp(info.driver, fake_speed_drivers[i]) == 0)
			return true;
	return false;
}

static void fill_nic(struct bnet_nic *nic, const struct bnet_interface *row, int fd)
{
	bool in_sysfs = bnet_sysfs_has(BNET_SYSFS_NET, row->name, row->ifindex);
	int speed = 0;

	memset(nic, 0, sizeof(*nic));
	memcpy(nic->name, row->name, sizeof(nic->name));
	format_address(row, nic->address, sizeof(nic->address));
	nic->addr = row->addr;
	nic->ifindex = row->ifindex;
	nic->on_route = row->on_route;
	nic->passive = bnet_is_passive(row);
	nic->mtu = mtu_of(fd, row->name);
	nic->numa_node = -1;
	if (in_sysfs) {
		bnet_sysfs_pci_path(BNET_SYSFS_NET, row->name, nic->pci_path, sizeof(nic->pci_path));
		nic->numa_node = bnet_sysfs_numa_node(BNET_SYSFS_NET, row->name);
		speed = bnet_sysfs_speed(BNET_SYSFS_NET, row->name);
	}
	nic->speed_known = speed > 0 && !speed_is_fake(fd, row->name);
	nic->speed_mbps = nic->speed_known ? speed : BNET_DEFAULT_SPEED_MBPS;
	nic->guid = bnet_sysfs_guid(BNET_SYSFS_NET, row->name, nic->pci_path);
}

static void reject(struct bnet_device_table *table, const struct bnet_interface *row, const char *reason)
{
	struct bnet_rejected *rejected;

	if (table->nrejected == BNET_MAX_INTERFACES)
		return;
	rejected = &table->rejected[table->nrejected++];
	memset(rejected, 0, sizeof(*rejected));
	memcpy(rejected->name, row->name, sizeof(rejected->name));
	format_address(row, rejected->address, sizeof(rejected->address));
	snprintf(rejected->reason, sizeof(rejected->reason), "%s", reason);
}

int bnet_device_scan(struct bnet_device_table *table, const struct bnet_choice *choice)
{
	char reason[sizeof(table->rejected[0].reason)];
	struct interfaces all = {0};
	struct bnet_rules rules;
	enum bnet_tier chosen;
	int fd, ret;

	atomic_store(&table->ndevices, 0);
	table->nnics = 0;
	table->nrejected = 0;
	ret = bnet_rules_parse(&rules, choice->ifname, choice->family, choice->prefixes);
	if (!ret)
		ret = collect(&all, &rules, choice->rendezvous);
	if (ret)
		return ret;
	fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	if (fd < 0) /* a kernel without IPv4 */
		fd = socket(AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	chosen = bnet_choose_tier(&rules, all.rows, all.count);
	for (int i = 0; i < all.count; i++) {
		if (!bnet_is_selected(&rules, chosen, &all.rows[i], reason, sizeof(reason))) {
			reject(table, &all.rows[i], reason);
		} else if (table->nnics == BNET_MAX_NICS) {
			snprintf(reason, sizeof(reason),
				 "more than %d interfaces; NCCL_SOCKET_IFNAME chooses among them", BNET_MAX_NICS);
			reject(table, &all.rows[i], reason);
		} else {
			fill_nic(&table->nics[table->nnics++], &all.rows[i], fd);
		}
	}
	if (fd >= 0)
		close(fd);
	free(all.rows);
	return table->nnics ? 0 : -ENODEV;
}

static _Atomic(const char *) preferred;

void bnet_device_prefer(const char *ifname)
{
	atomic_store(&preferred, ifname);
}

const char *bnet_device_ifname(void)
{
	const char *ifname = getenv("NCCL_SOCKET_IFNAME");

	return ifname ? ifname : atomic_load(&preferred);
}

int bnet_device_scan_here(struct bnet_device_table *table)
{
	struct bnet_config config;

	bnet_config_read(&config, NULL, 0);
	return bnet_device_scan(table, &(struct bnet_choice){
					       .ifname = bnet_device_ifname(),
					       .family = getenv("NCCL_SOCKET_FAMILY"),
					       .prefixes = config.address_prefix,
					       .rendezvous = bnet_route_rendezvous(),
				       });
}
