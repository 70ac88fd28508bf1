/* SPDX-License-Identifier: MIT
 *
 * Active connections: those on which something was posted and which were not found idle since. The control thread looks
 * at no others, so that a connection costs nothing while it is idle. Under the engine's lock.
 */
#ifndef BNET_ACTIVE_H
#define BNET_ACTIVE_H

#include <stdbool.h>

#include "transport/conn.h"

/* Takes in what was posted on since the last time. Gives way if that is much. */
void bnet_active_collect(void);
bool bnet_active_any(void);
/* A connection that nobody posts on any more is about to be freed. Gives way in the same way. */
void bnet_active_forget(struct bnet_conn *conn);

/* Once a tick: the control thread moves the data of the active connections that their caller has not polled since the
 * last look at them. It releases the lock meanwhile. That may take several calls, since other work waits: so many are
 * `left`; 0 begins anew. True: something may have moved since the last look. */
bool bnet_active_look_after(int *left);

#endif
