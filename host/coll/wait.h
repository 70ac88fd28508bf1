/* SPDX-License-Identifier: MIT
 *
 * What a poll loop does after a pass that moved nothing: yield, nap, time out. How an operation that moves something
 * notices that its caller has given it up. Everything belongs to the thread of the loop.
 */
#ifndef BNET_COLL_WAIT_H
#define BNET_COLL_WAIT_H

#include <stdint.h>

#include "coll/coll.h"

struct bnet_coll_wait {
	unsigned idle;      /* fruitless polls in a row */
	int64_t since;      /* when the clock was first read in that row; 0: not yet */
	int64_t timeout_ns; /* 0: none */
	unsigned nap_after; /* fruitless polls before the first nap, where waits are short; 0: never, yield only */
	int64_t usual_ns;   /* running mean of the waits for a peer, except those over before a clock reading */
	int64_t waited_ns;  /* … and their sum */
};

/* CLOCK_MONOTONIC in ns, signed for differences and deadlines. */
int64_t bnet_coll_now(void);
/* After a poll that moved something. */
void bnet_coll_wait_reset(struct bnet_coll_wait *wait);
/* The same where the wait was for a peer: its length enters the mean. */
void bnet_coll_wait_over(struct bnet_coll_wait *wait);
/* After a poll that moved nothing: ns to nap, or 0 to yield only. Naps grow, and begin sooner where waits are usually
 * long. */
long bnet_coll_wait_fruitless(struct bnet_coll_wait *wait);
/* The same, and yields or naps: 0, -ETIMEDOUT, -ECANCELED or -EINTR. */
int bnet_coll_wait_idle(struct bnet_coll *coll, struct bnet_coll_wait *wait);

/* Is the operation, which moves, still wanted? 0, -ECANCELED or -EINTR. Reads the clock, so that its caller is asked
 * once a second only. */
int bnet_coll_wanted(struct bnet_coll *coll);
/* The same at a step that may be short: most of them do not read the clock. */
int bnet_coll_step(struct bnet_coll *coll);
/* Sets the group's error for -ECANCELED or -EINTR; returns rc. */
int bnet_coll_given_up(struct bnet_coll *coll, int rc);

#endif
