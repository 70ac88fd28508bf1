/* SPDX-License-Identifier: MIT
 *
 * A queue of collectives: a thread runs them in the order of the posts, so that the caller need not wait, and nothing
 * that keeps the caller busy delays the next one. All functions are public: see bagua_net.h.
 *
 * The group belongs to whoever has made the queue busy: its thread, or a caller that runs its own operation because
 * none is in progress. Everything else is guarded by the board's lock.
 *
 * Callbacks of an operation may post others. Their place must not depend on when the callbacks run, or the ranks would
 * call operations in different orders. So an operation may have a turn: until its callbacks have returned, and all that
 * they post is over, nothing runs that others have posted. Turns are a stack, since what callbacks post may have turns
 * of its own.
 */
#ifndef BNET_QUEUE_H
#define BNET_QUEUE_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>

#include "queue/ticket.h"

struct bnet_list {
	struct bnet_posted *first;
	struct bnet_posted **last;
};

/* The callbacks of an operation that is over, and what they have posted. */
struct bnet_turn {
	const struct bnet_ticket *ticket;
	struct bnet_turn *below;
	struct bnet_list posts;
	bool entered; /* this thread runs the callbacks: */
	pthread_t thread;
	bool left;
	struct timespec until; /* callbacks that take longer may wait for others' operations */
};

struct bnet_posted {
	struct bnet_ticket ticket; /* first: what the caller gets */
	struct bnet_posted *next;
	struct bnet_turn *turn; /* NULL, or the one that begins when it is over */
	bnet_op_t op;
	double timeout_s;
	int (*interrupted)(void);
};

struct bnet_queue {
	struct bnet_board *board;
	bnet_coll_t *coll;
	void *rows; /* NULL: not known yet */
	double connect_timeout_s;
	bool hopeless; /* there will be no rows, and why: */
	char *failed;
	bool has_tried; /* to connect; the result, for every operation: */
	int connect_rc;
	bool busy;
	bool closing; /* no more posts */
	bool has_thread;
	pthread_t thread;
	struct bnet_list posts;
	struct bnet_turn *turn; /* the top of the stack */
	uint64_t posted;        /* accepted so far */
};

#endif
