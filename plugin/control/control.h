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

#endif
