/* SPDX-License-Identifier: MIT
 *
 * See scaler.h. Functions that take a const scaler decide; the others change one thing each.
 */
#include "scaling/scaler.h"

#include <string.h>

/* The least time of a window, and the least number of round trips in it. */
#define WINDOW_US 100000
#define WINDOW_RTTS 8
/* … and of a long window. */
#define LONG_WINDOW_US 1000000
#define LONG_WINDOW_RTTS 64
/* … and of the pause before it, in which streams find their speed. */
#define SETTLE_US 60000
#define SETTLE_RTTS 6
/* The least gain of more streams, in percent of the rate of fewer: the first ones much more, since a path that limits a
 * lone stream gives several a multiple; later ones a little more. */
#define FIRST_GAIN_PERCENT 120
#define GAIN_PERCENT 105
/* Where nothing queues on the way, the streams' own windows limit, and more streams carry more sooner or later: they
 * stay unless they carry clearly less. */
#define LOSS_PERCENT 50
/* A level is as good as the best of a climb from this percentage of its rate on: short windows waver. */
#define AS_GOOD_PERCENT 80
/* The rate that fewer streams must reach, in percent. */
#define SAME_PERCENT 97
/* Where nothing queues, a lone stream must be limited for this share of the time, in 1/10000, in a mean over several
 * windows: what limits a collective there changes between round trips, and a climb costs it much. The mean begins
 * lower, so that one window does not suffice. */
#define OFTEN 5000
#define OFTEN_BEGIN 2500
#define OFTEN_WINDOWS 4
/* After this many windows without the network as the limit, fewer streams are tried. */
#define IDLE_WINDOWS 10
#define LONG_IDLE_WINDOWS 2
/* A window of small messages counts for one over this of a bulk window: fewer streams would do for them, but more are
 * at hand when bulk work comes. */
#define BULK_WEIGHT 60
/* A review holds for this many long windows, a minute or more. After that the path may have changed. */
#define CAREFUL_WINDOWS 60
/* How long a trial may wait for other ranks: twice the first rest, since they are about to try the same. */
#define PATIENCE_US 1000000
#define BACKOFF_US 500000
#define MOST_BACKOFF_US 60000000

/* Connections with little to send do not outvote those that have more than their streams take. */
void bnet_scaler_conclude(struct bnet_scaler_sample *sample, const struct bnet_tally of[BNET_WORKS], bool lone)
{
	const enum bnet_work work = of[BNET_WORK_BULK].count > 0 ? BNET_WORK_BULK : BNET_WORK_SMALL;

	sample->work = work;
	sample->limited = bnet_path_is_limited(&of[work], lone);
	sample->pressed = bnet_path_is_pressed(&of[work], lone);
	sample->queued = bnet_tally_is_queued(&of[work]);
}

void bnet_scaler_init(struct bnet_scaler *scaler, int least, int most)
{
	memset(scaler, 0, sizeof(*scaler));
	scaler->level = scaler->least = least;
	scaler->most = most;
	scaler->often = OFTEN_BEGIN;
	for (int i = 0; i < BNET_WORKS; i++)
		scaler->rests[i].backoff_us = BACKOFF_US;
}

static uint64_t at_least(uint64_t us, uint32_t rtt_us, uint64_t rtts)
{
	return rtt_us * rtts > us ? rtt_us * rtts : us;
}

/* ---- the window ---- */

static void clear_window(struct bnet_scaler *scaler)
{
	scaler->bytes = scaler->time_us = 0;
	memset(scaler->of, 0, sizeof(scaler->of));
}

static void settle(struct bnet_scaler *scaler, const struct bnet_scaler_sample *sample)
{
	scaler->settled_us = sample->now_us + at_least(SETTLE_US, sample->rtt_us, SETTLE_RTTS);
	clear_window(scaler);
}

