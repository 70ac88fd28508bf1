/* SPDX-License-Identifier: MIT
 *
 * See scaler.h. Functions that take a const scaler decide; the others change one thing each.
 */
#include "scaling/scaler.h"

#include <string.h>

/* The least time of a window, and the least number of round trips in it. */
#define WINDOW_US 100000
#define WINDOW_RTTS 8
/* … and of the pause before it, in which streams find their speed. */
#define SETTLE_US 60000
#define SETTLE_RTTS 6
/* A long window is as long as so many others. */
#define LONG 8
/* Marks are asked for so much earlier than they are needed. */
#define AHEAD_US 10000
#define AHEAD_RTTS 2
/* A raise: four streams first, and then twice as many. On two processors, four times as many from four on carried 0.85
 * × as much (S2). */
#define FIRST_LEVEL 4
#define RAISE 2
/* The least gain of more streams, in percent of the rate of fewer: the first ones much more, since a path that limits a
 * lone stream gives several a multiple; later ones a little more. */
#define FIRST_GAIN_PERCENT 120
#define GAIN_PERCENT 105
/* What more streams must carry after which the network limits no more, in percent of the rate of fewer: where a ring
 * waits for another edge it is as much. Where the processor limits instead, 32 streams carry a half of 16, and in rings
 * of small messages 64 carry two thirds. */
#define AS_MUCH_PERCENT 95
/* … and how busy they may be then, in percent of what fewer were: half, if each has a limit of its own. */
#define LESS_BUSY_PERCENT 75
/* Where nothing queues on the way, the streams' own windows limit, and more streams carry more sooner or later: they
 * stay unless they carry clearly less. */
#define LOSS_PERCENT 50
/* Fewer streams, in a step: one of so many less, or, where nothing queues, one of FEW. */
#define SIXTEENTH 16
#define FEW 4
/* … and where the network does not limit, so many that they are busy for this share of the time, in 1/10000. */
#define SPARE_BUSY 5000
/* … if in so many windows before, in 10 s of work, it has not limited. */
#define QUIET_WINDOWS 100
/* How long fewer streams are due, which the network must limit as well. */
#define DUE_US 5000000
/* The rate that fewer streams must reach, in percent. */
#define SAME_PERCENT 97
/* The share of a path's gain that must show at the devices, in percent; what does not show was taken from others.
 * Streams that were kept are given up only if clearly less shows. */
#define SHOWN_PERCENT 75
#define STILL_SHOWN_PERCENT (SHOWN_PERCENT / 5)
/* A window that calls for a trial has no marks yet; within so many windows another one that has marks will follow, also
 * where the job works in bursts. */
#define CURIOUS_WINDOWS 16
/* Where nothing queues, a lone stream must be limited for this share of the time, in 1/10000, in a mean over several
 * windows: what limits a collective there changes between round trips, and a climb costs it much. The mean begins
 * lower, so that one window does not suffice. */
#define OFTEN 5000
#define OFTEN_WINDOWS 4
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
	scaler->curious = CURIOUS_WINDOWS;
	scaler->level = scaler->least = least;
	scaler->most = most;
	scaler->often = OFTEN / 2;
	for (int i = 0; i < BNET_WORKS; i++)
		scaler->rests[i].backoff_us = BACKOFF_US;
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

/* us, or that many round trips of the path itself: a queue would stretch a trial, whose streams do not need it. */
static uint64_t at_least(uint64_t us, const struct bnet_sample *sample, uint64_t rtts)
{
	const uint64_t rtt_us = sample->min_rtt_us ? sample->min_rtt_us : sample->rtt_us;

	return rtt_us * rtts > us ? rtt_us * rtts : us;
}

static void settle(struct bnet_scaler *scaler, const struct bnet_sample *sample)
{
	scaler->settled_us = sample->now_us + at_least(SETTLE_US, sample, SETTLE_RTTS);
	bnet_window_clear(&scaler->window);
}

/* Windows of a trial are compared by what the network carried. So is the one before a trial, but it may begin without a
 * mark and get one later. */
