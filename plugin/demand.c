/* SPDX-License-Identifier: MIT
 *
 * Trials of more streams; see demand.h. Pure.
 */
#include "demand.h"

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
/* What more streams have to carry, in hundredths of what fewer did, or else they rest: the first ones much more, since a
 * path that limits a lone stream gives several a multiple; later ones a little more. */
#define FIRST_GAIN_PERCENT 120
#define GAIN_PERCENT 105
/* Where nothing waits on the way, the streams' own windows limit, and more of them carry more sooner or later: so they
 * stay unless it has become clearly less. */
#define LOSS_PERCENT 50
/* What seems as good as the best on the way up, in hundredths of that: short windows waver. */
#define AS_GOOD_PERCENT 80
/* What fewer streams have to carry, if they are to do. */
#define SAME_PERCENT 97
/* So many windows in which the network did not limit raise the question whether fewer streams would do. */
#define IDLE_WINDOWS 10
#define LONG_IDLE_WINDOWS 2
#define BACKOFF_US 500000
#define MOST_BACKOFF_US 60000000

void bnet_demand_init(struct bnet_demand *demand, int least, int most)
{
	memset(demand, 0, sizeof(*demand));
	demand->level = demand->least = least;
	demand->most = most;
	demand->backoff_us = BACKOFF_US;
}

static uint64_t at_least(uint64_t us, uint32_t rtt_us, uint64_t rtts)
{
	return rtt_us * rtts > us ? rtt_us * rtts : us;
}

static void clear_window(struct bnet_demand *demand)
{
	demand->bytes = demand->time_us = 0;
	demand->samples = demand->limited = demand->queued = 0;
}

static void settle(struct bnet_demand *demand, const struct bnet_demand_sample *sample)
{
	demand->settled_us = sample->now_us + at_least(SETTLE_US, sample->rtt_us, SETTLE_RTTS);
	clear_window(demand);
}

static bool measured(struct bnet_demand *demand, const struct bnet_demand_sample *sample)
{
	if (sample->opening) {
		settle(demand, sample);
		return false;
	}
	if (sample->now_us < demand->settled_us)
		return false;
	demand->bytes += sample->acked;
	demand->time_us += sample->elapsed_us;
	demand->samples++;
	demand->limited += sample->limited;
	demand->queued += sample->queued;
	if (demand->review || demand->careful)
		return demand->time_us >= at_least(LONG_WINDOW_US, sample->rtt_us, LONG_WINDOW_RTTS);
	return demand->time_us >= at_least(WINDOW_US, sample->rtt_us, WINDOW_RTTS);
}

static uint64_t needed_percent(const struct bnet_demand *demand)
{
	if (demand->level < demand->before)
		return SAME_PERCENT;
	if (demand->queued * 2 < demand->samples && !demand->careful)
		return LOSS_PERCENT;
	return demand->before == 1 ? FIRST_GAIN_PERCENT : GAIN_PERCENT;
}

static void remember(struct bnet_demand *demand, int level, uint64_t rate)
{
	if (demand->nseen > 0 && demand->seen[demand->nseen - 1].level == level)
		demand->nseen--; /* the base of a trial is what the one before it ended with, measured again */
	if (demand->nseen == BNET_DEMAND_SEEN)
		return;
	demand->seen[demand->nseen].level = level;
	demand->seen[demand->nseen].rate = rate;
	demand->nseen++;
}

/* True: the trial has failed, and the level is what it was. */
static bool end_trial(struct bnet_demand *demand, const struct bnet_demand_sample *sample, uint64_t rate)
{
	const uint64_t needed = needed_percent(demand);
	bool kept = rate * 100 >= demand->base * needed;

	if (!demand->careful) {
		remember(demand, demand->before, demand->base);
		remember(demand, demand->level, rate);
		demand->in_doubt |= kept && needed == LOSS_PERCENT;
	}
	if (kept && demand->careful && demand->level < demand->before) {
		/* as good as more, and those are not tried again soon */
		demand->retry_us = sample->now_us + demand->backoff_us;
	} else if (kept) {
		demand->backoff_us = BACKOFF_US;
	} else {
		demand->level = demand->before;
		demand->retry_us = sample->now_us + demand->backoff_us;
		demand->backoff_us *= 2;
		if (demand->backoff_us > MOST_BACKOFF_US)
			demand->backoff_us = MOST_BACKOFF_US;
		settle(demand, sample);
	}
	demand->before = 0;
	return !kept;
}

/* After a climb in doubt: the fewest streams that seemed as good as the best; 0: those that there are. */
static int second_thought(struct bnet_demand *demand)
{
	uint64_t best = 0;

	demand->careful = true;
	for (int i = 0; i < demand->nseen; i++)
		best = demand->seen[i].rate > best ? demand->seen[i].rate : best;
	for (int i = 0; i < demand->nseen; i++)
		if (demand->seen[i].rate * 100 >= best * AS_GOOD_PERCENT && demand->seen[i].level < demand->level &&
		    demand->seen[i].level >= demand->least)
			return demand->seen[i].level;
	return 0;
}

/* The level to try next; 0: none. */
static int proposal(struct bnet_demand *demand, uint64_t now_us)
{
	bool limited = demand->limited * (demand->level == 1 ? 4 : 2) >= demand->samples * (demand->level == 1 ? 3 : 1);
	int more = demand->level < 2 ? 4 : 2 * demand->level, less = demand->level / 2;

	demand->unlimited = limited ? 0 : demand->unlimited + 1;
	if (now_us < demand->retry_us)
		return 0;
	if (limited)
		return demand->level >= demand->most ? 0 : more < demand->most ? more : demand->most;
	if (demand->unlimited < (demand->careful ? LONG_IDLE_WINDOWS : IDLE_WINDOWS) || demand->level == demand->least)
		return 0;
	demand->unlimited = 0;
	return less > demand->least ? less : demand->least;
}

bool bnet_demand_step(struct bnet_demand *demand, const struct bnet_demand_sample *sample)
{
	uint64_t rate;
	int next;

	if (!measured(demand, sample))
		return false;
	rate = demand->bytes * 1000000 / demand->time_us;
	if (demand->before && end_trial(demand, sample, rate))
		return true;
	next = demand->review ? second_thought(demand) : proposal(demand, sample->now_us);
	clear_window(demand);
	demand->review = next == 0 && demand->in_doubt && !demand->careful;
	if (next == 0)
		return false;
	demand->before = demand->level;
	demand->base = rate;
	demand->level = next;
	settle(demand, sample);
	return true;
}
