/* SPDX-License-Identifier: MIT
 *
 * Connectors: outbound sockets, one for each stream of a sender, from connect through HELLO to WELCOME. The first
 * stream's connector makes the connection usable or fails it; the others only widen it. A connector tries one candidate
 * pair after the other (candidate.h), and at last any route that the routing table has. The control thread, or under
 * the engine's lock.
 */
#ifndef BNET_CONNECTOR_H
#define BNET_CONNECTOR_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/engine.h"
#include "handshake/joined.h"
#include "transport/conn.h"

/* trial: the connection does not need the stream, and its path waits for the result, so it ends soon without an answer.
 * -ENOMEM. A failure of the network is reported later: the connection fails, or has a stream less. */
int bnet_connector_start(struct bnet_conn *conn, int index, bool trial);
/* For one that takes the place of a broken stream, which is in its connection's list of them; see control/repair.h.
 * -ENOMEM. */
int bnet_connector_replace(struct bnet_conn *conn, struct bnet_stream *broken);
/* For one that takes the place of a silent stream if the peer answers, and ends if it does not, or if that one is heard
 * again before. One at a time. -ENOMEM. */
int bnet_connector_beside(struct bnet_conn *conn, const struct bnet_stream *silent);
/* For one that takes the place of a stream that has not its own pair, if that pair, which had failed, works by now. One
 * of a connection at a time. -ENOMEM. */
int bnet_connector_home(struct bnet_conn *conn, const struct bnet_stream *away);
/* True: the handshake is complete, and *joined tells which stream has joined its connection; the connector is gone. */
bool bnet_connector_ready(struct bnet_watch *watch, struct bnet_joined *joined);
/* The same for a caller that waits for the connection: goes on with its first stream's handshake, as far as the peer
 * has answered. */
bool bnet_connector_look(struct bnet_conn *conn, struct bnet_joined *joined);
void bnet_connectors_tick(uint64_t now);
void bnet_connectors_cancel(struct bnet_conn *conn);

#endif
