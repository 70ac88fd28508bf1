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
	int before;           /* of a trial: the level that it started from */
	uint64_t base;        /* … and bytes/s there */
	enum bnet_work work;  /* … and the kind of work; kept when the trial ends */
	uint64_t patience_us; /* … and until when it may wait for other ranks */
	uint64_t settled_us;  /* nothing is measured until then */
	/* After a failed trial, by the kind of work in which it began. */
	struct {
		uint64_t until_us;   /* no trial until then */
		uint64_t backoff_us; /* the next rest */
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
	/* the window that is being measured */
	uint64_t bytes, time_us;
	struct bnet_tally of[BNET_WORKS];
};

/* The progress of all connections of a path over a few milliseconds. */
struct bnet_scaler_sample {
	uint64_t now_us;
	uint64_t elapsed_us;
	uint64_t acked;
	uint32_t rtt_us; /* the longest */
	enum bnet_work
		work; /* bulk where any connection has more to send than its streams took; what follows is of those */
	bool limited; /* the network limits the streams */
	bool pressed; /* … or nearly so; counts where there are several */
	bool queued;  /* in most of them bytes queue on the way */
	bool opening; /* some streams of this level are not connected yet */
};

/* Fills the sample's work, limited, pressed and queued from the path's streams, by their work. Pure. */
void bnet_scaler_conclude(struct bnet_scaler_sample *sample, const struct bnet_tally of[BNET_WORKS], bool lone);

void bnet_scaler_init(struct bnet_scaler *scaler, int least, int most);
/* Sets the level from outside, within least and most. Ends a trial and forgets the climb, which have lost their
 * meaning. */
void bnet_scaler_set(struct bnet_scaler *scaler, int level);
/* Takes a sample into account; true when `level` has changed. */
bool bnet_scaler_step(struct bnet_scaler *scaler, const struct bnet_scaler_sample *sample);

#endif