static bool tries(const struct bnet_scaler *scaler)
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
	if (scaler->due && scaler->idle)
		return true;
	return (scaler->due || (scaler->curious && scaler->most > scaler->least)) &&
	       (sample->limited || sample->pressed);
}

static bool needs_a_beginning(const struct bnet_scaler *scaler, const struct bnet_sample *sample)
{
	return scaler->window.marked == 0 && sample->now_us + ahead_us(sample) >= scaler->settled_us &&
	       (tries(scaler) || calls_for_trial(scaler, sample));
}

static void measure(struct bnet_scaler *scaler, const struct bnet_sample *sample)
{
	if (sample->opening) {
		settle(scaler, sample);
		return;
	}
	if (needs_a_beginning(scaler, sample))
		scaler->window.asks = true;
	if (sample->now_us < scaler->settled_us || (tries(scaler) && scaler->window.marked == 0))
		return;
	bnet_window_add(&scaler->window, sample);
}

static const struct bnet_tally *tally(const struct bnet_scaler *scaler)
{
	return &scaler->window.of[bnet_window_work(&scaler->window)];
}

static bool limited(const struct bnet_scaler *scaler)
{
	return bnet_window_is_limited(tally(scaler), scaler->level == 1);
}

/* Reason enough to keep the streams, and to try more if there are several. */
static bool wants_streams(const struct bnet_scaler *scaler)
{
	return limited(scaler) || bnet_window_is_pressed(tally(scaler), scaler->level == 1);
}

static bool queued(const struct bnet_scaler *scaler)
{
	return bnet_tally_is_queued(tally(scaler));
}

/* Nothing queues, so the streams' windows grow and shrink; and no hurry, since this is not a climb. */
static bool takes_long(const struct bnet_scaler *scaler)
{
	return (scaler->careful || scaler->state == BNET_SCALER_LOWERING) && !queued(scaler);
}

static uint64_t window_us(const struct bnet_scaler *scaler, const struct bnet_sample *sample)
{
	return at_least(WINDOW_US, sample, WINDOW_RTTS) * (takes_long(scaler) ? LONG : 1);
}

static bool window_is_full(const struct bnet_scaler *scaler, const struct bnet_sample *sample)
{
	return scaler->window.time_us >= window_us(scaler, sample);
}

static bool window_is_nearly_full(const struct bnet_scaler *scaler, const struct bnet_sample *sample)
{
	return !window_is_full(scaler, sample) && scaler->window.marked == 1 && scaler->window.time_us > 0 &&
	       scaler->window.time_us + ahead_us(sample) >= window_us(scaler, sample);
}

/* ---- the level from outside ---- */

void bnet_scaler_set(struct bnet_scaler *scaler, int level)
{
	scaler->level = level;
	scaler->state = BNET_SCALER_HOLDING;
	scaler->curious = 0;
	scaler->in_doubt = scaler->due = false;
	bnet_window_clear(&scaler->window);
}

static int within(int level, int least, int most)
{
	return level > most ? most : level < least ? least : level;
}

void bnet_scaler_resume(struct bnet_scaler *scaler, int level)
{
	scaler->level = within(level, scaler->least, scaler->most);
	scaler->untested = scaler->level > scaler->least;
}

int bnet_scaler_held(const struct bnet_scaler *scaler)
{
	return scaler->state == BNET_SCALER_LOWERING ? scaler->before : scaler->level;
}

void bnet_scaler_bound(struct bnet_scaler *scaler, int least, int most)
{
	const int level = within(scaler->level, least, most);

	scaler->least = least;
	scaler->most = most;
	if (level != scaler->level || (tries(scaler) && within(scaler->before, least, most) != scaler->before))
		bnet_scaler_set(scaler, level);
}

/* ---- rests ---- */

/* No trial of more for a while at this level or above, and after the next one that fails here for twice as long. */
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

/* ---- what to try next ---- */

static int more(const struct bnet_scaler *scaler)
{
	const int level = scaler->level < FIRST_LEVEL / RAISE ? FIRST_LEVEL : scaler->level * RAISE;

	return level < scaler->most ? level : scaler->most;
}

