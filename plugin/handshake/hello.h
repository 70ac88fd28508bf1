/* SPDX-License-Identifier: MIT
 *
 * From HELLO to WELCOME, on a connected socket: who the stream is of, and what the peer says to it
 * (docs/dev/protocol.md). The control thread, or under the engine's lock.
 */
#ifndef BNET_HELLO_H
#define BNET_HELLO_H

#include "handshake/connector_state.h"
#include "handshake/joined.h"

/* 0, or a negative errno: -EAGAIN while the socket is not connected. */
int bnet_hello_send(struct bnet_connector *connector);
/* It was sent: the peer has its time limit from now on. */
void bnet_hello_said(struct bnet_connector *connector);
/* Reads what has come, no further than the WELCOME's end. True: the stream has joined its connection, *joined tells
 * which, and the connector is gone. */
bool bnet_hello_answer(struct bnet_connector *connector, uint64_t now, struct bnet_joined *joined);

#endif