static void measure(struct bnet_scaler *scaler, const struct bnet_scaler_sample *sample)
{
	if (sample->opening) {
		settle(scaler, sample);
		return;
	}
	if (sample->now_us < scaler->settled_us)
		return;
	scaler->bytes += sample->acked;
	scaler->time_us += sample->elapsed_us;
	bnet_tally_add(&scaler->of[sample->work], sample->limited, sample->queued, sample->pressed);
}

static bool reviews(const struct bnet_scaler *scaler)
{
	return scaler->state == BNET_SCALER_REVIEWING || scaler->state == BNET_SCALER_COMPARING;
}

static bool tries(const struct bnet_scaler *scaler)
{
	return scaler->state == BNET_SCALER_TRYING || scaler->state == BNET_SCALER_COMPARING;
}

static bool window_is_full(const struct bnet_scaler *scaler, const struct bnet_scaler_sample *sample)
{
	if (sample->opening || sample->now_us < scaler->settled_us)
		return false;
	if (reviews(scaler) || scaler->careful)
		return scaler->time_us >= at_least(LONG_WINDOW_US, sample->rtt_us, LONG_WINDOW_RTTS);
	return scaler->time_us >= at_least(WINDOW_US, sample->rtt_us, WINDOW_RTTS);
}

/* The kind of work of most samples of the window; only those are asked. */
static enum bnet_work window_work(const struct bnet_scaler *scaler)
{
	return scaler->of[BNET_WORK_BULK].count >= scaler->of[BNET_WORK_SMALL].count ? BNET_WORK_BULK : BNET_WORK_SMALL;
}

static bool limited(const struct bnet_scaler *scaler)
{
	return bnet_window_is_limited(&scaler->of[window_work(scaler)], scaler->level == 1);
}

/* Reason enough to keep the streams, and to try more if there are several. */
static bool wants_streams(const struct bnet_scaler *scaler)
{
	return limited(scaler) || bnet_window_is_pressed(&scaler->of[window_work(scaler)], scaler->level == 1);
}

static bool queued(const struct bnet_scaler *scaler)
{
	return bnet_tally_is_queued(&scaler->of[window_work(scaler)]);
}

/* ---- the climb and the rests ---- */

static void forget_climb(struct bnet_scaler *scaler)
{
	scaler->in_doubt = false;
	scaler->nseen = 0;
}

void bnet_scaler_set(struct bnet_scaler *scaler, int level)
{
	scaler->level = level;
	scaler->state = BNET_SCALER_HOLDING;
	forget_climb(scaler);
	clear_window(scaler);
}

static void remember(struct bnet_scaler *scaler, int level, uint64_t rate)
{
	if (scaler->nseen > 0 && scaler->seen[scaler->nseen - 1].level >= level)
		scaler->nseen--; /* a trial's base is the level at which the one before it ended, measured again */
	if (scaler->nseen == BNET_SCALER_SEEN)
		return;
	scaler->seen[scaler->nseen].level = level;
	scaler->seen[scaler->nseen].rate = rate;
	scaler->nseen++;
}

/* No trial for a while, and after the next failed one for twice as long. */
static void rest(struct bnet_scaler *scaler, uint64_t now_us)
{
	uint64_t *backoff_us = &scaler->rests[scaler->work].backoff_us;

	scaler->rests[scaler->work].until_us = now_us + *backoff_us;
	*backoff_us *= 2;
	if (*backoff_us > MOST_BACKOFF_US)
		*backoff_us = MOST_BACKOFF_US;
}

static bool rests(const struct bnet_scaler *scaler, uint64_t now_us)
{
	return now_us < scaler->rests[window_work(scaler)].until_us;
}

static void end_review(struct bnet_scaler *scaler, uint64_t now_us)
{
	scaler->state = BNET_SCALER_HOLDING;
	forget_climb(scaler);
	scaler->careful = CAREFUL_WINDOWS;
	rest(scaler, now_us);
}

