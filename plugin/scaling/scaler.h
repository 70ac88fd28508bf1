/* SPDX-License-Identifier: MIT
 *
 * Stream scaling: how many streams a connection should use. Pure; times in µs of any clock.
 *
 * All connections of a path share one scaler, since a stream that helps one of them may harm another. It starts at
 * `least` streams. While the network limits them, a trial doubles the streams; they stay if together they carry more
 * than before, and otherwise rest, for longer every time. When the network has not limited for a while, a trial halves
 * them, and that stays if they carry as much.
 *
 * A path with several streams has shown that its network limits each of them, so less evidence suffices there to try
 * more: that they are pressed (limited.h).
 *
 * The network limits a message that the kernel took whole just as one of which a part still waits, so both kinds of
 * work count (limited.h). More streams gain different things for each, so failed trials are remembered for each apart.
 * Where ranks wait for each other, as in a collective, the slower of two connections hides what the faster one has
 * gained: a trial that gains nothing, but after which the network limits no more, waits for the other ranks' trials.
 *
 * More streams always win a larger share of a bottleneck that others share, so a trial counts only as far as the devices
 * at both ends carry more (network.h). Its windows lie between marks: the scaler asks for them, and its caller brings
 * what the devices have carried by then. Before the first trial it also looks how long a fresh flow waits on the way:
 * as long as the path's own streams, if all flows share one queue; not at all, if each flow has its own limit. What was
 * kept is doubted again from time to time, by a trial of fewer streams.
 *
 * Where nothing queues on the way, more streams may take longer to show what they carry than a trial lasts, so they are
 * kept in doubt. At the end of such a climb, a review with longer windows decides between the final level and the
 * fewest streams that seemed as good on the way. For a while after that, windows stay long and nothing is kept in
 * doubt.
 */
#ifndef BNET_SCALER_H
#define BNET_SCALER_H

#include <stdbool.h>
#include <stdint.h>

#include "scaling/limited.h"
#include "scaling/network.h"
#include "scaling/window.h"

#define BNET_SCALER_SEEN 8 /* 1, 4, 8, … 64 are six */

enum bnet_scaler_state {
	BNET_SCALER_HOLDING,   /* measures, and may begin a trial */
	BNET_SCALER_TRYING,    /* a trial of more or of fewer streams is on */
	BNET_SCALER_REVIEWING, /* a climb that was kept in doubt has ended; its end is measured again, for longer */
	BNET_SCALER_COMPARING, /* … and a trial of fewer streams that seemed as good is on */
};

struct bnet_scaler {
	enum bnet_scaler_state state;
	int level; /* streams that a connection uses */
	int least, most;
	int before;               /* of a trial: the level that it started from */
	struct bnet_carried base; /* … and what was carried there */
	enum bnet_work work;      /* … and the kind of work; kept when the trial ends */
	uint64_t patience_us;     /* … and until when it may wait for other ranks */
	uint64_t settled_us;      /* nothing is measured until then */
	uint64_t retry_us;        /* no trial until then: another one had the lease */
	uint64_t doubt_us;        /* fewer streams are tried then */
	uint64_t doubt_wait_us;
	bool doubted;    /* the trial is one of these */
	uint64_t random; /* the state of a generator: paths that begin together must not try together */
	/* After a failed trial, by the kind of work in which it began; a later one at another level takes its place. */
	struct {
		int level;           /* at which it ended; its failure says nothing of lower ones */
		uint64_t until_us;   /* no trial at this level or above until then */
		uint64_t backoff_us; /* the next rest at this level */
	} rests[BNET_WORKS];
	uint32_t unlimited; /* windows since the network limited; those of bulk work weigh far more */
	int often;          /* how often the network limits a lone stream, in 1/10000, a mean over some windows */
	bool in_doubt;      /* more streams were kept in this climb though they carried no more */
	uint32_t careful;   /* long windows that are left in which nothing is kept in doubt */
	struct {
		int level;
		uint64_t rate;    /* bytes/s */
	} seen[BNET_SCALER_SEEN]; /* in this climb, upwards */
	int nseen;
	int curious; /* windows of which those that the network limits begin with a mark: a trial may follow */
	struct bnet_window window; /* that is being measured */
};

/* Fills the sample's work, limited, pressed and queued from the path's streams, by their work. Pure. */
void bnet_scaler_conclude(struct bnet_sample *sample, const struct bnet_tally of[BNET_WORKS], bool lone);

/* seed: not zero. */
void bnet_scaler_init(struct bnet_scaler *scaler, int least, int most, uint64_t seed);
/* Sets the level from outside, within least and most. Ends a trial and forgets the climb, which have lost their
 * meaning. */
void bnet_scaler_set(struct bnet_scaler *scaler, int level);
/* Changes the bounds, and the level where it lies beyond them. A trial that would end beyond them is over. */
void bnet_scaler_bound(struct bnet_scaler *scaler, int least, int most);
/* The streams that a connection must keep open: those of a trial of fewer may be wanted again. */
int bnet_scaler_held(const struct bnet_scaler *scaler);
/* Takes a sample into account; true when `level` has changed. */
bool bnet_scaler_step(struct bnet_scaler *scaler, const struct bnet_sample *sample);
/* Answers scaler->window.asks, which bnet_scaler_step may have set. */
void bnet_scaler_tell(struct bnet_scaler *scaler, const struct bnet_window_report *report);
/* How long the next trial takes, from its lease to its end, if it does not wait for other ranks. */
uint64_t bnet_scaler_trial_us(const struct bnet_scaler *scaler, uint32_t rtt_us);

#endif
