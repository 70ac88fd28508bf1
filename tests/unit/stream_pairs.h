/* SPDX-License-Identifier: MIT
 *
 * For tests of one end of a connection: its streams are socket pairs, whose other ends the test has.
 */
#ifndef BNET_STREAM_PAIRS_H
#define BNET_STREAM_PAIRS_H

#include <sys/socket.h>

#include "check.h"
#include "transport/conn.h"

/* A new connection with `count` streams; peers: their other ends. */
static inline struct bnet_conn *open_stream_pairs(bool sender, int *peers, int count)
{
	static struct bnet_config config = {.min_chunksize = 4096, .max_chunksize = 8192};
	static struct bnet_device device = {.name = "unit", .address = ""};
	struct bnet_conn *conn = bnet_conn_new(sender, &device, &config, false);

	check(conn != NULL);
	for (int i = 0; i < count; i++) {
		int pair[2];

		check_int(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair), 0);
		check_int(bnet_conn_add_stream(conn, pair[0], NULL), 0);
		peers[i] = pair[1];
	}
	return conn;
}

#endif