/* What a minute of little work needs; streams that the network limits by the step. */
static int fewer(const struct bnet_scaler *scaler)
{
	const int step = scaler->level / (queued(scaler) ? SIXTEENTH : FEW);
	const int less = scaler->level - (step > 0 ? step : 1);
	const int busy = 1 + (int)(bnet_window_busy(&scaler->window) * (uint32_t)scaler->level / SPARE_BUSY);
	const int level = scaler->idle && busy < less ? busy : less;

	return level > scaler->least ? level : scaler->least;
}

/* The level to try next from the one that is held, by the window; the same: none. */
static int propose(const struct bnet_scaler *scaler, uint64_t now_us)
{
	if (scaler->due)
		return scaler->idle || wants_streams(scaler) ? fewer(scaler) : scaler->level;
	if (rests(scaler, now_us) || !wants_streams(scaler))
		return scaler->level;
	if (limited(scaler) && scaler->level == 1 && !queued(scaler) && scaler->often < OFTEN)
		return scaler->level;
	return more(scaler);
}

/* A job that works in bursts may not be limited just then. */
static void set_due(struct bnet_scaler *scaler, uint64_t now_us)
{
	scaler->due = true;
	scaler->due_until_us = now_us + DUE_US;
}

/* A climb that was kept in doubt is over where no raise can follow. */
static bool doubtful_climb_is_over(const struct bnet_scaler *scaler, uint64_t now_us)
{
	return scaler->in_doubt && (scaler->level >= scaler->most || rests(scaler, now_us));
}

/* A trial of more must not begin: all flows share one queue. Several streams have shown that each has a limit of its
 * own. */
static bool is_refused(struct bnet_scaler *scaler, int level, uint64_t now_us)
{
	if (level < scaler->level || scaler->level > scaler->least || !bnet_window_shares_its_queue(&scaler->window))
		return false;
	scaler->work = bnet_window_work(&scaler->window);
	rest(scaler, now_us);
	return true;
}

/* ---- a trial ---- */

static bool reaches(const struct bnet_scaler *scaler, uint64_t rate, uint64_t percent)
{
	return rate * 100 >= scaler->base.own * percent;
}

static bool gains(const struct bnet_scaler *scaler, uint64_t rate)
{
	const uint64_t percent = scaler->state == BNET_SCALER_LOWERING ? SAME_PERCENT
				 : scaler->before == 1                 ? FIRST_GAIN_PERCENT
								       : GAIN_PERCENT;

	return reaches(scaler, rate, percent);
}

/* More streams that carry no more now may yet do so, if their own windows are what limits. */
static bool may_yet_gain(const struct bnet_scaler *scaler, uint64_t rate)
{
	return !scaler->careful && scaler->work == BNET_WORK_BULK &&
	       bnet_window_work(&scaler->window) == BNET_WORK_BULK && !queued(scaler) &&
	       reaches(scaler, rate, LOSS_PERCENT);
}

/* What the more streams of the trial's two levels carry beyond the fewer was taken from others. */
static bool takes_from_others(const struct bnet_scaler *scaler, const struct bnet_carried *now)
{
	return scaler->state == BNET_SCALER_RAISING ? bnet_is_others_share(&scaler->base, now, SHOWN_PERCENT)
						    : bnet_is_others_share(now, &scaler->base, STILL_SHOWN_PERCENT);
}

/* What a raise is compared with: the window before it. Where that was somewhat slower than before the last trial, which
 * has failed, others may try something just then, so half of the difference counts. */
static struct bnet_carried base_of(const struct bnet_scaler *scaler, const struct bnet_carried *now)
{
	struct bnet_carried base = *now;

	if (scaler->before == scaler->level && scaler->work == bnet_window_work(&scaler->window) &&
	    now->own < scaler->base.own && now->own * 100 >= scaler->base.own * LOSS_PERCENT)
		base.own = now->own / 2 + scaler->base.own / 2;
	return base;
}

