/* SPDX-License-Identifier: MIT
 *
 * What a sender keeps of the slices that it has written: they stay in their stream's ledger (ledger.h) until the peer's
 * kernel has acknowledged them, for a stream that takes its place. A request whose slices are held so long is not done,
 * unless a copy has been made meanwhile. The connection's owner only.
 */
#ifndef BNET_RETENTION_H
#define BNET_RETENTION_H

#include <stdbool.h>

#include "transport/conn.h"

/* Room for one more slice, if acknowledgements make some. */
bool bnet_retention_make_room(struct bnet_conn *conn, struct bnet_stream *stream);
/* The slice that was just written whole. There must be room. */
void bnet_retention_keep(struct bnet_conn *conn, struct bnet_stream *stream);
/* Lets go what was acknowledged. */
void bnet_retention_release(struct bnet_conn *conn, struct bnet_stream *stream);
/* Nothing could be written in this pass: lets go what was acknowledged, and copies what callers may wait for. False: no
 * slice keeps its request. */
bool bnet_retention_wait(struct bnet_conn *conn, int streams);

/* Of a stream that was taken out: its ledger holds all that may not have arrived. That counts as outstanding until it
 * was sent again, though its sends may be done and nobody asks for them. -ENOMEM. */
int bnet_retention_bury(struct bnet_conn *conn, struct bnet_stream *stream);
/* Of the stream that has taken its place: the receiver has said how much of it has arrived. */
void bnet_retention_settle(struct bnet_conn *conn, struct bnet_stream *stream);

#endif
