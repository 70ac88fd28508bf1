/* SPDX-License-Identifier: MIT
 *
 * The scaler on simulated paths: fewer streams, once a minute, and where an earlier path has ended.
 */
#include "scaling/scaler.h"

#include "check.h"
#include "simulated_path.h"

static void idle_streams_are_closed_if_fewer_suffice(void)
{
	struct world world = begin(caps, 1, MOST);

	await_level(&world, MOST);
	world.limited = false;
	world.carries = link;
	world.busy = 2500;
	await_change(&world);
	check(world.scaler.level < MOST &&
	      world.scaler.level >= MOST / 2); /* as busy as they were, or less than twice as much */
	samples(&world, MINUTE);
	check_int(world.scaler.level, 1);
}

static void a_reduction_that_costs_throughput_is_undone(void)
{
	struct world world = begin(caps, 1, MOST);
	int lowest = MOST;

	await_level(&world, MOST);
	world.limited = false;
	world.busy = 4000;
	await_change(&world);
	check(world.scaler.level < MOST);
	check_int(bnet_scaler_held(&world.scaler), MOST); /* they will be wanted again */
	await_change(&world);
	check_int(world.scaler.level, MOST);
	for (uint64_t i = 0; i < MINUTE; i++) {
		sample(&world);
		if (world.scaler.level < lowest)
			lowest = world.scaler.level;
	}
	check(lowest >= MOST / 2);
}

/* Each trial costs a part of the throughput. */
static void fewer_are_tried_once_a_minute(void)
{
	struct world world = begin(caps, 1, MOST);

	await_level(&world, MOST);
	await_change(&world);
	for (int i = 0; i < 10; i++) {
		const uint64_t tried_us = world.now_us;

		check(world.scaler.level < MOST && world.scaler.level > MOST * 9 / 10);
		await_change(&world);
		check_int(world.scaler.level, MOST);
		await_change(&world);
		check(world.now_us - tried_us > 59000000 && world.now_us - tried_us < 61000000);
	}
}

/* One stream in a hundred is not missed at any step. */
static uint64_t saturated(int streams)
{
	return 1000 * MB - (MOST - (uint64_t)streams) * MB;
}

/* Small losses add up. */
static void fewer_are_tried_until_they_carry_less(void)
{
	struct world useless = begin(link, 1, MOST), useful = begin(saturated, 1, MOST);

	bnet_scaler_set(&useless.scaler, MOST);
	await_change(&useless);
	samples(&useless, 15 * SECOND);
	check(kept(&useless) <= 4);
	bnet_scaler_set(&useful.scaler, MOST);
	samples(&useful, 50 * MINUTE / 60);
	await_change(&useful);
	samples(&useful, 10 * SECOND);
	check(saturated(kept(&useful)) >= saturated(MOST) * 97 / 100);
	check(kept(&useful) < MOST * 3 / 4);
}

/* Whatever their numbers, and whenever they began. */
static void paths_try_fewer_at_the_same_time(void)
{
	struct world worlds[2] = {begin(caps, 1, MOST), begin(caps, 1, MOST / 4)};

	samples(&worlds[0], 7 * SECOND);
	worlds[1].now_us = worlds[0].now_us;
	samples(&worlds[0], 10 * SECOND);
	samples(&worlds[1], 10 * SECOND);
	for (int i = 0; i < 2; i++)
		while (worlds[i].scaler.state != BNET_SCALER_LOWERING)
			sample(&worlds[i]);
	check(worlds[0].now_us / 200000 == worlds[1].now_us / 200000);
}

static void a_minute_that_begins_in_a_trial_is_left_out(void)
{
	struct world world = begin(caps, 1, MOST);

	world.now_us = 120000000 - 40 * TICK_US;
	while (world.now_us < 120000000)
		sample(&world);
	check_int(world.scaler.state, BNET_SCALER_RAISING);
	for (uint64_t i = 0; i < 30 * SECOND; i++) {
		sample(&world);
		check(world.scaler.state != BNET_SCALER_LOWERING);
	}
	check_int(world.scaler.level, MOST);
}

/* A job begins with little to send. */
static void a_level_of_another_time_is_tested_once_the_network_limits(void)
{
	for (int right = 0; right < 2; right++) {
		struct world world = begin(right ? caps : link, 1, MOST);

		bnet_scaler_resume(&world.scaler, 16);
		check_int(world.scaler.level, 16);
		world.limited = false;
		world.now_us = 60000000 - SECOND * TICK_US;
		samples(&world, 30 * SECOND); /* a minute begins */
		check_int(world.changes, 0);
		world.limited = true;
		check(await_change(&world) < SECOND);
		check_int(world.scaler.level, 15);
		samples(&world, 10 * SECOND);
		check(right ? kept(&world) >= 15 : kept(&world) <= 4);
	}
}

/* … and a job that has little to send for ten seconds needs few. */
static void streams_are_idle_after_some_time(void)
{
	struct world world = begin(caps, 1, MOST);

	await_level(&world, MOST);
	world.limited = false;
	world.carries = link;
	world.now_us = 120000000 - 2 * TICK_US;
	world.questions = 0;
	samples(&world, SECOND); /* the network has limited just now */
	check_int(kept(&world), MOST);
	check_int(world.questions, 0); /* and would be asked in vain */
	samples(&world, MINUTE);
	check_int(world.scaler.level, 1);
}

/* Each stream has carried so much until one carries as much as all. */
static void streams_given_up_on_doubt_are_not_tried_again_at_once(void)
{
	struct world world = begin(caps, 1, MOST);

	await_level(&world, MOST);
	world.carries = link;
	while (world.scaler.level > 1)
		await_change(&world); /* to a trial of fewer */
	check(await_change(&world) > SECOND / 2);
	check(world.scaler.level > 1);
}

int main(void)
{
	idle_streams_are_closed_if_fewer_suffice();
	a_reduction_that_costs_throughput_is_undone();
	fewer_are_tried_once_a_minute();
	fewer_are_tried_until_they_carry_less();
	paths_try_fewer_at_the_same_time();
	a_minute_that_begins_in_a_trial_is_left_out();
	a_level_of_another_time_is_tested_once_the_network_limits();
	streams_are_idle_after_some_time();
	streams_given_up_on_doubt_are_not_tried_again_at_once();
	return 0;
}
