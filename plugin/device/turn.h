/* SPDX-License-Identifier: MIT
 *
 * A turn: at most one trial at a time on a device, of all processes of its network namespace. It is an abstract socket's
 * name: the kernel frees it when its process ends, and no file is left. Any thread; no state.
 */
#ifndef BNET_TURN_H
#define BNET_TURN_H

#include "device/device.h"

/* A descriptor that holds the turn until bnet_socket_close; -EADDRINUSE: somebody else has it; another -errno: there
 * are no turns here. */
int bnet_turn_take(const struct bnet_device *dev);

#endif
