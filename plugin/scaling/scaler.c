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
/* What opening streams and asking for marks takes. */
#define MARKS_US 100000
#define MARKS_RTTS 8
/* Marks are asked for so much earlier than they are needed. */
#define AHEAD_US 10000
#define AHEAD_RTTS 2
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
/* The share of a path's gain that must show at the devices, in percent; what does not show was taken from others. Where
 * flow classes fill up, a part of a gain shows. Streams that were kept are given up only if clearly less shows. */
#define SHOWN_PERCENT 25
#define STILL_SHOWN_PERCENT 15
/* Fewer streams are tried this long after more were kept, and then less and less often. */
#define DOUBT_US 5000000
#define MAX_DOUBT_US 60000000
/* A window that calls for a trial has no marks yet; within so many windows another one that has marks will follow, also
 * where the job works in bursts. */
#define CURIOUS_WINDOWS 16
/* Another trial has the lease: the next try comes after once to twice this. */
#define RETRY_US 100000
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
#define MAX_BACKOFF_US 60000000

/* Connections with little to send do not outvote those that have more than their streams take. */
void bnet_scaler_conclude(struct bnet_sample *sample, const struct bnet_tally of[BNET_WORKS], bool lone)
{
	const enum bnet_work work = of[BNET_WORK_BULK].count > 0 ? BNET_WORK_BULK : BNET_WORK_SMALL;

	sample->work = work;
	sample->limited = bnet_path_is_limited(&of[work], lone);
	sample->pressed = bnet_path_is_pressed(&of[work], lone);
	sample->queued = bnet_tally_is_queued(&of[work]);
}

