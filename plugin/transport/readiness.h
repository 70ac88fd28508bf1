/* SPDX-License-Identifier: MIT
 *
 * Which of many receivers have something to read. Each fruitless test of a receive costs a system call: a rank that polls
 * hundreds of connections makes hundreds of them before anything moves. Where many are active, their descriptors are in
 * one edge-triggered epoll set, which is asked once a round of tests; each has a flag that says which edges came. A
 * receiver whose flag is down makes no pass, unless it still holds something that needs none.
 *
 * A flag is raised by any thread and taken by the connection's owner, before it reads. Events name flags, not
 * connections: an event that comes late raises the flag of another one, whose owner then reads in vain.
 */
#ifndef BNET_READINESS_H
#define BNET_READINESS_H

#include <stdint.h>

#include "transport/conn.h"

/* A receiver's descriptors are in the set from here on, if there is room. The owner, under the engine's lock. */
void bnet_readiness_join(struct bnet_conn *conn);
/* … and no more: it is read directly. The same. Also before its descriptors are closed. */
void bnet_readiness_leave(struct bnet_conn *conn);
/* One that is in the set has got an epoll set of its own. 0 or -errno. Under the engine's lock. */
int bnet_readiness_nest(const struct bnet_conn *conn);

/* Of one that is in the set: epoll's events since the last time, 0: none. The owner. */
uint32_t bnet_readiness_take(struct bnet_conn *conn);
/* Asks the kernel, for the sake of those whose callers do not. Any thread. */
void bnet_readiness_ask(void);

/* When nobody is in it any more. Under the engine's lock. */
void bnet_readiness_end(void);
/* In a forked child. */
void bnet_readiness_forget(void);

#endif
