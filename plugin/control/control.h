/* SPDX-License-Identifier: MIT
 *
 * The control thread: one loop that sleeps in epoll. It completes handshakes, opens and drains sockets, moves data for
 * connections whose caller is away, fits send buffers to their paths, and scales streams. It holds the engine's lock
 * except while it sleeps and while it moves or discards data. It starts with the first listen or connect and ends when
 * the engine's lists are empty.
 */
#ifndef BNET_CONTROL_H
#define BNET_CONTROL_H

/* Under the engine's lock. The thread runs, all signals blocked, when this returns 0; else -errno. */
int bnet_control_start(void);
/* Under the engine's lock, by a caller that waits for a connection: takes the steps of handshakes for which something
 * has arrived, anybody's. While callers do, the thread leaves these to them. Never waits. */
void bnet_control_help(void);
/* Under the engine's lock: something was begun that the thread looks after. */
void bnet_control_notice(void);

#endif