void bnet_scaler_init(struct bnet_scaler *scaler, int least, int most, uint64_t seed)
{
	memset(scaler, 0, sizeof(*scaler));
	scaler->random = seed;
	scaler->doubt_wait_us = DOUBT_US;
	scaler->curious = CURIOUS_WINDOWS;
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

/* Up to us more, at random (xorshift64). */
static uint64_t jittered(struct bnet_scaler *scaler, uint64_t us)
{
	scaler->random ^= scaler->random << 13;
	scaler->random ^= scaler->random >> 7;
	scaler->random ^= scaler->random << 17;
	return us + scaler->random % us;
}

/* ---- the window ---- */

static void settle(struct bnet_scaler *scaler, const struct bnet_sample *sample)
{
	scaler->settled_us = sample->now_us + at_least(SETTLE_US, sample->rtt_us, SETTLE_RTTS);
	bnet_window_clear(&scaler->window);
}

/* Windows of a trial and of a review are compared by what the network carried. So is the one before a trial, but it
 * may begin without a mark and get one later. */
static bool needs_marks(const struct bnet_scaler *scaler)
{
	return scaler->state != BNET_SCALER_HOLDING;
}

/* An answer takes a handshake and a round trip, and is noticed with the next sample. */
static uint64_t ahead_us(const struct bnet_sample *sample)
{
	return AHEAD_US + (uint64_t)sample->rtt_us * AHEAD_RTTS;
}

/* A trial may follow this window. */
static bool calls_for_trial(const struct bnet_scaler *scaler, const struct bnet_sample *sample)
{
	return scaler->curious && scaler->most > scaler->least && (sample->limited || sample->pressed);
}

static bool needs_a_beginning(const struct bnet_scaler *scaler, const struct bnet_sample *sample)
{
	return scaler->window.marked == 0 && sample->now_us + ahead_us(sample) >= scaler->settled_us &&
	       (needs_marks(scaler) || calls_for_trial(scaler, sample));
}

static void measure(struct bnet_scaler *scaler, const struct bnet_sample *sample)
{
	if (sample->opening) {
		settle(scaler, sample);
		return;
	}
	if (needs_a_beginning(scaler, sample))
		scaler->window.asks = BNET_ASKS_MARK;
	if (sample->now_us < scaler->settled_us || (needs_marks(scaler) && scaler->window.marked == 0))
		return;
	bnet_window_add(&scaler->window, sample);
}

static bool reviews(const struct bnet_scaler *scaler)
{
	return scaler->state == BNET_SCALER_REVIEWING || scaler->state == BNET_SCALER_COMPARING;
}

static bool tries(const struct bnet_scaler *scaler)
{
	return scaler->state == BNET_SCALER_TRYING || scaler->state == BNET_SCALER_COMPARING;
}

static uint64_t window_us(const struct bnet_scaler *scaler, uint32_t rtt_us)
{
	return reviews(scaler) || scaler->careful ? at_least(LONG_WINDOW_US, rtt_us, LONG_WINDOW_RTTS)
						  : at_least(WINDOW_US, rtt_us, WINDOW_RTTS);
}

static bool window_is_full(const struct bnet_scaler *scaler, const struct bnet_sample *sample)
{
	if (sample->opening || sample->now_us < scaler->settled_us)
		return false;
	return scaler->window.time_us >= window_us(scaler, sample->rtt_us);
}

static bool window_is_nearly_full(const struct bnet_scaler *scaler, const struct bnet_sample *sample)
{
	return !window_is_full(scaler, sample) && scaler->window.marked == 1 && scaler->window.time_us > 0 &&
	       scaler->window.time_us + ahead_us(sample) >= window_us(scaler, sample->rtt_us);
}

static bool limited(const struct bnet_scaler *scaler)
{
	return bnet_window_is_limited(&scaler->window.of[bnet_window_work(&scaler->window)], scaler->level == 1);
}

/* Reason enough to keep the streams, and to try more if there are several. */
static bool wants_streams(const struct bnet_scaler *scaler)
{
	return limited(scaler) ||
	       bnet_window_is_pressed(&scaler->window.of[bnet_window_work(&scaler->window)], scaler->level == 1);
}

static bool queued(const struct bnet_scaler *scaler)
{
	return bnet_tally_is_queued(&scaler->window.of[bnet_window_work(&scaler->window)]);
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
	scaler->curious = 0;
	forget_climb(scaler);
	bnet_window_clear(&scaler->window);
}

int bnet_scaler_held(const struct bnet_scaler *scaler)
{
	return tries(scaler) && scaler->before > scaler->level ? scaler->before : scaler->level;
}

static int within(int level, int least, int most)
{
	return level > most ? most : level < least ? least : level;
}

void bnet_scaler_bound(struct bnet_scaler *scaler, int least, int most)
{
	const int level = within(scaler->level, least, most);

	scaler->least = least;
	scaler->most = most;
	if (level != scaler->level || (tries(scaler) && within(scaler->before, least, most) != scaler->before))
		bnet_scaler_set(scaler, level);
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

/* No trial for a while at this level or above, and after the next one that fails here for twice as long. */
static void rest(struct bnet_scaler *scaler, uint64_t now_us)
{
	uint64_t *backoff_us = &scaler->rests[scaler->work].backoff_us;

	if (scaler->rests[scaler->work].level != scaler->level)
		*backoff_us = BACKOFF_US;
	scaler->rests[scaler->work].level = scaler->level;
	scaler->rests[scaler->work].until_us = now_us + jittered(scaler, *backoff_us);
	*backoff_us *= 2;
	if (*backoff_us > MAX_BACKOFF_US)
		*backoff_us = MAX_BACKOFF_US;
}

static bool rests(const struct bnet_scaler *scaler, uint64_t now_us)
{
	const enum bnet_work work = bnet_window_work(&scaler->window);

	return now_us < scaler->rests[work].until_us && scaler->level >= scaler->rests[work].level;
}

static void end_review(struct bnet_scaler *scaler, uint64_t now_us)
{
	scaler->state = BNET_SCALER_HOLDING;
	forget_climb(scaler);
	scaler->careful = CAREFUL_WINDOWS;
	rest(scaler, now_us);
}

/* ---- a trial ---- */

/* It is time to see whether fewer streams would do. */
static bool doubts(const struct bnet_scaler *scaler, uint64_t now_us)
{
	return scaler->level > scaler->least && now_us >= scaler->doubt_us;
}

static uint64_t gain_percent(const struct bnet_scaler *scaler)
{
	if (scaler->level < scaler->before)
		return SAME_PERCENT;
	return scaler->before == 1 ? FIRST_GAIN_PERCENT : GAIN_PERCENT;
}

static bool gains(const struct bnet_scaler *scaler, uint64_t rate)
{
	return rate * 100 >= scaler->base.own * gain_percent(scaler);
}

static bool loses(const struct bnet_scaler *scaler, uint64_t rate)
{
	return rate * 100 < scaler->base.own * LOSS_PERCENT;
}

/* What the more streams of the trial's two levels carry beyond the fewer is taken from others. */
static bool takes_from_others(const struct bnet_scaler *scaler, const struct bnet_carried *now)
{
	return scaler->level > scaler->before ? bnet_is_others_share(&scaler->base, now, SHOWN_PERCENT)
					      : bnet_is_others_share(now, &scaler->base, STILL_SHOWN_PERCENT);
}

/* More streams that carry no more now may yet do so, if their own windows are what limits. */
static bool may_yet_gain(const struct bnet_scaler *scaler, uint64_t rate)
{
	return !scaler->careful && scaler->work == BNET_WORK_BULK &&
	       bnet_window_work(&scaler->window) == BNET_WORK_BULK && !queued(scaler) && !loses(scaler, rate);
}

static bool waits_for_ranks(const struct bnet_scaler *scaler, uint64_t now_us, uint64_t rate)
{
	return scaler->level > scaler->before && !gains(scaler, rate) && !limited(scaler) && !loses(scaler, rate) &&
	       now_us < scaler->patience_us;
}

static void begin_trial(struct bnet_scaler *scaler, const struct bnet_sample *sample, int level,
			const struct bnet_carried *now)
{
	if (level > scaler->level && !scaler->in_doubt)
		scaler->nseen = 0; /* a climb begins, or goes on without doubt */
	if (level > scaler->level)
		remember(scaler, scaler->level, now->own);
	scaler->state = reviews(scaler) ? BNET_SCALER_COMPARING : BNET_SCALER_TRYING;
	scaler->before = scaler->level;
	scaler->base = *now;
	scaler->work = bnet_window_work(&scaler->window);
	scaler->doubted = level < scaler->level && doubts(scaler, sample->now_us);
	scaler->level = level;
	scaler->curious = 0;
	scaler->patience_us = sample->now_us + at_least(PATIENCE_US, sample->rtt_us, LONG_WINDOW_RTTS);
	settle(scaler, sample);
}

static void keep_more(struct bnet_scaler *scaler, uint64_t now_us, uint64_t rate)
{
	scaler->doubt_wait_us = DOUBT_US;
	scaler->doubt_us = now_us + jittered(scaler, scaler->doubt_wait_us);
	scaler->in_doubt |= !gains(scaler, rate);
	scaler->rests[scaler->work].backoff_us = BACKOFF_US;
	remember(scaler, scaler->level, rate);
	scaler->state = BNET_SCALER_HOLDING;
}

/* Streams that were given up on doubt are not tried again at once. */
static void keep_fewer(struct bnet_scaler *scaler, uint64_t now_us)
{
	if (scaler->state == BNET_SCALER_COMPARING)
		end_review(scaler, now_us);
	else if (scaler->doubted)
		rest(scaler, now_us);
	scaler->state = BNET_SCALER_HOLDING;
}

static void doubt_later(struct bnet_scaler *scaler, uint64_t now_us)
{
	scaler->doubt_wait_us = scaler->doubt_wait_us * 2 < MAX_DOUBT_US ? scaler->doubt_wait_us * 2 : MAX_DOUBT_US;
	scaler->doubt_us = now_us + jittered(scaler, scaler->doubt_wait_us);
}

static void give_up(struct bnet_scaler *scaler, const struct bnet_sample *sample)
{
	scaler->level = scaler->before;
	if (scaler->doubted)
		doubt_later(scaler, sample->now_us);
	else if (scaler->state == BNET_SCALER_TRYING)
		rest(scaler, sample->now_us);
	scaler->state = scaler->state == BNET_SCALER_COMPARING ? BNET_SCALER_REVIEWING : BNET_SCALER_HOLDING;
	settle(scaler, sample);
}

/* True: the trial has failed, and the level is back. */
static bool end_trial(struct bnet_scaler *scaler, const struct bnet_sample *sample, const struct bnet_carried *now)
{
	const bool more = scaler->level > scaler->before, takes = takes_from_others(scaler, now);
	const uint64_t rate = now->own;
	const bool kept = more ? (gains(scaler, rate) ? !takes : may_yet_gain(scaler, rate))
			       : gains(scaler, rate) || takes;

	if (!kept)
		give_up(scaler, sample);
	else if (more)
		keep_more(scaler, sample->now_us, rate);
	else
		keep_fewer(scaler, sample->now_us);
	return !kept;
}

/* ---- what to try next ---- */

static void learn(struct bnet_scaler *scaler)
{
	const struct bnet_tally *tally = &scaler->window.of[bnet_window_work(&scaler->window)];
	const uint32_t weight = bnet_window_work(&scaler->window) == BNET_WORK_BULK ? BULK_WEIGHT : 1;

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

	if (now_us < scaler->retry_us)
		return 0;
	if (doubts(scaler, now_us))
		return fewer > scaler->least ? fewer : scaler->least;
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

/* A trial of that level must not begin. */
static bool is_refused(struct bnet_scaler *scaler, int level, uint64_t now_us)
{
	if (scaler->window.refused) {
		scaler->retry_us = now_us + jittered(scaler, RETRY_US);
		return true;
	}
	/* Several streams have shown that each has a limit of its own. */
	if (level < scaler->level || scaler->level > scaler->least || !bnet_window_shares_its_queue(&scaler->window))
		return false;
	scaler->work = bnet_window_work(&scaler->window);
	rest(scaler, now_us);
	return true;
}

/* The lease is not wanted where no trial can follow: at the end of one in vain. */
static enum bnet_window_question last_question(const struct bnet_scaler *scaler, uint64_t rate)
{
	const bool in_vain = tries(scaler) && scaler->level > scaler->before && !gains(scaler, rate) &&
			     !may_yet_gain(scaler, rate);

	return in_vain ? BNET_ASKS_MARK : BNET_ASKS_LEASE;
}

void bnet_scaler_tell(struct bnet_scaler *scaler, const struct bnet_window_report *report)
{
	if (!scaler->window.asks)
		return;
	if (scaler->window.marked == 0)
		bnet_window_clear(&scaler->window);
	bnet_window_mark(&scaler->window, report);
}

uint64_t bnet_scaler_trial_us(const struct bnet_scaler *scaler, uint32_t rtt_us)
{
	return at_least(SETTLE_US, rtt_us, SETTLE_RTTS) + window_us(scaler, rtt_us) +
	       at_least(MARKS_US, rtt_us, MARKS_RTTS);
}

/* ---- a window's end ---- */

/* True: the window does not call for a trial, and the next one begins. */
static bool is_quiet(struct bnet_scaler *scaler, uint64_t now_us)
{
	learn(scaler);
	if (propose(scaler, now_us))
		return false;
	if (climb_is_over(scaler, now_us))
		scaler->state = BNET_SCALER_REVIEWING;
	scaler->curious -= scaler->curious > 0;
	bnet_window_clear(&scaler->window);
	return true;
}

/* True: the window is not complete yet, or begins again. */
static bool lacks_marks(struct bnet_scaler *scaler, uint64_t rate)
{
	if (scaler->window.marked == 2)
		return false;
	if (scaler->window.marked == 1) {
		scaler->window.asks = last_question(scaler, rate);
		return true;
	}
	scaler->curious = CURIOUS_WINDOWS;
	bnet_window_clear(&scaler->window);
	scaler->window.asks = BNET_ASKS_MARK;
	return true;
}

static bool begin_next(struct bnet_scaler *scaler, const struct bnet_sample *sample, const struct bnet_carried *now)
{
	const bool review = reviews(scaler);
	const int level = review && scaler->window.refused ? 0
			  : review                         ? next_of_review(scaler, sample->now_us, now->own)
							   : propose(scaler, sample->now_us);

	if (!level || is_refused(scaler, level, sample->now_us)) {
		bnet_window_clear(&scaler->window);
		return false;
	}
	scaler->unlimited = 0;
	begin_trial(scaler, sample, level, now);
	return true;
}

/* The window is complete. */
static bool decide(struct bnet_scaler *scaler, const struct bnet_sample *sample)
{
	const struct bnet_carried now = bnet_window_carried(&scaler->window);
	const bool tried = tries(scaler);

	scaler->careful -= scaler->careful > 0;
	if (tried && end_trial(scaler, sample, &now))
		return true;
	if (tried && scaler->state == BNET_SCALER_HOLDING && is_quiet(scaler, sample->now_us))
		return false;
	return begin_next(scaler, sample, &now);
}

/* The window's last mark, if it will be needed. */
static void ask_early(struct bnet_scaler *scaler, const struct bnet_sample *sample)
{
	const uint64_t rate = bnet_window_carried(&scaler->window).own;

	if (scaler->state == BNET_SCALER_HOLDING ? propose(scaler, sample->now_us) == 0
						 : waits_for_ranks(scaler, sample->now_us, rate))
		return;
	scaler->window.asks = last_question(scaler, rate);
}

bool bnet_scaler_step(struct bnet_scaler *scaler, const struct bnet_sample *sample)
{
	measure(scaler, sample);
	if (!scaler->window.asks && window_is_nearly_full(scaler, sample))
		ask_early(scaler, sample);
	if (!window_is_full(scaler, sample))
		return false;
	if (tries(scaler) && waits_for_ranks(scaler, sample->now_us, bnet_window_carried(&scaler->window).own)) {
		if (scaler->window.marked == 2)
			scaler->window.marked = 1; /* its end comes later */
		return false;
	}
	if (scaler->state == BNET_SCALER_HOLDING && !scaler->window.judged) {
		scaler->window.judged = true;
		if (is_quiet(scaler, sample->now_us)) {
			scaler->careful -= scaler->careful > 0;
			return false;
		}
	}
	if (scaler->window.asks || lacks_marks(scaler, bnet_window_carried(&scaler->window).own))
		return false;
	return decide(scaler, sample);
}
