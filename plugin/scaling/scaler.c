/* SPDX-License-Identifier: MIT
 *
 * Trials of more streams; see demand.h. Pure.
 */
#include "scaling/scaler.h"

#include <string.h>

/* One measurement takes at least so long, and so many round trips. */
#define WINDOW_US 100000
#define WINDOW_RTTS 8
/* … and this is a longer look. */
#define LONG_WINDOW_US 1000000
#define LONG_WINDOW_RTTS 64
/* … after the streams have had so long to find their speed. */
#define SETTLE_US 60000
#define SETTLE_RTTS 6
/* What more streams have to carry, in hundredths of what fewer did, or else they rest: the first ones much more, since
 * a path that limits a lone stream gives several a multiple; later ones a little more. */
#define FIRST_GAIN_PERCENT 120
#define GAIN_PERCENT 105
/* Where nothing waits on the way, the streams' own windows limit, and more of them carry more sooner or later: so they
 * stay unless it has become clearly less. */
#define LOSS_PERCENT 50
/* What seems as good as the best on the way up, in hundredths of that: short windows waver. */
#define AS_GOOD_PERCENT 80
/* What fewer streams have to carry, if they are to do. */
#define SAME_PERCENT 97
/* A lone stream on a way where nothing queues has to be limited for so much of the time, on a mean over several
 * windows: what limits a collective there changes from one round trip to the next, and a climb costs it much. The mean
 * begins lower, so that one window does not do. */
#define OFTEN 5000
#define OFTEN_BEGIN 2500
#define OFTEN_WINDOWS 4
/* So many windows in which the network did not limit raise the question whether fewer streams would do. */
#define IDLE_WINDOWS 10
#define LONG_IDLE_WINDOWS 2
/* Where nothing waits, fewer would do, but more are at hand for when something does: such a window counts so much
 * less. */
#define WAITING_WEIGHT 60
/* For so many long windows a review holds: a minute or more. After that the path may have changed. */
#define CAREFUL_WINDOWS 60
/* More streams that carry no more, but that the network does not limit any more, may be waiting for other ranks, which
 * are about to try the same. So long, which is twice the first rest. */
#define PATIENCE_US 1000000
#define BACKOFF_US 500000
#define MOST_BACKOFF_US 60000000

void bnet_scaler_init(struct bnet_scaler *demand, int least, int most)
{
	memset(demand, 0, sizeof(*demand));
	demand->level = demand->least = least;
	demand->most = most;
	demand->often = OFTEN_BEGIN;
	demand->rests[0].backoff_us = demand->rests[1].backoff_us = BACKOFF_US;
}

static uint64_t at_least(uint64_t us, uint32_t rtt_us, uint64_t rtts)
{
	return rtt_us * rtts > us ? rtt_us * rtts : us;
}

static void clear_window(struct bnet_scaler *demand)
{
	demand->bytes = demand->time_us = 0;
	memset(demand->of, 0, sizeof(demand->of));
}

static void settle(struct bnet_scaler *demand, const struct bnet_scaler_sample *sample)
{
	demand->settled_us = sample->now_us + at_least(SETTLE_US, sample->rtt_us, SETTLE_RTTS);
	clear_window(demand);
}

static bool measured(struct bnet_scaler *demand, const struct bnet_scaler_sample *sample)
{
	if (sample->opening) {
		settle(demand, sample);
		return false;
	}
	if (sample->now_us < demand->settled_us)
		return false;
	demand->bytes += sample->acked;
	demand->time_us += sample->elapsed_us;
	demand->of[sample->waiting].samples++;
	demand->of[sample->waiting].limited += sample->limited;
	demand->of[sample->waiting].queued += sample->queued;
	if (demand->review || demand->careful)
		return demand->time_us >= at_least(LONG_WINDOW_US, sample->rtt_us, LONG_WINDOW_RTTS);
	return demand->time_us >= at_least(WINDOW_US, sample->rtt_us, WINDOW_RTTS);
}

