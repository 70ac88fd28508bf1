/* SPDX-License-Identifier: MIT
 *
 * A hang says so: where messages are posted and nothing moves, the log names the connection and what it waits for. The
 * control thread, under the engine's lock.
 */
#ifndef BNET_WATCHDOG_H
#define BNET_WATCHDOG_H

#include <stdint.h>

#include "transport/conn.h"

/* The connection becomes active: meanwhile it was not looked at. */
void bnet_watchdog_begin(struct bnet_conn *conn, uint64_t now_us);
/* For how long connections have had something posted, and for how long nothing has moved (struct bnet_seen). On each
 * tick while connections are active. */
void bnet_watchdog_sample(uint64_t now_us);
/* One line after 20 s, and another one each time the wait has doubled; a new wait is said ten minutes after the last
 * line at the soonest, unless it has lasted for five minutes. */
void bnet_watchdog_look(void);

#endif
