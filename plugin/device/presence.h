/* SPDX-License-Identifier: MIT
 *
 * How many processes use a device: each has one of a fixed number of abstract sockets' names, which the kernel frees
 * with its process. It reaches as far as the network namespace does. Any thread; no state.
 */
#ifndef BNET_PRESENCE_H
#define BNET_PRESENCE_H

#include "device/device.h"

#define BNET_MAX_PRESENT 64

/* A descriptor by which this process counts until bnet_socket_close; -errno: there is no name left, or there are none
 * here. */
int bnet_presence_announce(const struct bnet_device *dev);
/* Processes that have announced themselves, at most BNET_MAX_PRESENT. */
int bnet_presence_count(const struct bnet_device *dev);

#endif
