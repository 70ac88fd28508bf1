/* SPDX-License-Identifier: MIT
 *
 * The interfaces of this machine. Makes blocking system calls and keeps no state but what is preferred: any thread.
 */
#ifndef BNET_SCAN_H
#define BNET_SCAN_H

#include "device/device.h"

/* What chooses interfaces. NULL: not set. */
struct bnet_choice {
	const char *ifname;     /* NCCL_SOCKET_IFNAME */
	const char *family;     /* NCCL_SOCKET_FAMILY: "AF_INET", "AF_INET6" */
	const char *prefixes;   /* BAGUA_NET_ADDRESS_PREFIX */
	const char *rendezvous; /* as in device/route.h */
};

/* Fills the table with this machine's NICs and leaves it without devices. 0, or -errno: -ENODEV if no NIC is selected
 * (the rejected rows have the reasons), -EINVAL for an unknown family. */
int bnet_device_scan(struct bnet_device_table *table, const struct bnet_choice *choice);
/* The same with the variables of this process. A BAGUA_NET_ADDRESS_PREFIX that is refused counts as not set. */
int bnet_device_scan_here(struct bnet_device_table *table);
/* What counts as NCCL_SOCKET_IFNAME where that is not set; before the first scan. The string must stay. */
void bnet_device_prefer(const char *ifname);
/* NCCL_SOCKET_IFNAME, or what counts as it; NULL: neither. */
const char *bnet_device_ifname(void);

#endif
