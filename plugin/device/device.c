/* SPDX-License-Identifier: MIT
 *
 * Makes devices of NICs: one for each NIC, or one for several, as BAGUA_NET_BOND or NCCL asks. No system call; one
 * thread at a time for each table.
 */
#include "device/device.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

static int count_devices(const struct bnet_device_table *table)
{
	return atomic_load_explicit(&table->ndevices, memory_order_acquire);
}

const struct bnet_device *bnet_device_get(const struct bnet_device_table *table, int dev)
{
	return dev < 0 || dev >= count_devices(table) ? NULL : &table->devices[dev];
}

static bool has_member(const struct bnet_device *device, const struct bnet_nic *nic)
{
	for (int i = 0; i < device->nmembers; i++)
		if (device->members[i] == nic)
			return true;
	return false;
}

static void copy_from_first(struct bnet_device *device, const struct bnet_nic *first)
{
	device->address = first->address;
	device->pci_path = first->pci_path;
	device->guid = first->guid;
	device->speed_known = true;
}

static void add_member(struct bnet_device *device, const struct bnet_nic *nic)
{
	size_t used = strlen(device->name);

	if (device->nmembers == 0)
		copy_from_first(device, nic);
	snprintf(device->name + used, sizeof(device->name) - used, "%s%s", used ? "+" : "", nic->name);
	device->speed_mbps += nic->speed_mbps;
	device->speed_known &= nic->speed_known;
	device->members[device->nmembers++] = nic;
}

/* The slot of the next device, invisible to readers until it is published. NULL: the table is full. */
static struct bnet_device *next_device(struct bnet_device_table *table)
{
	int n = count_devices(table);

	if (n == BNET_MAX_DEVICES)
		return NULL;
	memset(&table->devices[n], 0, sizeof(table->devices[n]));
	return &table->devices[n];
}

static int publish(struct bnet_device_table *table)
{
	return atomic_fetch_add_explicit(&table->ndevices, 1, memory_order_release);
}

/* ---- BAGUA_NET_BOND ---- */

static const struct bnet_nic *find_nic(const struct bnet_device_table *table, const char *name, size_t length)
{
	for (int i = 0; i < table->nnics; i++)
		if (strlen(table->nics[i].name) == length && memcmp(table->nics[i].name, name, length) == 0)
			return &table->nics[i];
	return NULL;
}

static const char *rejection_reason(const struct bnet_device_table *table, const char *name, size_t length)
{
	for (int i = 0; i < table->nrejected; i++)
		if (strlen(table->rejected[i].name) == length && memcmp(table->rejected[i].name, name, length) == 0)
			return table->rejected[i].reason;
	return "no interface of that name has an address";
}

/* Adds to the line in err, which names all that are left out. */
static void leave_out(const struct bnet_device_table *table, const char *name, size_t length, char *err,
		      size_t err_size)
{
	size_t used = strlen(err);

	snprintf(err + used, err_size - used, "%s%.*s (%s)", used ? ", " : "BAGUA_NET_BOND goes on without ",
		 (int)length, name, rejection_reason(table, name, length));
}

static int collect_named(const struct bnet_device_table *table, const char *list, struct bnet_device *bond, char *err,
			 size_t err_size)
{
	int rc = 0;

	err[0] = '\0';
	for (const char *name = list; *name;) {
		size_t length = strcspn(name, ",");
		const struct bnet_nic *nic = find_nic(table, name, length);

		if (nic && !has_member(bond, nic))
			add_member(bond, nic);
		if (!nic) {
			rc = -ENODEV;
			leave_out(table, name, length, err, err_size);
		}
		name += length;
		name += *name == ',';
	}
	return rc;
}

static int collect_bond(const struct bnet_device_table *table, const char *text, struct bnet_device *bond, char *err,
			size_t err_size)
{
	if (!text[0] || strcmp(text, "0") == 0)
		return 0;
	if (strcmp(text, "1") != 0)
		return collect_named(table, text, bond, err, err_size);
	for (int i = 0; i < table->nnics; i++)
		add_member(bond, &table->nics[i]);
	return 0;
}

int bnet_devices_make(struct bnet_device_table *table, const char *bond, char *err, size_t err_size)
{
	struct bnet_device combined = {0};
	bool placed = false;
	int rc = collect_bond(table, bond, &combined, err, err_size);

	/* The bond takes the position of its first NIC in the table. */
	for (int i = 0; i < table->nnics; i++) {
		bool is_member = has_member(&combined, &table->nics[i]);

		if (is_member && placed)
			continue;
		if (is_member)
			*next_device(table) = combined;
		else
			add_member(next_device(table), &table->nics[i]);
		placed |= is_member;
		publish(table);
	}
	return rc;
}

/* ---- NCCL's makeVDevice ---- */

static int find_merged(const struct bnet_device_table *table, const int *parts, int nparts)
{
	if (nparts == 1)
		return parts[0];
	for (int i = 0; i < count_devices(table); i++) {
		const struct bnet_device *device = &table->devices[i];

		if (device->nparts == nparts && memcmp(device->parts, parts, (size_t)nparts * sizeof(*parts)) == 0)
			return i;
	}
	return -1;
}

static int add_part(const struct bnet_device_table *table, struct bnet_device *device, int part, char *err,
		    size_t err_size)
{
	const struct bnet_device *source = bnet_device_get(table, part);

	if (!source) {
		snprintf(err, err_size, "asked to merge device %d; there are only 0 to %d", part,
			 count_devices(table) - 1);
		return -EINVAL;
	}
	for (int i = 0; i < source->nmembers; i++) {
		if (has_member(device, source->members[i])) {
			snprintf(err, err_size, "asked to merge devices that have %s in common",
				 source->members[i]->name);
			return -EINVAL;
		}
		add_member(device, source->members[i]);
	}
	device->parts[device->nparts++] = part;
	return 0;
}

/* From 2.27 on (net API v10) NCCL hangs a device that it merged of virtual interfaces into its topology at a place
 * where it does not look for devices (ncclTopoGetVNicParent and ncclTopoAddNic in src/graph/topo.cc), and the job has
 * no network. */
static bool all_on_pci(const struct bnet_device *device)
{
	for (int i = 0; i < device->nmembers; i++) {
		if (!device->members[i]->pci_path[0])
			return false;
	}
	return true;
}

int bnet_device_merge(struct bnet_device_table *table, const int *parts, int nparts, bool pci_only, char *err,
		      size_t err_size)
{
	struct bnet_device merged = {0}, *place;
	int rc = 0, found;

	if (nparts < 1 || nparts > BNET_MAX_PARTS) {
		snprintf(err, err_size, "asked to merge %d devices into one; it may be 1 to %d", nparts,
			 BNET_MAX_PARTS);
		return -EINVAL;
	}
	for (int i = 0; i < nparts && rc == 0; i++)
		rc = add_part(table, &merged, parts[i], err, err_size);
	if (rc < 0)
		return rc;
	if (pci_only && nparts > 1 && !all_on_pci(&merged)) {
		snprintf(err, err_size,
			 "%s are not merged: NCCL can place only PCI devices. BAGUA_NET_BOND makes one device of them",
			 merged.name);
		return -EOPNOTSUPP;
	}
	found = find_merged(table, parts, nparts);
	if (found >= 0)
		return found;
	place = next_device(table);
	if (!place) {
		snprintf(err, err_size, "no room for device %s: there are %d", merged.name, BNET_MAX_DEVICES);
		return -ENOSPC;
	}
	*place = merged;
	return publish(table);
}
