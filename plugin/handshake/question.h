/* SPDX-License-Identifier: MIT
 *
 * Questions: short-lived sockets on which one end of a connection asks the other's host. A path asks what the
 * receiver's device has received meanwhile; the handshake of such a socket also tells how long a fresh flow waits on the
 * way. A receiver all of whose streams have broken asks whether its sender is still there. The control thread, or under
 * the engine's lock.
 */
#ifndef BNET_QUESTION_H
#define BNET_QUESTION_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/engine.h"
#include "transport/conn.h"

/* What the peer said, or that it said nothing in time. */
struct bnet_answer {
	struct bnet_path *path;      /* that has asked, or */
	struct bnet_conn *conn;      /* the receiver that has */
	int error;                   /* -ENOENT: there is no such connection; -errno: no answer; 0: there is */
	uint64_t connection;         /* of a path's: the one that the peer was asked about; 0: nothing is known */
	uint64_t moved_us, received; /* what is known of it (meter.h) */
	uint32_t rtt_us;             /* of this socket's handshake; 0: not known */
};

/* Asks the peer of a ready sender, for a path that is not looked at here. Its round trip bounds the wait; the smallest
 * one tells the peer what is a pause. 0: the answer comes later, from bnet_question_ready or bnet_questions_tick; -errno: it will not come. */
int bnet_question_ask(const struct bnet_conn *conn, struct bnet_path *path, uint32_t rtt_us, uint32_t min_rtt_us);
/* Likewise a receiver's, whose attempts take the candidate pairs in turn. -EDESTADDRREQ: the sender listens nowhere. */
int bnet_question_ask_sender(struct bnet_conn *conn, int attempt);
/* True: *answer is the end of a question. */
bool bnet_question_ready(struct bnet_watch *watch, struct bnet_answer *answer);
/* Ends one question that has waited too long: true, and *answer says so. */
bool bnet_questions_tick(uint64_t now_ms, struct bnet_answer *answer);
/* Those of a path, or of a receiver; the other one is NULL. */
void bnet_questions_cancel(const struct bnet_path *path, const struct bnet_conn *conn);

#endif