static void begin_trial(struct bnet_scaler *scaler, const struct bnet_sample *sample, int level,
			const struct bnet_carried *now)
{
	scaler->state = level > scaler->level ? BNET_SCALER_RAISING : BNET_SCALER_LOWERING;
	scaler->base = scaler->state == BNET_SCALER_RAISING ? base_of(scaler, now) : *now;
	scaler->base_busy = bnet_window_busy(&scaler->window);
	scaler->before = scaler->level;
	scaler->work = bnet_window_work(&scaler->window);
	scaler->level = level;
	scaler->idle &= scaler->state == BNET_SCALER_LOWERING;
	scaler->curious = 0;
	scaler->due = false;
	settle(scaler, sample);
}

static void give_up(struct bnet_scaler *scaler, const struct bnet_sample *sample)
{
	const bool raised = scaler->state == BNET_SCALER_RAISING;

	scaler->level = scaler->before;
	scaler->state = BNET_SCALER_HOLDING;
	if (raised)
		rest(scaler, sample->now_us);
	settle(scaler, sample);
}

/* They carry about as much with less work. A job that happens to have less to send is as busy as its rate says. */
static bool limits_no_more(const struct bnet_scaler *scaler, uint64_t rate)
{
	return !wants_streams(scaler) && reaches(scaler, rate, AS_MUCH_PERCENT) &&
	       bnet_window_busy(&scaler->window) * 100 <= scaler->base_busy * LESS_BUSY_PERCENT;
}

static bool keeps_more(const struct bnet_scaler *scaler, const struct bnet_carried *now)
{
	if (reaches(scaler, now->own, GAIN_PERCENT) && takes_from_others(scaler, now))
		return false;
	return gains(scaler, now->own) || limits_no_more(scaler, now->own) || may_yet_gain(scaler, now->own);
}

static void keep_more(struct bnet_scaler *scaler, uint64_t rate)
{
	scaler->in_doubt |= wants_streams(scaler) && !gains(scaler, rate);
	scaler->rests[scaler->work].backoff_us = BACKOFF_US;
	scaler->state = BNET_SCALER_HOLDING;
}

static bool keeps_fewer(const struct bnet_scaler *scaler, const struct bnet_carried *now)
{
	return gains(scaler, now->own) || takes_from_others(scaler, now);
}

/* Goes on with the next step, whose rate is compared with the first base: small losses add up. Long windows waver so
 * little that the best one can take its place. Streams that were given up are not tried again at once. */
static bool keep_fewer(struct bnet_scaler *scaler, const struct bnet_sample *sample, const struct bnet_carried *now)
{
	const int level = fewer(scaler);

	scaler->kept.at_us = 0;
	rest(scaler, sample->now_us);
	if (takes_long(scaler) && now->own > scaler->base.own)
		scaler->base = *now;
	if (level == scaler->level) {
		scaler->state = BNET_SCALER_HOLDING;
		bnet_window_clear(&scaler->window);
		return false;
	}
	scaler->before = scaler->level;
	scaler->level = level;
	settle(scaler, sample);
	return true;
}

static struct bnet_verdict verdict(const struct bnet_scaler *scaler, uint64_t now_us, uint64_t rate)
{
	return (struct bnet_verdict){
		.at_us = now_us,
		.fewer = scaler->before,
		.more = scaler->level,
		.with_fewer = scaler->base.own,
		.with_more = rate,
	};
}

/* One that goes on where the last one has ended is a part of the same climb. */
static void note_kept(struct bnet_scaler *scaler, uint64_t now_us, uint64_t rate)
{
	const struct bnet_verdict last = scaler->kept;

	scaler->kept = verdict(scaler, now_us, rate);
	if (last.at_us && last.more == scaler->before) {
		scaler->kept.fewer = last.fewer;
		scaler->kept.with_fewer = last.with_fewer;
	}
}

/* ---- a window's end ---- */

