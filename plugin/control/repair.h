/* SPDX-License-Identifier: MIT
 *
 * The repair of streams. At the sender, a stream that was reset, or counts as lost, is taken out of its connection with
 * the ledger of what it may not have delivered, and another one is opened. Its HELLO names the serial of the broken
 * one; the receiver answers how much of that has arrived; what has not goes again, as the same slices, on the new
 * stream, which holds nothing else: behind a message that is not posted they might wait for ever. What the receiver
 * does then is in transport/rx.h.
 *
 * The connection fails if the peer does not know it any more, if nothing listens there and no other stream is left, or
 * if none is left and nobody has answered for BAGUA_NET_KEEPALIVE. While a stream is left, it is tried again for ever.
 *
 * A receiver can only wait. While all that could bring something waits for repair, it asks its sender's host once a
 * second whether the connection is still there; it fails if not, or if nothing listens there any more. The control
 * thread.
 */
#ifndef BNET_REPAIR_H
#define BNET_REPAIR_H

#include "handshake/question.h"
#include "transport/conn.h"

/* Takes broken streams out, and opens others. The owner, under the engine's lock. */
void bnet_repair_begin(struct bnet_conn *conn);

/* A receiver asks, if it is time to. True: it waits for repair. Under the engine's lock. */
bool bnet_repair_ask(struct bnet_conn *conn);
/* … and has its answer. */
void bnet_repair_answered(const struct bnet_answer *answer);

#endif