/* ---- a trial ---- */

static uint64_t gain_percent(const struct bnet_scaler *scaler)
{
	if (scaler->level < scaler->before)
		return SAME_PERCENT;
	return scaler->before == 1 ? FIRST_GAIN_PERCENT : GAIN_PERCENT;
}

static bool gains(const struct bnet_scaler *scaler, uint64_t rate)
{
	return rate * 100 >= scaler->base * gain_percent(scaler);
}

static bool loses(const struct bnet_scaler *scaler, uint64_t rate)
{
	return rate * 100 < scaler->base * LOSS_PERCENT;
}

/* More streams that carry no more now may yet do so, if their own windows are what limits. */
static bool may_yet_gain(const struct bnet_scaler *scaler, uint64_t rate)
{
	return !scaler->careful && scaler->work == BNET_WORK_BULK && window_work(scaler) == BNET_WORK_BULK &&
	       !queued(scaler) && !loses(scaler, rate);
}

static bool waits_for_ranks(const struct bnet_scaler *scaler, uint64_t now_us, uint64_t rate)
{
	return scaler->level > scaler->before && !gains(scaler, rate) && !limited(scaler) && !loses(scaler, rate) &&
	       now_us < scaler->patience_us;
}

static void begin_trial(struct bnet_scaler *scaler, const struct bnet_scaler_sample *sample, int level, uint64_t rate)
{
	if (level > scaler->level && !scaler->in_doubt)
		scaler->nseen = 0; /* a climb begins, or goes on without doubt */
	if (level > scaler->level)
		remember(scaler, scaler->level, rate);
	scaler->state = reviews(scaler) ? BNET_SCALER_COMPARING : BNET_SCALER_TRYING;
	scaler->before = scaler->level;
	scaler->base = rate;
	scaler->work = window_work(scaler);
	scaler->level = level;
	scaler->patience_us = sample->now_us + at_least(PATIENCE_US, sample->rtt_us, LONG_WINDOW_RTTS);
	settle(scaler, sample);
}

static void keep_more(struct bnet_scaler *scaler, uint64_t rate)
{
	scaler->in_doubt |= !gains(scaler, rate);
	scaler->rests[scaler->work].backoff_us = BACKOFF_US;
	remember(scaler, scaler->level, rate);
	scaler->state = BNET_SCALER_HOLDING;
}

static void keep_fewer(struct bnet_scaler *scaler, uint64_t now_us)
{
	if (scaler->state == BNET_SCALER_COMPARING)
		end_review(scaler, now_us);
	scaler->state = BNET_SCALER_HOLDING;
}

static void give_up(struct bnet_scaler *scaler, const struct bnet_scaler_sample *sample)
{
	scaler->level = scaler->before;
	if (scaler->state == BNET_SCALER_TRYING)
		rest(scaler, sample->now_us);
	scaler->state = scaler->state == BNET_SCALER_COMPARING ? BNET_SCALER_REVIEWING : BNET_SCALER_HOLDING;
	settle(scaler, sample);
}

/* True: the trial has failed, and the level is back. */
static bool end_trial(struct bnet_scaler *scaler, const struct bnet_scaler_sample *sample, uint64_t rate)
{
	const bool more = scaler->level > scaler->before;
	const bool kept = gains(scaler, rate) || (more && may_yet_gain(scaler, rate));

	if (!kept)
		give_up(scaler, sample);
	else if (more)
		keep_more(scaler, rate);
	else
		keep_fewer(scaler, sample->now_us);
	return !kept;
}

/* ---- what to try next ---- */

static void learn(struct bnet_scaler *scaler)
{
	const struct bnet_tally *tally = &scaler->of[window_work(scaler)];
	const uint32_t weight = window_work(scaler) == BNET_WORK_BULK ? BULK_WEIGHT : 1;

	if (scaler->level == 1)
		scaler->often +=
			((int)(tally->limited * UINT64_C(10000) / tally->count) - scaler->often) / OFTEN_WINDOWS;
	scaler->unlimited = wants_streams(scaler) ? 0 : scaler->unlimited + weight;
}