static void learn(struct bnet_scaler *scaler, uint64_t now_us)
{
	const int often = (int)(tally(scaler)->limited * UINT64_C(10000) / tally(scaler)->count);

	if (scaler->level == 1)
		scaler->often += (often - scaler->often) / OFTEN_WINDOWS;
	scaler->quiet++;
	if (!wants_streams(scaler))
		return;
	scaler->quiet = 0;
	if (scaler->untested)
		set_due(scaler, now_us);
	scaler->untested = false;
}

/* True: the window does not call for a trial, and the next one begins. */
static bool is_quiet(struct bnet_scaler *scaler, uint64_t now_us)
{
	learn(scaler, now_us);
	if (propose(scaler, now_us) != scaler->level)
		return false;
	if (doubtful_climb_is_over(scaler, now_us)) {
		set_due(scaler, now_us);
		scaler->careful = true;
		scaler->in_doubt = false;
	} else if (scaler->due && (now_us >= scaler->due_until_us || scaler->level == scaler->least)) {
		scaler->due = false;
	}
	scaler->curious -= scaler->curious > 0;
	bnet_window_clear(&scaler->window);
	return true;
}

/* True: the window is not complete yet, or begins again. */
static bool lacks_marks(struct bnet_scaler *scaler)
{
	if (scaler->window.marked == 2)
		return false;
	if (scaler->window.marked == 0) {
		scaler->curious = CURIOUS_WINDOWS;
		bnet_window_clear(&scaler->window);
	}
	scaler->window.asks = true;
	return true;
}

static bool begin_next(struct bnet_scaler *scaler, const struct bnet_sample *sample, const struct bnet_carried *now)
{
	const int level = propose(scaler, sample->now_us);

	if (level == scaler->level || is_refused(scaler, level, sample->now_us)) {
		bnet_window_clear(&scaler->window);
		return false;
	}
	begin_trial(scaler, sample, level, now);
	return true;
}

/* The window is complete. */
static bool decide(struct bnet_scaler *scaler, const struct bnet_sample *sample)
{
	const struct bnet_carried now = bnet_window_carried(&scaler->window);

	if (scaler->state == BNET_SCALER_LOWERING && keeps_fewer(scaler, &now))
		return keep_fewer(scaler, sample, &now);
	if (scaler->state == BNET_SCALER_RAISING && keeps_more(scaler, &now)) {
		note_kept(scaler, sample->now_us, now.own);
		keep_more(scaler, now.own);
		if (is_quiet(scaler, sample->now_us))
			return false;
	}
	if (tries(scaler)) {
		if (scaler->state == BNET_SCALER_RAISING)
			scaler->refused = verdict(scaler, sample->now_us, now.own);
		give_up(scaler, sample);
		return true;
	}
	return begin_next(scaler, sample, &now);
}

/* The minute has begun while a trial is on: fewer are tried a minute later. */
static void note_minute(struct bnet_scaler *scaler, uint64_t now_us, uint64_t minute)
{
	const bool first = scaler->minute == 0;

	if (minute == scaler->minute)
		return;
	scaler->minute = minute;
	if (first || tries(scaler) || scaler->level == scaler->least)
		return;
	set_due(scaler, now_us);
	scaler->idle = scaler->quiet >= QUIET_WINDOWS;
	bnet_window_clear(&scaler->window);
}

void bnet_scaler_tell(struct bnet_scaler *scaler, const struct bnet_window_report *report)
{
	if (scaler->window.marked == 0)
		bnet_window_clear(&scaler->window);
	bnet_window_mark(&scaler->window, report);
}

bool bnet_scaler_step(struct bnet_scaler *scaler, const struct bnet_sample *sample)
{
	note_minute(scaler, sample->now_us, sample->minute);
	measure(scaler, sample);
	if (!scaler->window.asks && window_is_nearly_full(scaler, sample) &&
	    (tries(scaler) || propose(scaler, sample->now_us) != scaler->level))
		scaler->window.asks = true;
	if (!window_is_full(scaler, sample))
		return false;
	if (!tries(scaler) && !scaler->window.judged) {
		scaler->window.judged = true;
		if (is_quiet(scaler, sample->now_us))
			return false;
	}
	if (scaler->window.asks || lacks_marks(scaler))
		return false;
	return decide(scaler, sample);
}
