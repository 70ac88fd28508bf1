/* SPDX-License-Identifier: MIT
 *
 * A window: the samples of a path over which two levels of the scaler are compared. Where a trial is involved it lies
 * between two marks, which tell what the network as a whole carried. Pure.
 */
#ifndef BNET_WINDOW_H
#define BNET_WINDOW_H

#include <stdbool.h>
#include <stdint.h>

#include "scaling/limited.h"
#include "scaling/network.h"

/* The progress of all connections of a path over a few milliseconds. */
struct bnet_sample {
	uint64_t now_us;
	uint64_t elapsed_us;
	uint64_t acked;
	uint32_t rtt_us;     /* the longest */
	uint32_t min_rtt_us; /* the shortest that any stream has had; 0: not known */
	uint32_t queue_us;   /* the mean of the streams' round trips above their smallest */
	enum bnet_work
		work; /* bulk where any connection has more to send than its streams took; what follows is of those */
	bool limited; /* the network limits the streams */
	bool pressed; /* … or nearly so; counts where there are several */
	bool queued;  /* in most of them bytes queue on the way */
	bool opening; /* some streams of this level are not connected yet */
};

/* What a window needs from its caller. */
enum bnet_window_question {
	BNET_ASKS_NOTHING,
	BNET_ASKS_MARK,  /* a window begins or ends */
	BNET_ASKS_LEASE, /* … and a trial may follow, so no other trial should begin */
};

/* The answer. */
struct bnet_window_report {
	struct bnet_mark mark;
	bool refused;    /* another trial has the lease */
	uint32_t rtt_us; /* of a fresh flow's handshake; 0: not known */
};

struct bnet_window {
	uint64_t bytes, time_us;
	uint64_t queues_us; /* the sum of its samples' queue_us */
	struct bnet_tally of[BNET_WORKS];
	bool judged; /* it has been full once, and calls for a trial: from here on only its bytes and its time count */
	int marked;  /* marks that it has: 0, 1 or 2 */
	struct bnet_mark from, to;
	bool refused;         /* by the last report */
	uint32_t fresh_us;    /* the shortest round trip of a fresh flow; 0: not known */
	uint32_t shortest_us; /* … and of the streams; 0: not known */
	enum bnet_window_question asks;
};

/* Empties the window. A question that is pending stays so. */
void bnet_window_clear(struct bnet_window *window);
void bnet_window_add(struct bnet_window *window, const struct bnet_sample *sample);
/* Takes the answer to `asks` as the next mark. */
void bnet_window_mark(struct bnet_window *window, const struct bnet_window_report *report);

/* Of a window that is not empty: bytes/s, of the path and of the network between its marks. */
struct bnet_carried bnet_window_carried(const struct bnet_window *window);
/* The kind of work of most samples; only those are asked what limits them. */
enum bnet_work bnet_window_work(const struct bnet_window *window);
/* All flows share one queue: a fresh one waits as long as the path's own streams. */
bool bnet_window_shares_its_queue(const struct bnet_window *window);

#endif
