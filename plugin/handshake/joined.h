/* SPDX-License-Identifier: MIT
 *
 * A completed handshake of a sender's stream.
 */
#ifndef BNET_JOINED_H
#define BNET_JOINED_H

#include <stdbool.h>

struct bnet_conn;
struct bnet_stream;

struct bnet_joined {
	struct bnet_conn *conn;
	struct bnet_stream *stream;
	bool first; /* the connection is ready: its peer's addresses are known */
	int most;   /* streams that the peer takes */
};

#endif
