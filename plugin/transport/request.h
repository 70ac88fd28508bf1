/* SPDX-License-Identifier: MIT
 *
 * Requests: posting, finding and completing them. A request lives in its connection's ring (conn.h) from the post to
 * the test that completes it.
 */
#ifndef BNET_REQUEST_H
#define BNET_REQUEST_H

#include <stdint.h>

#include "transport/conn.h"

/* A message of at most this size that is posted alone is moved by its caller: a hand-over would take longer. */
#define BNET_LIGHT 32768

/* The caller's thread. NULL: no slot is free; ask again later. The caller wakes whoever has to move the data. */
struct bnet_request *bnet_request_post(struct bnet_conn *conn, void *data, uint64_t size);
/* The caller's thread, after `done`: returns the size and frees the slot. */
uint64_t bnet_request_take(struct bnet_request *request);

/* The owner. The slot of a message number; NULL if that message is not posted, or is complete, even while the poster
 * reuses its slot. */
struct bnet_request *bnet_request_find(struct bnet_conn *conn, uint64_t message);
/* The owner. Credits sent bytes (1 for an empty message); the last credit completes the request. */
void bnet_request_sent(struct bnet_conn *conn, struct bnet_request *request, uint64_t bytes);
/* The owner. The last slice of a receive has arrived. */
void bnet_request_received(struct bnet_conn *conn, struct bnet_request *request);

#endif
