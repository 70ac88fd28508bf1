/* SPDX-License-Identifier: MIT
 *
 * Listeners, one socket for each NIC, by its number in the table of devices: who is to accept from one, the control
 * thread or callers, and when nobody can. Under the engine's lock.
 */
#ifndef BNET_LISTENER_H
#define BNET_LISTENER_H

#include <stdbool.h>
#include <stdint.h>

#include "device/device.h"

int bnet_listener_number(const struct bnet_nic *nic);
/* Listens there, unless it does. 0 or -errno, with a warning. */
int bnet_listener_open(int nic);

/* The control thread found no descriptor for a connection that waits. */
void bnet_listener_pause(int nic, int error);
/* -errno if for some seconds, of those since then, no connection could be accepted on one of the device's; else 0. */
int bnet_listeners_error(const struct bnet_device *dev, uint64_t since_ms);

/* A caller looks. Callers that do so all the time accept instead of the control thread, until none has looked for
 * BNET_TICK_MS. */
void bnet_listener_look(int nic);
/* A caller leaves what waits there to the control thread. */
void bnet_listener_leave(int nic);

/* Some listener is not watched for now: the next ticks see to it. */
bool bnet_listeners_wait(void);
void bnet_listeners_tick(uint64_t now);

#endif
