/* SPDX-License-Identifier: MIT
 *
 * Tagged messages with a thread that makes their progress and reports their ends: a ticket for each. All functions are
 * public: see bagua_net.h.
 */
#ifndef BNET_MESSAGES_H
#define BNET_MESSAGES_H

#include <pthread.h>

#include "queue/ticket.h"

struct bnet_message {
	struct bnet_ticket ticket; /* first: what the caller gets */
	bool sends;
};

struct bnet_messages {
	struct bnet_board *board;
	bnet_tagged_t *tagged;
	pthread_t thread;
	uint64_t sends; /* that are not over */
	bool stopped;   /* the thread has reported all ends */
};

#endif
