/* SPDX-License-Identifier: MIT
 *
 * Which of many receivers have something to read. Each fruitless test of a receive costs a system call: a rank that
 * polls hundreds of connections makes hundreds of them before anything moves. Where many are active, their descriptors
 * are in one edge-triggered epoll set, which is asked once a round of tests; each has a flag that says which edges
 * came. A receiver whose flag is down makes no pass, unless it still holds something that needs none.
 *
 * A flag is raised by any thread and taken by the connection's owner, before it reads. Events name flags, not
 * connections: an event that comes late raises the flag of another one, whose owner then reads in vain, always if it
 * says that the end is near.
 */
#ifndef BNET_READINESS_H
#define BNET_READINESS_H

#include <stdbool.h>
#include <stdint.h>

/* A connection's place in the set. Its owner's; written under the engine's lock as well. */
struct bnet_ready {
	int flag;       /* from 1 on; 0: it is not in the set */
	uint32_t asked; /* how often the set had been asked when this connection was looked at last */
};

/* A receiver's descriptor, of a lone stream or of its own epoll set, is in the set from here on, if there is room. The
 * owner, under the engine's lock. */
void bnet_readiness_join(struct bnet_ready *ready, int fd);
/* … and another one of it. 0 or -errno. Under the engine's lock. */
int bnet_readiness_add(const struct bnet_ready *ready, int fd);
/* One that is in it is read directly from here on; also before its descriptors are closed. fds: those that may be in
 * the set; -1: none. The owner, under the engine's lock. */
void bnet_readiness_leave(struct bnet_ready *ready, const int fds[2]);

/* Of one that is in the set: epoll's events since the last time, 0: none. asked: the kernel was asked for that. The
 * owner. */
uint32_t bnet_readiness_take(struct bnet_ready *ready, bool *asked);
/* Asks the kernel, for the sake of those whose callers do not. Any thread. */
void bnet_readiness_ask(void);

/* When nobody is in it any more. Under the engine's lock. */
void bnet_readiness_end(void);
/* In a forked child. */
void bnet_readiness_forget(void);

#endif
