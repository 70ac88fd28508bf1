/* SPDX-License-Identifier: MIT
 *
 * "Limited by the network": the one place where that is decided, for a stream over an interval, for a path over a
 * sample, and for the scaler over a window. Pure.
 *
 * More streams help only where the network limits those that there are, and not a processor, the peer, or a lack of
 * work. No single count of the kernel tells; the rules and thresholds are in limited.c, with the reason of each.
 */
#ifndef BNET_LIMITED_H
#define BNET_LIMITED_H

#include <stdbool.h>
#include <stdint.h>

#include "transport/estimator.h"

/* Kinds of work. More streams gain different things for each, so trials are remembered for each apart. */
enum bnet_work {
	BNET_WORK_SMALL = 0, /* the kernel took every message whole: nothing waits behind the streams */
	BNET_WORK_BULK = 1,  /* a part of what is posted waits for room in the streams */
};
#define BNET_WORKS 2

/* How many observations there were, and what they said. */
struct bnet_tally {
	uint32_t count, limited, queued, pressed;
};

void bnet_tally_add(struct bnet_tally *tally, bool limited, bool queued, bool pressed);

/* A stream over one interval. lone: its connection has no other; contended: the process shares its processors. */
bool bnet_stream_is_limited(const struct bnet_estimator_step *step, enum bnet_work work, bool lone, bool contended);
/* Weaker: one of several streams is busy most of the time while its bytes queue. The ranks of a collective wait for
 * each other after each step, so no stream of theirs is always busy. */
bool bnet_stream_is_pressed(const struct bnet_estimator_step *step);
/* Its bytes queue on the way. True also where a queue cannot be told from a late processor. */
bool bnet_stream_is_queued(const struct bnet_estimator_step *step);

/* Counts a stream over one interval. */
void bnet_tally_add_stream(struct bnet_tally *tally, const struct bnet_estimator_step *step, enum bnet_work work,
			   bool lone, bool contended);

/* A path's streams at one time: each counts once. */
bool bnet_path_is_limited(const struct bnet_tally *streams, bool lone);
/* A window's samples of a path. */
bool bnet_window_is_limited(const struct bnet_tally *samples, bool lone);
bool bnet_path_is_pressed(const struct bnet_tally *streams, bool lone);
bool bnet_window_is_pressed(const struct bnet_tally *samples, bool lone);
/* Half of either. */
bool bnet_tally_is_queued(const struct bnet_tally *tally);

#endif
