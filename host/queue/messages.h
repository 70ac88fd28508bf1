/* SPDX-License-Identifier: MIT
 *
 * Tagged messages and who makes their progress: a ticket for each. All functions are public: see bagua_net.h.
 *
 * Whenever there is something to do, one thread *drives*: it makes passes over the messages and reports ends. A caller
 * that waits for a message drives itself; otherwise two wake-ups come first, the driver's and its own. Where nobody
 * waits, a thread of the library drives. It gives way after each pass, and naps after one that has moved nothing: it
 * takes the processor from the job, which nobody keeps waiting, and what is posted meanwhile travels together.
 *
 * Everything here is guarded by the board's lock, which is not held during a pass.
 */
#ifndef BNET_MESSAGES_H
#define BNET_MESSAGES_H

#include <pthread.h>

#include "coll/wait.h"
#include "queue/ticket.h"

struct bnet_message {
	struct bnet_ticket ticket; /* first: what the caller gets */
	bool sends;
};

/* So far, with one other rank. */
struct bnet_message_count {
	uint64_t sent; /* posted */
	uint64_t received;
};

struct bnet_messages {
	struct bnet_board *board;
	bnet_tagged_t *tagged;
	pthread_t thread;
	pthread_cond_t work; /* for who drives or could: something was posted, or another one has stopped driving */
	struct bnet_coll_wait wait;      /* of callers */
	struct bnet_coll_wait unwatched; /* of the thread */
	int long_naps;                   /* in progress */
	bool driven;
	int helpers;                       /* callers that wait for a message; they go before the thread */
	bool idle;                         /* nothing to do until something is posted */
	uint64_t sends;                    /* that are not over */
	bool stopped;                      /* and all ends are reported */
	struct bnet_message_count *counts; /* by rank */
};

#endif
