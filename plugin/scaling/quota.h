/* SPDX-License-Identifier: MIT
 *
 * A quota of streams for each device of a host, divided among the processes and their connections, so that 63 peers do
 * not mean 64 streams for each of them. The control thread, under the engine's lock; bnet_quota_per_connection is pure.
 */
#ifndef BNET_QUOTA_H
#define BNET_QUOTA_H

#include <stdint.h>

#include "device/device.h"

/* Streams that a device's connections may have together, beyond one for each. */
#define BNET_QUOTA 256

/* The most streams of a connection where a process of so many has so many connections in use. At least 1. */
int bnet_quota_per_connection(int processes, int connections);

/* A connection of this device is being made: other processes count this one from here on, until bnet_quota_end. */
void bnet_quota_join(const struct bnet_device *dev);
/* Once a second: limits the paths to their part of it. */
void bnet_quota_tick(uint64_t now_us);
/* Withdraws what other processes see of this one: when the control thread ends, and in a forked child. */
void bnet_quota_end(void);

#endif
