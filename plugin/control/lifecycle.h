/* SPDX-License-Identifier: MIT
 *
 * Beginnings and ends: of the process's engine, of its forks, and of connections and listen objects. Under the engine's
 * lock, but for the first function.
 */
#ifndef BNET_LIFECYCLE_H
#define BNET_LIFECYCLE_H

#include "handshake/acceptor.h"
#include "handshake/connector.h"
#include "transport/conn.h"

/* Reads the configuration and the devices, the first time. 0, or -errno after one line in the log. */
int bnet_lifecycle_configure(void);

/* A stream has joined its connection: its path learns of it, and the first one makes the connection ready. */
void bnet_lifecycle_joined(const struct bnet_joined *joined);
/* A connection that no other thread knows leaves its path and is freed. */
void bnet_lifecycle_free(struct bnet_conn *conn);
/* The end of a connection in any state: its connectors are cancelled, its sockets drain, its memory is freed. The
 * caller owns it, or no other thread knows it. */
void bnet_lifecycle_discard(struct bnet_conn *conn);
/* The same for a listen object, and for the connections that were not accepted from it. */
void bnet_lifecycle_discard_listen(struct bnet_listen *listen);

#endif