static uint64_t gain_percent(const struct bnet_scaler *demand)
{
	if (demand->level < demand->before)
		return SAME_PERCENT;
	return demand->before == 1 ? FIRST_GAIN_PERCENT : GAIN_PERCENT;
}

static bool gains(const struct bnet_scaler *demand, uint64_t rate)
{
	return rate * 100 >= demand->base * gain_percent(demand);
}

/* The kind of work of the window that has been measured: that of most samples, which alone are asked. */
static int kind(const struct bnet_scaler *demand)
{
	return demand->of[1].samples >= demand->of[0].samples;
}

/* Did the network limit for most of the window? A lone stream has to be sure. */
static bool limited(const struct bnet_scaler *demand)
{
	const uint32_t samples = demand->of[kind(demand)].samples, of_them = demand->of[kind(demand)].limited;

	return demand->level == 1 ? of_them * 4 >= samples * 3 : of_them * 2 >= samples;
}

static bool queued(const struct bnet_scaler *demand)
{
	return demand->of[kind(demand)].queued * 2 >= demand->of[kind(demand)].samples;
}

/* More streams that carry no more may yet come to it, if their windows are what limits. */
static bool in_doubt(const struct bnet_scaler *demand, uint64_t rate)
{
	return !demand->careful && demand->kind == 1 && kind(demand) == 1 && !queued(demand) &&
	       rate * 100 >= demand->base * LOSS_PERCENT;
}

/* A trial that may be waiting for other ranks. */
static bool goes_on(const struct bnet_scaler *demand, uint64_t now_us, uint64_t rate)
{
	return demand->level > demand->before && !gains(demand, rate) && !limited(demand) &&
	       rate * 100 >= demand->base * LOSS_PERCENT && now_us < demand->patience_us;
}

static void forget_climb(struct bnet_scaler *demand)
{
	demand->in_doubt = demand->review = false;
	demand->nseen = 0;
}

void bnet_scaler_set(struct bnet_scaler *demand, int level)
{
	demand->level = level;
	demand->before = 0;
	forget_climb(demand);
	clear_window(demand);
}

static void remember(struct bnet_scaler *demand, int level, uint64_t rate)
{
	if (demand->nseen > 0 && demand->seen[demand->nseen - 1].level >= level)
		demand->nseen--; /* the base of a trial is what the one before it ended with, measured again */
	if (demand->nseen == BNET_SCALER_SEEN)
		return;
	demand->seen[demand->nseen].level = level;
	demand->seen[demand->nseen].rate = rate;
	demand->nseen++;
}

/* No trial for a while, and after the next one in vain for twice as long. */
static void rest(struct bnet_scaler *demand, uint64_t now_us)
{
	uint64_t *backoff_us = &demand->rests[demand->kind].backoff_us;

	demand->rests[demand->kind].until_us = now_us + *backoff_us;
	*backoff_us *= 2;
	if (*backoff_us > MOST_BACKOFF_US)
		*backoff_us = MOST_BACKOFF_US;
}

static bool rests(const struct bnet_scaler *demand, uint64_t now_us)
{
	return now_us < demand->rests[kind(demand)].until_us;
}

static void begin_trial(struct bnet_scaler *demand, const struct bnet_scaler_sample *sample, int level, uint64_t rate)
{
	if (level > demand->level && !demand->in_doubt)
		demand->nseen = 0; /* a climb begins, or goes on without doubt */
	if (level > demand->level)
		remember(demand, demand->level, rate);
	demand->before = demand->level;
	demand->base = rate;
	demand->kind = kind(demand);
	demand->level = level;
	demand->patience_us = sample->now_us + at_least(PATIENCE_US, sample->rtt_us, LONG_WINDOW_RTTS);
	settle(demand, sample);
}

static void end_review(struct bnet_scaler *demand, uint64_t now_us)
{
	forget_climb(demand);
	demand->careful = CAREFUL_WINDOWS;
	rest(demand, now_us);
}

