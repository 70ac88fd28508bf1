/* SPDX-License-Identifier: MIT
 *
 * The scaler and the kinds of work: messages that the kernel takes whole, streams that are pressed, and what a
 * sample concludes from its streams.
 */
#include "scaling/scaler.h"

#include "check.h"
#include "simulated_path.h"

static void messages_without_a_backlog_count(void)
{
	struct world world = begin(caps, 1, MOST);

	world.bulk = false;
	samples(&world, MINUTE);
	check_int(world.scaler.level, MOST);
	world.limited = false;
	world.carries = link;
	samples(&world, 2 * MINUTE);
	check_int(world.scaler.level, 1);
}

/* The kind of work changes with the trial: a lone stream takes messages whole, while several limit bytes in flight. */
static void a_failed_trial_counts_for_its_first_kind_of_work(void)
{
	for (int first = 0; first < 2; first++) {
		struct world world = begin(link, 1, MOST), emptied = begin(link, 1, MOST);

		for (uint64_t n = 0; n < 10 * MINUTE; n++) {
			world.bulk = (world.scaler.level > 1) != first;
			sample(&world);
		}
		check(world.changes > 2 && world.changes < 60);
		for (uint64_t n = 0; n < 10 * SECOND && !first; n++) {
			emptied.queued = !(emptied.bulk = emptied.scaler.level > 1);
			sample(&emptied);
			check(emptied.scaler.level <= 4); /* not doubtful: it began with a queue */
		}
	}
}

/* If more streams did not help small messages, they may still help large ones, and vice versa. */
static void failed_trials_count_for_the_same_work_only(void)
{
	for (int first = 0; first < 2; first++) {
		struct world world = begin(link, 1, MOST);

		world.bulk = first;
		samples(&world, 10 * MINUTE);
		while (on_trial(&world.scaler)) /* let a running trial end */
			sample(&world);
		world.bulk = !first;
		check(await_change(&world) < SECOND);
	}
}

static struct bnet_sample concluded(struct bnet_tally small, struct bnet_tally bulk, bool lone)
{
	struct bnet_sample sample = {.now_us = 1};

	bnet_scaler_conclude(&sample, (struct bnet_tally[]){small, bulk}, lone);
	return sample;
}

static void a_sample_says_what_most_streams_say(void)
{
	const struct bnet_tally none = {0}, pressed = {.count = 4, .queued = 2, .pressed = 1}, idle = {.count = 4};
	const struct bnet_tally limited = {.count = 4, .limited = 1, .queued = 4};
	struct bnet_sample sample = concluded(pressed, none, false);

	check(sample.pressed && sample.queued && !sample.limited && sample.work == BNET_WORK_SMALL);
	check(!concluded(pressed, none, true).pressed);
	sample = concluded(pressed, limited, false);
	check(!sample.pressed && sample.queued && sample.limited && sample.work == BNET_WORK_BULK);
	check(!concluded(none, limited, true).limited); /* a lone stream must be sure */
	sample = concluded(idle, none, false);
	check(!sample.pressed && !sample.queued && !sample.limited);
}

/* Ranks of a collective wait for each other, so several streams are pressed where a lone one was limited. */
static void several_streams_climb_when_pressed(void)
{
	for (int bulk = 0; bulk < 2; bulk++) {
		struct world world = begin(caps, 1, MOST), lone = begin(caps, 1, MOST),
			     vain = begin(caps_on_a_link, 1, MOST);

		world.bulk = vain.bulk = bulk;
		for (uint64_t n = 0; n < MINUTE; n++) {
			world.limited = world.scaler.level == 1;
			vain.limited = vain.scaler.level == 1;
			world.pressed = vain.pressed = true;
			sample(&world);
			sample(&vain);
		}
		check_int(world.scaler.level, MOST);
		check(vain.highest < MOST);

		lone.limited = false;
		lone.pressed = true;
		samples(&lone, MINUTE);
		check_int(lone.changes, 0);
	}
}

/* … and are not closed as long as they are. */
static void pressed_streams_stay(void)
{
	struct world world = begin(caps, 1, MOST);

	samples(&world, MINUTE);
	world.limited = false;
	world.pressed = true;
	samples(&world, 10 * MINUTE);
	check_int(kept(&world), MOST);
}

int main(void)
{
	messages_without_a_backlog_count();
	failed_trials_count_for_the_same_work_only();
	a_failed_trial_counts_for_its_first_kind_of_work();
	a_sample_says_what_most_streams_say();
	several_streams_climb_when_pressed();
	pressed_streams_stay();
	return 0;
}
