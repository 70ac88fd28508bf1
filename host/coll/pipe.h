/* SPDX-License-Identifier: MIT
 *
 * Messages in flight. Every collective is a set of pipes that run to their end. The group's own thread.
 */
#ifndef BNET_COLL_PIPE_H
#define BNET_COLL_PIPE_H

#include <stdbool.h>
#include <stddef.h>

#include "coll/coll.h"

struct bnet_coll_piece {
	char *data;
	size_t bytes; /* 0: no message; the peer's piece of the same number is empty as well */
};

struct bnet_coll_pipe;

/* One direction of a pipe: messages 0 … count-1 with one peer. They are posted and completed in order. */
struct bnet_coll_half {
	int peer; /* -1: none, and count is 0 */
	size_t count;
	size_t posted;
	size_t done;
	/* The place of message i. Called right before each attempt to post it. */
	struct bnet_coll_piece (*piece)(const struct bnet_coll_pipe *pipe, size_t i);
	/* NULL: always. The messages that message i depends on must not depend on a message after i, on any rank. */
	bool (*may_post)(const struct bnet_coll_pipe *pipe, size_t i);
	struct {
		void *request; /* NULL: an empty piece */
		size_t bytes;
	} flight[BNET_COLL_DEPTH];
};

/* Messages to one peer and from one peer that depend on each other. */
struct bnet_coll_pipe {
	struct bnet_coll_half send;
	struct bnet_coll_half recv;
	void (*received)(const struct bnet_coll_pipe *pipe, size_t i); /* NULL, or called when message i has arrived */
	const void *op;                                                /* for the functions above */
};

/* Runs pipes to their end, at the same time; no two of them may share a peer and a direction. */
int bnet_coll_pipes_run(struct bnet_coll *coll, struct bnet_coll_pipe *const *pipes, int npipes);
/* The same for more pipes than run at a time: when the pipe of a place has ended, next puts another one in that place,
 * or returns false if there are no more. Each of pipes starts as all zeros or as the first one in its place. */
int bnet_coll_pipes_run_on(struct bnet_coll *coll, struct bnet_coll_pipe *const *pipes, int npipes,
			   bool (*next)(void *op, int place), void *op);

#endif
