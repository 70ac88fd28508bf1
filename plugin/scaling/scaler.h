/* SPDX-License-Identifier: MIT
 *
 * How many streams a connection should use: the judgement, apart from everything that it judges. Pure; times in µs of
 * any clock.
 *
 * All connections to one peer share one judgement, since they share its path: what one of them gains by a further
 * stream, another may lose. It starts at `least`. While the network limits the streams that there are, more are tried:
 * twice as many. They stay if together they carry more than before, and else rest, for longer every time. When the
 * network has not limited for a while, half as many are tried, and stay if they carry as much.
 *
 * A message that the kernel took whole is limited by the network just as one of which a part still waits, so both kinds
 * of work count. But what more streams gain differs, so trials in vain are remembered for each apart. And where ranks
 * wait for each other, as in a collective, the slower of two connections hides what the faster one has gained: a trial
 * that gains nothing, but after which the network limits no more, goes on for a while, until the others' have begun.
 *
 * Where nothing waits on the way, more streams may take longer to show what they carry than a trial lasts, so in doubt
 * they are kept. At the end of such a climb longer looks decide between what there is then and the fewest that seemed
 * as good on the way; for a while after that, trials are as long and nothing is kept in doubt.
 */
#ifndef BNET_SCALER_H
#define BNET_SCALER_H

#include <stdbool.h>
#include <stdint.h>

#define BNET_SCALER_SEEN 8 /* 1, 4, 8, … 64 are six */

struct bnet_scaler {
	int level;            /* streams that a connection uses */
	int least, most;
	int before;           /* a trial is on: the level that it started from; else 0 */
	uint64_t base;        /* bytes/s before the trial */
	uint64_t patience_us; /* a trial that may be waiting for other ranks ends then at the latest */
	uint64_t settled_us;  /* nothing is measured until then */
	/* After a trial in vain, by the kind of work in which it began: 0, nothing waited behind what the streams took; 1. */
	struct {
		uint64_t until_us;   /* no trial until then */
		uint64_t backoff_us;
	} rests[2];
	int kind;             /* of the trial that is on, or was the last one */
	uint32_t unlimited;   /* windows since the network limited, those in which something waited far more than others */
	int often;            /* how often it limits a lone stream, of late, in 1/10000 */
	bool in_doubt;        /* a raise of this climb was kept though it carried no more */
	bool review;          /* the climb is over, and its end is compared with what was seen on the way */
	uint32_t careful;     /* long windows that are left in which nothing is kept in doubt */
	struct {
		int level;
		uint64_t rate; /* bytes/s */
	} seen[BNET_SCALER_SEEN]; /* of this climb, upwards */
	int nseen;
	/* the window that is being measured */
	uint64_t bytes, time_us;
	struct {
		uint32_t samples, limited, queued;
	} of[2];              /* by the kind of work */
};

/* What all connections of a path did in a few milliseconds. */
struct bnet_scaler_sample {
	uint64_t now_us;
	uint64_t elapsed_us;
	uint64_t acked;
	uint32_t rtt_us;      /* the longest */
	/* Some connections have more to send than their streams took: what follows is of their streams. */
	bool waiting;
	bool limited;         /* the network limits most of the streams */
	bool queued;          /* in most of them bytes wait on the way */
	bool opening;         /* not all streams of this level are there yet */
};

void bnet_scaler_init(struct bnet_scaler *demand, int least, int most);
/* Somebody else sets the level, within least and most. A trial that is on has lost its meaning, and so has the
 * climb. */
void bnet_scaler_set(struct bnet_scaler *demand, int level);
/* Takes a sample into account; true when `level` has changed. */
bool bnet_scaler_step(struct bnet_scaler *demand, const struct bnet_scaler_sample *sample);

#endif
