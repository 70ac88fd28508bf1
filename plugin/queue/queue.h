/* SPDX-License-Identifier: MIT
 *
 * A queue of collectives: a thread runs them in the order of the posts, so that the caller need not wait, and nothing
 * that keeps the caller busy delays the next one. All functions are public: see bagua_net.h.
 *
 * The group belongs to whoever has made the queue busy: its thread, or a caller that runs its own operation because
 * none is in progress. Everything else is guarded by the board's lock.
 */
#ifndef BNET_QUEUE_H
#define BNET_QUEUE_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>

#include "queue/ticket.h"

struct bnet_posted {
	struct bnet_ticket ticket; /* first: what the caller gets */
	struct bnet_posted *next;
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
	bool connected;
	bool busy;
	bool closing; /* no more posts */
	bool has_thread;
	pthread_t thread;
	struct bnet_posted *first;
	struct bnet_posted **last;
};

#endif
