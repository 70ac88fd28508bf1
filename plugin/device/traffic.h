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

/* Asks the kernel, which takes tens of microseconds: it shows all interfaces of the host. */
struct bnet_traffic bnet_device_traffic(const struct bnet_device *dev);
/* The same of so many. */
void bnet_devices_traffic(const struct bnet_device *devices, int count, struct bnet_traffic *traffic);

#endif
