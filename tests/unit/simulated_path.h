/* SPDX-License-Identifier: MIT
 *
 * For tests of the scaler: a simulated path, whose throughput is a function of the number of streams. Tests use none of
 * the scaler's constants; they wait until the level changes.
 */
#ifndef BNET_SIMULATED_PATH_H
#define BNET_SIMULATED_PATH_H

#include "check.h"
#include "scaling/scaler.h"

#define MOST 64
#define TICK_US UINT64_C(20000)
#define SECOND (1000000 / TICK_US) /* samples */
#define MINUTE (60 * SECOND)
#define MB UINT64_C(1000000)

struct world {
	struct bnet_scaler scaler;
	uint64_t (*carries)(int streams); /* bytes/s */
	uint64_t now_us, changes, questions;
	uint32_t rtt_us, min_rtt_us, busy; /* busy: where the network does not limit */
	int highest;
	bool limited, pressed, queued, bulk, opening;
	struct bnet_window_report report; /* to every question; nothing is known by default */
};

static inline struct world begin(uint64_t (*carries)(int streams), int least, int most)
{
	struct world world = {.carries = carries, .now_us = 9000000, .rtt_us = 200};

	world.limited = world.queued = world.bulk = true;
	bnet_scaler_init(&world.scaler, least, most, 88172645463325252);
	world.highest = world.scaler.level;
	check_int(world.scaler.level, least);
	return world;
}

static inline bool on_trial(const struct bnet_scaler *scaler)
{
	return scaler->state != BNET_SCALER_HOLDING;
}

/* The level that is kept while a trial is on. */
static inline int kept(const struct world *world)
{
	return on_trial(&world->scaler) ? world->scaler.before : world->scaler.level;
}

/* Takes one sample; a question stays without an answer. True: the level changed. */
static inline bool sample_unanswered(struct world *world)
{
	int before = world->scaler.level;
	struct bnet_sample sample = {
		.now_us = world->now_us += TICK_US,
		.elapsed_us = TICK_US,
		.acked = world->carries(before) * TICK_US / 1000000,
		.rtt_us = world->rtt_us,
		.min_rtt_us = world->min_rtt_us,
		.limited = world->limited,
		.pressed = world->pressed,
		.queued = world->queued,
		.busy = world->limited ? 10000 : world->busy,
		.work = world->bulk ? BNET_WORK_BULK : BNET_WORK_SMALL,
		.minute = world->now_us / 60000000,
		.opening = world->opening,
	};
	bool changed = bnet_scaler_step(&world->scaler, &sample);

	check_int(changed, world->scaler.level != before);
	check(world->scaler.level >= world->scaler.least && world->scaler.level <= world->scaler.most);
	world->changes += changed;
	if (world->scaler.level > world->highest)
		world->highest = world->scaler.level;
	return changed;
}

static inline void answer_question(struct world *world)
{
	world->questions += world->scaler.window.asks;
	if (world->scaler.window.asks)
		bnet_scaler_tell(&world->scaler, &world->report);
}

/* Takes one sample. True: the level changed. */
static inline bool sample(struct world *world)
{
	bool changed = sample_unanswered(world);

	answer_question(world);
	return changed;
}

static inline void samples(struct world *world, uint64_t count)
{
	while (count--)
		sample(world);
}

/* Samples until the level changes, and returns the number of samples. Fails after an hour. */
static inline uint64_t await_change(struct world *world)
{
	for (uint64_t n = 1; n < 60 * MINUTE; n++)
		if (sample(world))
			return n;
	check(!"the level never changed");
	return 0;
}

/* Until that level is kept. */
static inline void await_level(struct world *world, int level)
{
	while (world->scaler.level != level || on_trial(&world->scaler))
		sample(world);
}

/* ---- paths ---- */

/* Each stream has its own cap. */
static inline uint64_t caps(int streams)
{
	return (uint64_t)streams * 100 * MB;
}

/* … and the link carries no more than ten streams do. */
static inline uint64_t caps_on_a_link(int streams)
{
	return caps(streams < 10 ? streams : 10);
}

/* One stream carries as much as many. */
static inline uint64_t link(int streams)
{
	(void)streams;
	return 1000 * MB;
}

#endif
