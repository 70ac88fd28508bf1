/* SPDX-License-Identifier: MIT
 *
 * Closing sockets. Closing one that holds unread bytes resets it, and a reset destroys what the peer has not read yet.
 * So a socket drains: it is shut for writing, then read until the peer has closed it too or has acknowledged
 * everything, and only then closed. All drains that overlap share one second; a close after that still delivers what
 * was sent, unless the peer is gone. Under the engine's lock.
 */
#ifndef BNET_CLOSE_H
#define BNET_CLOSE_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/engine.h"
#include "transport/conn.h"

/* Says CLOSE if nothing is outstanding, ends the sending direction of a connection's sockets, and discards what has
 * arrived, which takes long where much has. Not under the lock; the caller owns the connection, or no other thread
 * knows it. */
void bnet_drain_prepare(struct bnet_conn *conn);
/* Takes the sockets after that. */
void bnet_drain_start(struct bnet_conn *conn);
/* Takes one socket that has left its connection. */
void bnet_drain_socket(int fd, bool sender);
/* The control thread only; these release the lock meanwhile. */
void bnet_drain_ready(struct bnet_watch *watch);
void bnet_drains_tick(uint64_t now);
/* The time of all closes that overlap begins, unless it has. */
void bnet_drain_begin(void);
/* Does a drain still hold bytes that were reported as sent? */
bool bnet_drains_matter(void);

#endif