/* The level to try next from where nothing is on trial or in review; 0: none. */
static int propose(const struct bnet_scaler *scaler, uint64_t now_us)
{
	const uint32_t idle = (scaler->careful ? LONG_IDLE_WINDOWS : IDLE_WINDOWS) * BULK_WEIGHT;
	int more = scaler->level < 2 ? 4 : 2 * scaler->level, fewer = scaler->level / 2;

	if (rests(scaler, now_us))
		return 0;
	if (limited(scaler) && scaler->level == 1 && !queued(scaler) && scaler->often < OFTEN)
		return 0;
	if (wants_streams(scaler))
		return scaler->level >= scaler->most ? 0 : more < scaler->most ? more : scaler->most;
	if (scaler->unlimited < idle || scaler->level == scaler->least)
		return 0;
	return fewer > scaler->least ? fewer : scaler->least;
}

/* A climb that was kept in doubt is over where no raise can follow: the level is the highest, the last trial failed, or
 * the network has not limited for a while. */
static bool climb_is_over(const struct bnet_scaler *scaler, uint64_t now_us)
{
	return scaler->in_doubt && (scaler->level >= scaler->most || rests(scaler, now_us) ||
				    scaler->unlimited >= IDLE_WINDOWS * BULK_WEIGHT);
}

/* In a review: the place in `seen` of the fewest streams that seemed as good as the best, which may be the present ones
 * by their rate in the long window; -1: none. */
static int find_as_good(const struct bnet_scaler *scaler, uint64_t rate)
{
	uint64_t best = rate;

	for (int i = 0; i < scaler->nseen; i++)
		best = scaler->seen[i].rate > best ? scaler->seen[i].rate : best;
	for (int i = 0; i < scaler->nseen; i++)
		if (scaler->seen[i].rate * 100 >= best * AS_GOOD_PERCENT && scaler->seen[i].level >= scaler->least &&
		    scaler->seen[i].level < scaler->level)
			return i;
	return -1;
}

/* The level to compare next; 0: the review is over. */
static int next_of_review(struct bnet_scaler *scaler, uint64_t now_us, uint64_t rate)
{
	int place = find_as_good(scaler, rate), level;

	if (place < 0) {
		end_review(scaler, now_us);
		return 0;
	}
	level = scaler->seen[place].level;
	/* It is compared once, and so is none below it. */
	scaler->nseen -= place + 1;
	memmove(scaler->seen, scaler->seen + place + 1, (size_t)scaler->nseen * sizeof(scaler->seen[0]));
	return level;
}

static int next_of_hold(struct bnet_scaler *scaler, uint64_t now_us)
{
	int level;

	learn(scaler);
	level = propose(scaler, now_us);
	if (level)
		scaler->unlimited = 0;
	else if (climb_is_over(scaler, now_us))
		scaler->state = BNET_SCALER_REVIEWING;
	return level;
}

bool bnet_scaler_step(struct bnet_scaler *scaler, const struct bnet_scaler_sample *sample)
{
	uint64_t rate;
	int next;

	measure(scaler, sample);
	if (!window_is_full(scaler, sample))
		return false;
	rate = scaler->bytes * 1000000 / scaler->time_us;
	if (tries(scaler) && waits_for_ranks(scaler, sample->now_us, rate))
		return false; /* the window gets longer */
	scaler->careful -= scaler->careful > 0;
	if (tries(scaler) && end_trial(scaler, sample, rate))
		return true;
	next = reviews(scaler) ? next_of_review(scaler, sample->now_us, rate) : next_of_hold(scaler, sample->now_us);
	if (next)
		begin_trial(scaler, sample, next, rate);
	else
		clear_window(scaler);
	return next != 0;
}
