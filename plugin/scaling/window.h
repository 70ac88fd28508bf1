/* SPDX-License-Identifier: MIT
 *
 * A window: the samples of a path over which two levels of the scaler are compared. Where a trial is involved, they say
 * what this end's device has sent, and it lies between two marks, which say what the peer's has received. Pure.
 */
#ifndef BNET_WINDOW_H
#define BNET_WINDOW_H

#include <stdbool.h>
#include <stdint.h>

#include "scaling/limited.h"
#include "scaling/network.h"

/* What the peer has said at one end of a window (handshake/meter.h). */
struct bnet_mark {
	uint64_t connection; /* of which this is; 0: nothing is known */
	uint64_t moved_us, received;
};

/* The progress of all connections of a path over a few milliseconds. */
struct bnet_sample {
	uint64_t now_us;
	uint64_t elapsed_us;
	uint64_t acked;
	uint64_t device_sent; /* by all users of this end's device, … */
	uint64_t device_us;   /* … in so long; 0: not known */
	uint32_t rtt_us;      /* the longest */
	uint32_t min_rtt_us;  /* the shortest that any stream has had; 0: not known */
	uint32_t queue_us;    /* the mean of the streams' round trips above their smallest */
	enum bnet_work
		work;  /* bulk where any connection has more to send than its streams took; what follows is of those */
	bool limited;  /* the network limits the streams */
	bool pressed;  /* … or nearly so; counts where there are several */
	bool queued;   /* in most of them bytes queue on the way */
	uint32_t busy; /* share of the time in which a stream has bytes in flight, in 1/10000, a mean over the streams */
	bool opening;  /* some streams of this level are not connected yet */
	uint64_t minute; /* of the wall clock, which all hosts share */
};

/* The answer to a window's question. */
struct bnet_window_report {
	struct bnet_mark mark;
	uint32_t rtt_us; /* of a fresh flow's handshake; 0: not known */
};

struct bnet_window {
	uint64_t bytes, time_us;
	uint64_t moving_us;       /* of that, in samples of which something was acknowledged */
	uint64_t queues_us, busy; /* sums of its samples' queue_us and busy */
	struct bnet_tally of[BNET_WORKS];
	bool judged; /* it has been full once, and calls for a trial: from here on only bytes and times count */
	/* Of the samples in which it is known what this end's device has sent. */
	struct bnet_window_seen {
		uint64_t own, all; /* bytes */
		uint64_t us;
	} seen;
	int marked; /* marks that it has: 0, 1 or 2 */
	struct bnet_mark from, to;
	uint32_t fresh_us;    /* the shortest round trip of a fresh flow; 0: not known */
	uint32_t shortest_us; /* … and of the streams; 0: not known */
	bool asks;            /* for a mark: it begins or ends */
};

/* Empties the window. A question that is pending stays so. */
void bnet_window_clear(struct bnet_window *window);
void bnet_window_add(struct bnet_window *window, const struct bnet_sample *sample);
/* Takes the answer to `asks` as the next mark. */
void bnet_window_mark(struct bnet_window *window, const struct bnet_window_report *report);

/* Of a window that is not empty. */
struct bnet_carried bnet_window_carried(const struct bnet_window *window);
/* Of all its samples, in 1/10000. */
uint32_t bnet_window_busy(const struct bnet_window *window);
/* The kind of work of most samples; only those are asked what limits them. */
enum bnet_work bnet_window_work(const struct bnet_window *window);
/* All flows share one queue: a fresh one waits as long as the path's own streams. */
bool bnet_window_shares_its_queue(const struct bnet_window *window);

#endif
