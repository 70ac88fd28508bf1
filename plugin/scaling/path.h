/* SPDX-License-Identifier: MIT
 *
 * A path: what all connections from one device to one address have in common. The control thread reads their streams
 * every few milliseconds, fits their send buffers, and decides how many streams each connection uses.
 * Everything here runs under the engine's lock.
 */
#ifndef BNET_PATH_H
#define BNET_PATH_H

#include <stdbool.h>
#include <stdint.h>

#include "base/list.h"
#include "device/device.h"
#include "handshake/candidate.h"
#include "scaling/limited.h"
#include "scaling/scaler.h"
#include "transport/conn.h"

struct bnet_path {
	struct bnet_node node; /* in the engine's list of paths */
	int users;             /* connections */
	const struct bnet_device *dev;
	struct sockaddr_storage addr; /* the peer's first; its port means nothing here */
	struct bnet_resting resting;
	struct bnet_scaler scaler;
	uint64_t sampled_us;
	bool rested; /* idle for a while since then */
	/* the sample that is being taken */
	bool due;
	struct bnet_scaler_sample sample;
	struct bnet_tally of[BNET_WORKS]; /* streams, by the kind of work of their connection */
};

/* The path to the connection's first peer address, which it joins. -ENOMEM. */
int bnet_path_join(struct bnet_conn *conn);
/* Before the connection is freed, if it has joined. */
void bnet_path_leave(struct bnet_conn *conn);
/* A connection's stream has joined: its first reading. */
void bnet_path_stream_joined(struct bnet_conn *conn, struct bnet_stream *stream);
/* The connection's first stream has joined, and the peer takes `most` streams. The scaler keeps to that from here on;
 * every NIC of both ends gets a stream, and missing streams of all of the path's connections are opened. */
void bnet_path_ready(struct bnet_conn *conn, int most);
/* Opens the missing streams of all of the path's connections, and lets those above the scaler's level rest. */
void bnet_path_widen(struct bnet_path *path);
/* Reads all streams of all senders that have moved, and acts on it. */
void bnet_paths_sample(uint64_t now_us);

#endif
