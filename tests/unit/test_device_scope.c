/* SPDX-License-Identifier: MIT
 *
 * A link-local address has its interface's index as scope id; without it the kernel refuses to bind, and an address of
 * another link counts as this machine's. Runs in a separate network namespace with two interfaces of the same address;
 * skipped where that is not permitted.
 */
#include "check.h"
#include "device/local.h"
#include "device/scan.h"

#include <arpa/inet.h>
#include <errno.h>
#include <sched.h>
#include <unistd.h>

#define SKIPPED 77

static const char *const commands[] = {
	"ip link set lo up",
	/* Any interface that needs no carrier would do. The second one provides a wrong index. */
	"ip link add eth0 type veth peer name eth1",
	"ip link set eth0 addrgenmode none && ip link set eth1 addrgenmode none",
	"ip link set eth0 up && ip link set eth1 up",
	"ip address add fe80::77/64 dev eth0 nodad && ip address add fe80::77/64 dev eth1 nodad",
};

static struct bnet_device_table table;

/* The kernel sets IFF_RUNNING a moment after both ends are up. */
static void await_devices(int count)
{
	for (int i = 0; i < 10000; i++) {
		bnet_device_scan(&table, &(struct bnet_choice){.ifname = "eth", .family = "AF_INET6"});
		if (table.nnics == count)
			return;
		usleep(1000);
	}
	fprintf(stderr, "%d devices after 10 s, expected %d\n", table.nnics, count);
	exit(1);
}

/* The kernel lists a link-local address before it has a route to it. */
static void await_local(const struct sockaddr *addr)
{
	for (int i = 0; i < 10000 && !bnet_address_is_local(addr); i++)
		usleep(1000);
	check(bnet_address_is_local(addr));
}

static void check_device(struct bnet_nic *device)
{
	struct sockaddr_in6 *in6 = (struct sockaddr_in6 *)&device->addr;
	char expected[64];
	int fd;

	snprintf(expected, sizeof(expected), "fe80::77%%%s", device->name);
	check_str(device->address, expected);
	check_int(device->ifindex, if_nametoindex(device->name));
	check_int(in6->sin6_scope_id, device->ifindex);
	check_int(in6->sin6_port, 0);
	await_local((struct sockaddr *)in6);
	fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
	check(fd >= 0);
	check_int(bind(fd, (struct sockaddr *)in6, sizeof(*in6)), 0);
	close(fd);
}

static void command(const char *text)
{
	check_int(system(text), 0);
}

static bool is_local(int family, const char *text, const char *interface)
{
	struct sockaddr_in6 in6 = {.sin6_family = AF_INET6, .sin6_scope_id = interface ? if_nametoindex(interface) : 0};
	struct sockaddr_in in = {.sin_family = AF_INET};

	check_int(inet_pton(family, text, family == AF_INET ? (void *)&in.sin_addr : (void *)&in6.sin6_addr), 1);
	return bnet_address_is_local(family == AF_INET ? (struct sockaddr *)&in : (struct sockaddr *)&in6);
}

/* Another host may have on eth1's link the address that this one has on eth0. */
static void a_link_local_address_is_local_on_its_own_link(void)
{
	struct sockaddr_in6 added = {.sin6_family = AF_INET6, .sin6_scope_id = if_nametoindex("eth0")};

	command("ip address add fe80::99/64 dev eth0 nodad");
	check_int(inet_pton(AF_INET6, "fe80::99", &added.sin6_addr), 1);
	await_local((struct sockaddr *)&added);
	check(is_local(AF_INET6, "fe80::99", NULL));
	check(!is_local(AF_INET6, "fe80::99", "eth1"));
}

static void addresses_that_come_and_go_are_known_at_once(void)
{
	check(!is_local(AF_INET, "10.1.2.3", NULL));
	command("ip address add 10.1.2.3/24 dev eth0 && ip address add 10.1.2.4/24 dev eth0");
	check(is_local(AF_INET, "10.1.2.3", NULL));
	check(is_local(AF_INET, "10.1.2.4", NULL));
	check(!is_local(AF_INET, "10.1.2.5", NULL));
	command("ip address del 10.1.2.4/24 dev eth0");
	check(!is_local(AF_INET, "10.1.2.4", NULL));
}

int main(void)
{
	if (unshare(CLONE_NEWNET)) {
		fprintf(stderr, "skipped: no network namespace: %s\n", strerror(errno));
		return SKIPPED;
	}
	for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++) {
		if (system(commands[i]) != 0) {
			fprintf(stderr, "skipped: `%s` fails here\n", commands[i]);
			return SKIPPED;
		}
	}
	await_devices(2);
	check(table.nics[0].ifindex != table.nics[1].ifindex);
	check_device(&table.nics[0]);
	check_device(&table.nics[1]);
	a_link_local_address_is_local_on_its_own_link();
	addresses_that_come_and_go_are_known_at_once();
	return 0;
}
