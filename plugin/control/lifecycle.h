/* SPDX-License-Identifier: MIT
 *
 * Beginnings and ends: of the process's engine, of its forks, and of connections and listen objects.
 */
#ifndef BNET_LIFECYCLE_H
#define BNET_LIFECYCLE_H

#include "handshake/acceptor.h"
#include "handshake/connector.h"
#include "transport/conn.h"

/* Reads the configuration and the devices, the first time. 0, or -errno after one line in the log. */
int bnet_lifecycle_configure(void);

/* Under the lock. A stream has joined its connection: its path learns of it, and the first one makes the connection
 * ready. */
void bnet_lifecycle_joined(const struct bnet_joined *joined);
/* Under the lock. A connection that no other thread knows leaves its path and is freed. */
void bnet_lifecycle_free(struct bnet_conn *conn);

/* The following are not called under the lock: they take it, and wait and read without it. */

/* The end of a connection in any state: its connectors are cancelled, its sockets drain, its memory is freed. The
 * caller owns it, or it was not handed out. */
void bnet_lifecycle_discard(struct bnet_conn *conn);
/* Of one that was handed out. A sender that owes something ends later, after a repair if need be; the caller does not
 * wait for that. */
void bnet_lifecycle_close(struct bnet_conn *conn);
/* Ends those that owe nothing any more, have failed, or have had their time. The control thread. */
void bnet_lifecycle_end_closed(void);
/* The same for a listen object, and for the connections that were not accepted from it. */
void bnet_lifecycle_discard_listen(struct bnet_listen *listen);
/* The same for all listen objects of a communicator, and for its connections that were not handed out. */
void bnet_lifecycle_discard_context(const void *context);
/* The same for attempts that nobody has asked for since so many looks of the control thread, which makes them every ten
 * seconds: those of a communicator that was aborted. Before v11 nothing else tells. A process that was stopped
 * meanwhile has not been looked at. */
void bnet_lifecycle_discard_abandoned(void);

#endif
