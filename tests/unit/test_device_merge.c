/* SPDX-License-Identifier: MIT
 *
 * Devices made of NICs: one for each, by BAGUA_NET_BOND, and merged by NCCL.
 */
#include "device/device.h"

#include <errno.h>
#include <stdio.h>

#include "check.h"

static struct bnet_device_table table;
static char err[512];

/* NICs eth0, eth1 … of 1000, 2000 … Mb/s, and one rejected interface. */
static void start(int nnics)
{
	memset(&table, 0, sizeof(table));
	table.nnics = nnics;
	for (int i = 0; i < nnics; i++) {
		struct bnet_nic *nic = &table.nics[i];

		snprintf(nic->name, sizeof(nic->name), "eth%d", i);
		snprintf(nic->address, sizeof(nic->address), "10.0.%d.1", i);
		snprintf(nic->pci_path, sizeof(nic->pci_path), "/sys/devices/pci%d", i);
		nic->speed_mbps = 1000 * (i + 1);
		nic->speed_known = i != 3;
		nic->guid = (uint64_t)i + 70;
	}
	table.nrejected = 1;
	snprintf(table.rejected[0].name, sizeof(table.rejected[0].name), "eth9");
	snprintf(table.rejected[0].reason, sizeof(table.rejected[0].reason), "no carrier");
	err[0] = '\0';
}

static int make(const char *bond)
{
	return bnet_devices_make(&table, bond, err, sizeof(err));
}

static void check_names(int count, const char *const *names)
{
	check_int(table.ndevices, count);
	for (int i = 0; i < count; i++)
		check_str(bnet_device_get(&table, i)->name, names[i]);
	check(!bnet_device_get(&table, count));
	check(!bnet_device_get(&table, -1));
}

#define NAMES(...) check_names(sizeof((const char *[]){__VA_ARGS__}) / sizeof(char *), (const char *[]){__VA_ARGS__})

static void test_one_each(void)
{
	const struct bnet_device *device;

	start(3);
	check_int(make(""), 0);
	NAMES("eth0", "eth1", "eth2");
	start(3);
	check_int(make("0"), 0);
	NAMES("eth0", "eth1", "eth2");
	device = bnet_device_get(&table, 1);
	check_int(device->nmembers, 1);
	check_int(device->nparts, 0);
	check(device->members[0] == &table.nics[1]);
	check_int(device->speed_mbps, 2000);
	check_int(device->guid, 71);
	check_str(device->address, "10.0.1.1");
	check_str(device->pci_path, "/sys/devices/pci1");
}

static void test_all_in_one(void)
{
	const struct bnet_device *device;

	start(3);
	check_int(make("1"), 0);
	NAMES("eth0+eth1+eth2");
	device = bnet_device_get(&table, 0);
	check_int(device->nmembers, 3);
	for (int i = 0; i < 3; i++)
		check(device->members[i] == &table.nics[i]);
	check_int(device->speed_mbps, 6000);
	check(device->speed_known);
	check_str(device->pci_path, "/sys/devices/pci0");

	start(4); /* the speed of one member is unknown */
	check_int(make("1"), 0);
	check(!bnet_device_get(&table, 0)->speed_known);
	start(1);
	check_int(make("1"), 0);
	NAMES("eth0");
}

/* The maximum number of names of maximum length fits without truncation. */
static void test_longest_name(void)
{
	start(BNET_MAX_NICS);
	for (int i = 0; i < BNET_MAX_NICS; i++)
		snprintf(table.nics[i].name, sizeof(table.nics[i].name), "fifteen-letter%c", 'a' + i);
	check_int(make("1"), 0);
	check_int(strlen(bnet_device_get(&table, 0)->name), BNET_DEVICE_NAME - 1);
	check_str(strrchr(bnet_device_get(&table, 0)->name, '+'), "+fifteen-letterp");
}

static void test_lists(void)
{
	start(4);
	check_int(make("eth2,eth1"), 0);
	NAMES("eth0", "eth2+eth1", "eth3");
	check(bnet_device_get(&table, 1)->members[0] == &table.nics[2]);
	check_int(bnet_device_get(&table, 1)->speed_mbps, 5000);
	start(3);
	check_int(make("eth1,eth1"), 0); /* duplicates are ignored */
	NAMES("eth0", "eth1", "eth2");
	check_int(bnet_device_get(&table, 1)->nmembers, 1);
	start(3);
	check_int(make("eth1"), 0);
	NAMES("eth0", "eth1", "eth2");
}

