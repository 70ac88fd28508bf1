/* SPDX-License-Identifier: MIT
 *
 * Tagged messages and who makes their progress: a ticket for each. All functions are public: see bagua_net.h.
 *
 * Somebody *drives* at any time at which there is something to do: makes passes over the messages, and reports ends. A
 * caller that waits for a message drives itself, because it would otherwise wait for two more threads to wake up, the
 * one that drives and its own. Where nobody waits, a thread of the library drives. It gives way after each pass.
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

struct bnet_messages {
	struct bnet_board *board;
	bnet_tagged_t *tagged;
	pthread_t thread;
	pthread_cond_t work; /* for who drives or could: something was posted, or another one has stopped driving */
	struct bnet_coll_wait wait;
	bool driven;
	int helpers;    /* callers that wait for a message; they go before the thread */
	bool idle;      /* nothing to do until something is posted */
	uint64_t sends; /* that are not over */
	bool stopped;   /* and all ends are reported */
};

#endif
