/* SPDX-License-Identifier: MIT
 *
 * Counts what this host's devices carry while a connection moves, and leaves out the pauses of its job: others may send
 * then, and take nothing from the connection. Under the engine's lock.
 */
#ifndef BNET_METER_H
#define BNET_METER_H

#include <stdint.h>

#include "device/device.h"
#include "device/traffic.h"
#include "transport/conn.h"

/* The counters of one of the engine's devices, and when they were looked at: now, unless that takes too long here. */
struct bnet_meter_look {
	uint64_t at_us;
	struct bnet_traffic traffic;
};
struct bnet_meter_look bnet_meter_look(const struct bnet_device *dev, uint64_t now_us);

/* For this receiver's peer, which asks when a window begins and when it ends, and says what a round trip takes: for how
 * long its bytes were seen to arrive, and what the device received in that time. They are counted from now on, for some
 * seconds. */
struct bnet_metered bnet_meter_read(struct bnet_conn *conn, uint32_t rtt_us);
/* Looks at the receivers whose peers have asked lately. The control thread. */
void bnet_meter_tick(uint64_t now_us);

#endif
