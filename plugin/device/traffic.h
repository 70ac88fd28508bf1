/* SPDX-License-Identifier: MIT
 *
 * What a device has carried in all, for whichever process: the kernel's own counters of its interfaces. Any thread; no
 * state.
 */
#ifndef BNET_TRAFFIC_H
#define BNET_TRAFFIC_H

#include <stdint.h>

#include "device/device.h"

struct bnet_traffic {
	uint64_t sent, received; /* bytes of all members since they came up; 0: not known */
};

/* Asks the kernel: some microseconds for each member. */
struct bnet_traffic bnet_device_traffic(const struct bnet_device *dev);

#endif
