/* SPDX-License-Identifier: MIT
 *
 * The interfaces of this machine. Takes some system calls and keeps no state: any thread.
 */
#ifndef BNET_SCAN_H
#define BNET_SCAN_H

#include <stdbool.h>
#include <sys/socket.h>

#include "device/device.h"

/* Fills the table's NICs from the machine; it has no device after that. ifname: NCCL_SOCKET_IFNAME or NULL; family:
 * NCCL_SOCKET_FAMILY ("AF_INET", "AF_INET6") or NULL. 0, or -errno: -ENODEV when nothing is left (the rejected rows say
 * why), -EINVAL for an unknown family. */
int bnet_device_scan(struct bnet_device_table *table, const char *ifname, const char *family);

/* Is this address one of this machine's own (any interface)? Then the peer is local. */
bool bnet_address_is_local(const struct sockaddr *addr);

#endif
