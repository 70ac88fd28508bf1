/* SPDX-License-Identifier: MIT
 *
 * A trial needs the lease of its device: there is at most one at a time, for all processes of the network namespace.
 * It is an abstract socket's name: the kernel frees it when its process ends, and no file is left. Any thread; no
 * state.
 */
#ifndef BNET_LEASE_H
#define BNET_LEASE_H

#include "device/device.h"

/* A descriptor that holds the lease until bnet_socket_close; -EADDRINUSE: somebody else has it; another -errno: there
 * are no leases here. */
int bnet_lease_take(const struct bnet_device *dev);

#endif
