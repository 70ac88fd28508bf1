/* SPDX-License-Identifier: MIT
 *
 * A path: what all connections from one device to one address have in common. The control thread reads their streams
 * every few milliseconds, fits send buffers to what it sees, and decides how many streams each connection uses.
 * Everything here runs under the engine's lock.
 */
#ifndef BNET_PATH_H
#define BNET_PATH_H

#include <stdint.h>

#include "transport/conn.h"
#include "scaling/scaler.h"
#include "base/list.h"
#include "handshake/candidate.h"

struct bnet_path {
	struct bnet_node node;     /* in the engine's list of paths */
	int users;                 /* connections */
	const struct bnet_device *dev;
	struct sockaddr_storage addr; /* the peer's first; its port means nothing here */
	struct bnet_resting resting;
	struct bnet_scaler demand;
	uint64_t sampled_us;
	bool rested;               /* since then there was nothing to do for a while */
	/* the sample that is being taken */
	bool due;
	struct bnet_scaler_sample sample;
	struct {
		uint32_t flows, limited, queued;
	} of[2];                   /* nothing waits behind what the connection's streams took; something does */
};

/* The path to addr, which the connection joins. -ENOMEM. */
int bnet_path_join(struct bnet_conn *conn);
void bnet_path_leave(struct bnet_conn *conn);
/* The peer takes so many streams; the path tries no more from here on. */
void bnet_path_allow(struct bnet_conn *conn, int most);
/* The peer has told how many addresses it has: every NIC of both ends gets a stream. */
void bnet_path_spread(struct bnet_conn *conn);
/* A connection's first stream is up, or how many all of them use has changed by one of the above: opens what is
 * missing, and lets rest what is too many. */
void bnet_path_widen(struct bnet_path *path);
/* Reads all streams of all senders that have moved, and acts on what they say. */
void bnet_paths_sample(uint64_t now_us);
/* A stream has joined: reads it for the first time. */
void bnet_path_stream_joined(struct bnet_conn *conn, struct bnet_stream *stream);

#endif