/* True: the trial has failed, and the level is what it was. */
static bool end_trial(struct bnet_scaler *demand, const struct bnet_scaler_sample *sample, uint64_t rate)
{
	const bool more = demand->level > demand->before;
	const bool better = gains(demand, rate), kept = better || (more && in_doubt(demand, rate));

	if (kept && more) {
		demand->in_doubt |= !better;
		demand->rests[demand->kind].backoff_us = BACKOFF_US;
		remember(demand, demand->level, rate);
	} else if (kept && demand->review) {
		end_review(demand, sample->now_us); /* fewer are as good */
	} else if (!kept) {
		demand->level = demand->before;
		if (!demand->review)
			rest(demand, sample->now_us);
		settle(demand, sample);
	}
	demand->before = 0;
	return !kept;
}

/* Of what was seen on the way and was not compared yet: the fewest streams that seemed as good as the best, which may
 * be what there is now, by its rate in the longer look; 0: none. */
static int second_thought(struct bnet_scaler *demand, uint64_t rate)
{
	uint64_t best = rate;

	for (int i = 0; i < demand->nseen; i++)
		best = demand->seen[i].rate > best ? demand->seen[i].rate : best;
	for (int i = 0; i < demand->nseen; i++) {
		const int level = demand->seen[i].level;

		if (demand->seen[i].rate * 100 < best * AS_GOOD_PERCENT || level < demand->least || level >= demand->level)
			continue;
		memmove(demand->seen, demand->seen + i + 1, (size_t)(demand->nseen - i - 1) * sizeof(demand->seen[0]));
		demand->nseen -= i + 1;
		return level;
	}
	return 0;
}

/* A climb with doubts is over where no raise can follow it now: there are no more, the last one was in vain, or the
 * network has not limited for a while. */
static bool climb_is_over(const struct bnet_scaler *demand, uint64_t now_us)
{
	return demand->in_doubt &&
	       (demand->level >= demand->most || rests(demand, now_us) || demand->unlimited >= IDLE_WINDOWS * WAITING_WEIGHT);
}

/* A mean that forgets. */
static void learn_how_often(struct bnet_scaler *demand)
{
	const uint32_t samples = demand->of[kind(demand)].samples, of_them = demand->of[kind(demand)].limited;

	if (demand->level == 1)
		demand->often += ((int)(of_them * UINT64_C(10000) / samples) - demand->often) / OFTEN_WINDOWS;
}

/* The level to try next; 0: none. */
static int proposal(struct bnet_scaler *demand, uint64_t now_us)
{
	const uint32_t idle = (demand->careful ? LONG_IDLE_WINDOWS : IDLE_WINDOWS) * WAITING_WEIGHT;
	int more = demand->level < 2 ? 4 : 2 * demand->level, less = demand->level / 2;

	learn_how_often(demand);
	demand->unlimited = limited(demand) ? 0 : demand->unlimited + (kind(demand) ? WAITING_WEIGHT : 1);
	if (rests(demand, now_us))
		return 0;
	if (limited(demand) && demand->level == 1 && !queued(demand) && demand->often < OFTEN)
		return 0;
	if (limited(demand))
		return demand->level >= demand->most ? 0 : more < demand->most ? more : demand->most;
	if (demand->unlimited < idle || demand->level == demand->least)
		return 0;
	demand->unlimited = 0;
	return less > demand->least ? less : demand->least;
}

bool bnet_scaler_step(struct bnet_scaler *demand, const struct bnet_scaler_sample *sample)
{
	uint64_t rate;
	int next;

	if (!measured(demand, sample))
		return false;
	rate = demand->bytes * 1000000 / demand->time_us;
	if (demand->before && goes_on(demand, sample->now_us, rate))
		return false; /* and the window gets longer */
	demand->careful -= demand->careful > 0;
	if (demand->before && end_trial(demand, sample, rate))
		return true;
	next = demand->review ? second_thought(demand, rate) : proposal(demand, sample->now_us);
	if (demand->review && next == 0)
		end_review(demand, sample->now_us); /* nothing seen on the way is as good */
	else if (next == 0)
		demand->review = climb_is_over(demand, sample->now_us);
	if (next == 0) {
		clear_window(demand);
		return false;
	}
	begin_trial(demand, sample, next, rate);
	return true;
}
