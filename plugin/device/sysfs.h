/* SPDX-License-Identifier: MIT
 *
 * Attributes of an interface in sysfs. root is BNET_SYSFS_NET or a copy of such a tree. Any thread; no state.
 */
#ifndef BNET_SYSFS_H
#define BNET_SYSFS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define BNET_SYSFS_NET "/sys/class/net"

/* Does sysfs show this interface, rather than its namesake in another network namespace? */
bool bnet_sysfs_has(const char *root, const char *name, int ifindex);
/* Mb/s; 0: unknown. The devices below a bond, VLAN or bridge take precedence over its own attribute; virtual ones there
 * have none. */
int bnet_sysfs_speed(const char *root, const char *name);
bool bnet_sysfs_is_bridge_port(const char *root, const char *name);
/* The PCI device's directory; "" if there is no PCI device. */
void bnet_sysfs_pci_path(const char *root, const char *name, char *path, size_t size);
/* -1: unknown. */
int bnet_sysfs_numa_node(const char *root, const char *name);
/* The same for all functions of one PCI device of this host; without a PCI device, unique to this interface. */
uint64_t bnet_sysfs_guid(const char *root, const char *name, const char *pci_path);

#endif
