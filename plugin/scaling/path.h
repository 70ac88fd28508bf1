/* SPDX-License-Identifier: MIT
 *
 * A path: what all connections from one device to one address have in common, and how many streams each of them uses.
 * Everything here runs under the engine's lock.
 */
#ifndef BNET_PATH_H
#define BNET_PATH_H

#include <stdbool.h>
#include <stdint.h>

#include "common/list.h"
#include "device/device.h"
#include "handshake/candidate.h"
#include "handshake/question.h"
#include "scaling/limited.h"
#include "scaling/memory.h"
#include "scaling/scaler.h"
#include "transport/conn.h"

struct bnet_path {
	struct bnet_node node;         /* in the engine's list of paths */
	struct bnet_node idle, moving; /* of bnet_conn.of_path */
	const struct bnet_device *dev;
	struct sockaddr_storage addr; /* the peer's first; its port means nothing here */
	struct bnet_failed_pairs failed_pairs;
	int most; /* streams that both ends of all connections allow */
	struct bnet_scaler scaler;
	struct bnet_learned learned; /* recalled, and then by the last sample; streams is 0 where there was neither */
	int told;                    /* the level that it began with, or that the log had last; 0: not judged yet */
	bool limited;                /* by the network, at some time */
	bool opened;                 /* a stream, since the last sample */
	bool local;                  /* to this host itself */
	bool pinned;                 /* being sampled: not to be freed */
	uint32_t samples;            /* so far */
	uint64_t sampled_us;         /* 0: never, or all connections were idle since then */
	uint32_t min_rtt_us;         /* of the last sample, the shortest of its streams; 0: not known */
	bool bbr;                    /* has controlled a stream */
	uint64_t interval_us;        /* between the last two samples; 0: there were none */
	bool was_idle;               /* idle for a while since then */
	uint64_t asker;              /* the connection of which the peer is asked: of the last sample, … */
	uint64_t most_acked;         /* … the one that has carried most */
	uint64_t device_sent;        /* this end's device's counter at the last sample, … */
	uint64_t device_at_us;       /* … and when that was; 0: it is not known */
	/* the sample that is being taken */
	struct bnet_sample sample;
	struct bnet_tally of[BNET_WORKS]; /* streams, by the kind of work of their connection */
	uint32_t streams;                 /* … of all kinds */
	/* sums of their round trips above their smallest, of how busy they are, and of their rates */
	uint64_t queues_us, busy, rates;
	bool asking; /* a question is on its way */
};

/* The path to the connection's first peer address, which it joins. -ENOMEM. */
int bnet_path_join(struct bnet_conn *conn);
/* Before the connection is freed, if it has joined. */
void bnet_path_leave(struct bnet_conn *conn);
/* A connection's stream has joined: its first reading. */
void bnet_path_stream_joined(struct bnet_conn *conn, struct bnet_stream *stream);
/* The connection's first stream has joined, and the peer takes `most` streams. The scaler keeps to that from here on;
 * every NIC of both ends gets a stream. */
void bnet_path_ready(struct bnet_conn *conn, int most);
/* The streams above the least number that its path has recalled and not judged yet. */
int bnet_path_recalled(const struct bnet_conn *conn);
/* Has them opened before the connection moves, so that its first message has them. */
void bnet_path_open_recalled(struct bnet_conn *conn);
/* Has the missing streams of the path's connections opened, of idle ones no more than the least number, and lets those
 * above the scaler's level are inactive. */
void bnet_path_widen(struct bnet_path *path);
/* Opens some missing streams of any path, round-robin over the connections. True: others are left. */
bool bnet_paths_open(void);
/* This connection may have so many streams at the most, or the path's least number if that is more. */
void bnet_path_share(struct bnet_conn *conn, int share);
/* … and each connection of the path. */
void bnet_path_limit(struct bnet_path *path, int quota);
/* The streams that both ends and its share leave to this connection. */
int bnet_path_most(const struct bnet_conn *conn);
/* … and those of the path's level that it has not opened; not positive: none. */
int bnet_path_missing(const struct bnet_conn *conn);
/* In a forked child: the paths are the parent's. */
void bnet_paths_forget(void);

/* Opens the streams that a connection which moves lacks, and closes those that its path no longer uses. */
void bnet_path_fit(struct bnet_conn *conn, uint64_t now_us);
/* Remembers what the path has learned (memory.h). */
void bnet_path_keep(struct bnet_path *path);
/* It is no longer being sampled, and is freed if its last connection has left meanwhile. */
void bnet_path_unpin(struct bnet_path *path);

#endif