/* One line has the names and the reasons; otherwise the result is as without those names. */
static void test_missing_names(void)
{
	start(3);
	check_int(make("eth0,eth9,eth2"), -ENODEV);
	NAMES("eth0+eth2", "eth1");
	check(strstr(err, "BAGUA_NET_BOND") && strstr(err, "eth9") && strstr(err, "no carrier"));
	check(!strchr(err, '\n'));
	start(3);
	check_int(make("eth,eth11"), -ENODEV); /* prefixes do not match */
	NAMES("eth0", "eth1", "eth2");
	check_str(err,
		  "BAGUA_NET_BOND goes on without eth (no interface of that name has an address), eth11 (no interface of "
		  "that name has an address)");
}

static int merge(int nparts, const int *parts)
{
	return bnet_device_merge(&table, parts, nparts, true, err, sizeof(err));
}

#define MERGE(...) merge(sizeof((int[]){__VA_ARGS__}) / sizeof(int), (int[]){__VA_ARGS__})

static void test_merge(void)
{
	const struct bnet_device *first;

	start(4);
	check_int(make("eth0,eth1"), 0);
	NAMES("eth0+eth1", "eth2", "eth3");
	first = bnet_device_get(&table, 0);
	check_int(MERGE(1, 2), 3);
	check_int(MERGE(0, 2), 4);
	NAMES("eth0+eth1", "eth2", "eth3", "eth2+eth3", "eth0+eth1+eth3");
	check(bnet_device_get(&table, 0) == first); /* published devices do not move */
	check_int(bnet_device_get(&table, 4)->nparts, 2);
	check_int(bnet_device_get(&table, 4)->parts[0], 0);
	check_int(bnet_device_get(&table, 4)->parts[1], 2);
	check_int(bnet_device_get(&table, 4)->nmembers, 3);
	check_int(bnet_device_get(&table, 4)->speed_mbps, 7000);

	check_int(MERGE(1, 2), 3); /* the same parts: the same device */
	check_int(MERGE(2, 1), 5); /* another order: another device */
	check_int(MERGE(2), 2);    /* a single part: that device */
	check_int(table.ndevices, 6);
}

static void test_merge_errors(void)
{
	start(4);
	check_int(make(""), 0);
	check_int(MERGE(0, 4), -EINVAL);
	check(strstr(err, "device 4") && strstr(err, "0 to 3"));
	check_int(MERGE(-1, 0), -EINVAL);
	check(strstr(err, "device -1"));
	check_int(MERGE(1, 1), -EINVAL);
	check(strstr(err, "eth1"));
	check_int(merge(0, NULL), -EINVAL);
	check_int(MERGE(0, 1, 2, 3, 0, 1, 2, 3, 0), -EINVAL);
	check(strstr(err, "9 devices") && strstr(err, "1 to 8"));
	check_int(table.ndevices, 4);
}

/* NCCL cannot place a device that it made of interfaces without a PCI path. */
static void test_merge_virtual(void)
{
	start(3);
	table.nics[1].pci_path[0] = '\0';
	check_int(make(""), 0);
	check_int(MERGE(0, 1), -EOPNOTSUPP);
	check(strstr(err, "eth0+eth1") && strstr(err, "BAGUA_NET_BOND"));
	check_int(MERGE(1, 2), -EOPNOTSUPP);
	check_int(MERGE(1), 1);
	check_int(MERGE(0, 2), 3);
	check_int(bnet_device_merge(&table, (int[]){0, 1}, 2, false, err, sizeof(err)), 4);
	check_int(table.ndevices, 5);
}

/* A full table is an error without further effects. */
static void test_merge_until_full(void)
{
	int made = 16, rc = 0;

	start(BNET_MAX_NICS);
	check_int(make(""), 0);
	for (int i = 0; i < BNET_MAX_NICS && rc >= 0; i++)
		for (int j = 0; j < BNET_MAX_NICS && rc >= 0; j++) {
			if (i == j)
				continue;
			rc = MERGE(i, j);
			check(rc == made++ || rc == -ENOSPC);
		}
	check_int(rc, -ENOSPC);
	check(strstr(err, "no room"));
	check_int(table.ndevices, BNET_MAX_DEVICES);
	check_int(MERGE(0, 1), 16);
}

int main(void)
{
	test_one_each();
	test_all_in_one();
	test_longest_name();
	test_lists();
	test_missing_names();
	test_merge();
	test_merge_errors();
	test_merge_virtual();
	test_merge_until_full();
	return 0;
}
