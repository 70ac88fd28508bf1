/* SPDX-License-Identifier: MIT
 *
 * Stream scaling: how many streams a connection should use. Pure; times in µs of any clock.
 *
 * All connections of a path share one scaler, since a stream that helps one of them may harm another. It starts at
 * `least` streams and judges by what happens at this path alone.
 *
 * While the network limits them, a trial multiplies the streams. They stay if together they carry more than before and
 * others no less (network.h), or if the network limits this path no more and they do not carry clearly less: where
 * ranks wait for each other, as in a ring, the slowest path hides what the others have gained, and each has done its
 * part when it is not what the others wait for. Otherwise they rest, for longer every time. The network limits a
 * message that the kernel took whole just as one of which a part still waits, so both kinds of work count (limited.h),
 * and their failed trials are remembered apart.
 *
 * A path with several streams has shown that its network limits each of them, so less evidence suffices there to try
 * more: that they are pressed (limited.h).
 *
 * Once a minute of the wall clock all paths of all hosts try fewer streams at the same time, step by step, as long as
 * they carry as much. Ranks that share a link thereby keep equal numbers, and a ring is not slowed down by one path's
 * trial after the other.
 *
 * Where nothing queues on the way, more streams may take longer to show what they carry than a trial lasts, so in one
 * climb they are kept in doubt. After it fewer are tried at once, with longer windows, and later climbs have these too.
 *
 * Windows of trials lie between marks: the scaler asks for them, and its caller brings what the device at the other end
 * has carried by then; what this end's has is in the samples. Before the first trial it also looks how long a fresh
 * flow waits on the way: as long as the path's own streams, if all flows share one queue; not at all, if each flow has
 * its own limit.
 */
#ifndef BNET_SCALER_H
#define BNET_SCALER_H

#include <stdbool.h>
#include <stdint.h>

#include "scaling/limited.h"
#include "scaling/network.h"
#include "scaling/window.h"

enum bnet_scaler_state {
	BNET_SCALER_HOLDING,  /* measures, and may begin a trial */
	BNET_SCALER_RAISING,  /* a trial of more streams is on */
	BNET_SCALER_LOWERING, /* … of fewer */
};

/* What came of trials of more streams; for whoever asks why there are so many. */
struct bnet_verdict {
	uint64_t at_us; /* 0: there was none */
	int fewer, more;
	uint64_t with_fewer, with_more; /* bytes/s of all connections of the path */
};

struct bnet_scaler {
	enum bnet_scaler_state state;
	int level; /* streams that a connection uses */
	int least, most;
	int before;               /* of a trial: the level to which it goes back if it fails */
	struct bnet_carried base; /* … and what was carried when it began, … */
	uint32_t base_busy;       /* … by streams that were so busy, in 1/10000, … */
	enum bnet_work work;      /* … and the kind of work; kept when the trial ends */
	uint64_t settled_us;      /* nothing is measured until then */
	uint64_t minute;          /* of the last sample; 0: there was none */
	bool due;                 /* fewer streams are to be tried */
	uint64_t due_until_us;    /* … until then */
	uint32_t quiet;           /* windows since the network limited */
	bool idle;                /* … were many when the minute began */
	bool untested;            /* the level is of another time: fewer are due as soon as the network limits */
	uint64_t random;          /* the state of a generator: rests that began together must not end together */
	/* After a failed trial, by the kind of work in which it began; a later one at another level takes its place. */
	struct {
		int level;           /* at which it ended; its failure says nothing of lower ones */
		uint64_t until_us;   /* no trial at this level or above until then */
		uint64_t backoff_us; /* the next rest at this level */
	} rests[BNET_WORKS];
	int often;                /* how often the network limits a lone stream, in 1/10000, a mean over some windows */
	bool in_doubt;            /* more streams were kept in this climb though they carried no more */
	bool careful;             /* such a climb has ended: from here on nothing is kept in doubt */
	struct bnet_verdict kept; /* of the last climb, from where it began; none once fewer have carried as much */
	struct bnet_verdict refused; /* the last one */
	int curious; /* windows of which those that the network limits begin with a mark: a trial may follow */
	struct bnet_window window; /* that is being measured */
};

/* Fills the sample's work, limited, pressed and queued from the path's streams, by their work. Pure. */
void bnet_scaler_conclude(struct bnet_sample *sample, const struct bnet_tally of[BNET_WORKS], bool lone);

/* seed: not zero. */
void bnet_scaler_init(struct bnet_scaler *scaler, int least, int most, uint64_t seed);
/* Begins at a level that an earlier path has found, within the bounds, and tries fewer once the network limits: it may
 * be of another time. */
void bnet_scaler_resume(struct bnet_scaler *scaler, int level);
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

#endif
