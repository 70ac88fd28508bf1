/* SPDX-License-Identifier: MIT
 *
 * A scan of this machine, in C and as Python reads it.
 */
#include "bagua_net.h"
#include "check.h"
#include "device/local.h"
#include "device/scan.h"

#include <errno.h>

static struct bnet_device_table table;

static void test_scan_loopback(void)
{
	check_int(bnet_device_scan(&table, &(struct bnet_choice){.ifname = "=lo", .family = "AF_INET"}), 0);
	check_int(table.nnics, 1);
	check_str(table.nics[0].name, "lo");
	check_int(table.nics[0].addr.ss_family, AF_INET);
	check_int(table.nics[0].ifindex, if_nametoindex("lo"));
	check(!table.nics[0].speed_known);
	check_int(table.nics[0].speed_mbps, BNET_DEFAULT_SPEED_MBPS);
	check_int(table.nics[0].numa_node, -1);
	check_str(table.nics[0].pci_path, "");
	check(table.nics[0].mtu > 0);
}

static void test_scan_nothing(void)
{
	check_int(bnet_device_scan(&table, &(struct bnet_choice){.ifname = "=no-such-if"}), -ENODEV);
	check_int(table.nnics, 0);
	check(table.nrejected > 0);
	for (int i = 0; i < table.nrejected; i++)
		check_str(table.rejected[i].reason, "not selected by NCCL_SOCKET_IFNAME==no-such-if");
}

static void test_scan_family(void)
{
	check_int(bnet_device_scan(&table, &(struct bnet_choice){.family = "AF_UNIX"}), -EINVAL);
	check_int(table.nnics + table.nrejected, 0);
}

/* Every machine has 127.0.0.1, and none has an address of 203.0.113.0/24, which is for documents. */
static void test_scan_prefix(void)
{
	check_int(bnet_device_scan(&table, &(struct bnet_choice){.prefixes = "203.0.113.0/24,127.0.0.0/8"}), 0);
	check_int(table.nnics, 1);
	check_str(table.nics[0].name, "lo");
	check_str(table.nics[0].address, "127.0.0.1");
	check_int(bnet_device_scan(&table, &(struct bnet_choice){.prefixes = "203.0.113.0/24"}), -ENODEV);
	for (int i = 0; i < table.nrejected; i++) {
		if (strcmp(table.rejected[i].name, "lo") != 0)
			continue;
		check_str(table.rejected[i].reason, "no address in BAGUA_NET_ADDRESS_PREFIX=203.0.113.0/24");
		check_str(table.rejected[i].address, "127.0.0.1");
	}
}

/* Each interface appears once, as a NIC or as rejected. */
static void test_scan_all(void)
{
	const char *seen[BNET_MAX_NICS + BNET_MAX_INTERFACES];
	int count = 0;

	check_int(bnet_device_scan(&table, &(struct bnet_choice){0}), 0);
	for (int i = 0; i < table.nnics; i++) {
		seen[count++] = table.nics[i].name;
		check(bnet_address_is_local((struct sockaddr *)&table.nics[i].addr));
		check(table.nics[i].speed_mbps > 0);
	}
	for (int i = 0; i < table.nrejected; i++) {
		seen[count++] = table.rejected[i].name;
		check(table.rejected[i].reason[0]);
	}
	for (int i = 0; i < count; i++)
		for (int j = 0; j < i; j++)
			check(strcmp(seen[i], seen[j]) != 0);
}

static void test_interfaces_for_python(void)
{
	bnet_interface_t row;
	int count;

	setenv("NCCL_SOCKET_IFNAME", "=lo", 1);
	setenv("NCCL_SOCKET_FAMILY", "AF_INET", 1);
	count = bnet_interface_scan();
	check(count >= 1);
	check_int(bnet_interface_get(0, &row), 0);
	check_str(row.name, "lo");
	check_str(row.address, "127.0.0.1");
	check(row.reason == NULL);
	check(row.pci_path == NULL);
	for (int i = 1; i < count; i++) {
		check_int(bnet_interface_get(i, &row), 0);
		check(row.reason != NULL);
	}
	check_int(bnet_interface_get(count, &row), -EINVAL);
	check_int(bnet_interface_get(-1, &row), -EINVAL);
	setenv("BAGUA_NET_ADDRESS_PREFIX", "203.0.113.1", 1);
	check_int(bnet_interface_scan(), count);
	check_int(bnet_interface_get(0, &row), 0);
	check(row.reason != NULL);
	unsetenv("BAGUA_NET_ADDRESS_PREFIX");
	/* Without a device the rows have the reasons. */
	setenv("NCCL_SOCKET_IFNAME", "=no-such-if", 1);
	check_int(bnet_interface_scan(), count);
	setenv("NCCL_SOCKET_FAMILY", "AF_UNIX", 1);
	check_int(bnet_interface_scan(), -EINVAL);
	check_int(bnet_abi_version(), 9);
	check_str(bnet_version(), BNET_VERSION);
}

int main(void)
{
	test_scan_loopback();
	test_scan_nothing();
	test_scan_family();
	test_scan_prefix();
	test_scan_all();
	test_interfaces_for_python();
	return 0;
}
