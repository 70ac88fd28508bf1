/* SPDX-License-Identifier: MIT
 *
 * The scaler on simulated paths: more streams, and what it remembers of trials. test_scaler_fewer.c has fewer streams.
 */
#include "scaling/scaler.h"

#include "check.h"
#include "simulated_path.h"

/* ---- paths ---- */

/* Each additional stream reduces the throughput. */
static uint64_t crowded(int streams)
{
	return 1000 * MB - (uint64_t)streams * 12 * MB;
}

/* Loss keeps windows small: each additional stream adds a little. */
static uint64_t lossy(int streams)
{
	return 50 * MB + (uint64_t)streams * 2 * MB;
}

/* Several streams carry half as much as one. */
static uint64_t halved(int streams)
{
	return streams == 1 ? 1000 * MB : 500 * MB;
}

/* ---- more streams ---- */

static void per_stream_caps_add_up(void)
{
	struct world world = begin(caps, 1, MOST);

	await_level(&world, MOST);
	check(world.changes < 10); /* directly: each step multiplies the level */
	check(world.now_us < MINUTE * TICK_US);
	samples(&world, 10 * MINUTE);
	check_int(kept(&world), MOST);
}

static void growth_ends_where_more_streams_carry_no_more(void)
{
	struct world world = begin(caps_on_a_link, 1, MOST);

	samples(&world, MINUTE);
	check(caps_on_a_link(kept(&world)) == caps_on_a_link(MOST));
	check(world.highest < MOST);
}

static void bounds_hold(void)
{
	for (int most = 1; most <= MOST; most++)
		for (int least = 1; least <= most; least += 3) {
			struct world world = begin(caps, least, most);

			samples(&world, MINUTE);
			check(kept(&world) * 10 >= most * 9); /* the last few may not pay off */
			world.limited = false;
			world.carries = link;
			samples(&world, 2 * MINUTE);
			check_int(world.scaler.level, least);
		}
}

/* A trial ends at the level that it came from, or stays at its own: both must be within the bounds. */
static void bounds_that_change_end_a_trial_beyond_them(void)
{
	struct world world = begin(caps, 1, MOST);

	bnet_scaler_set(&world.scaler, 16);
	world.limited = world.pressed = false;
	world.busy = 8000;
	await_change(&world); /* fewer are tried */
	check_int(world.scaler.before, 16);
	bnet_scaler_bound(&world.scaler, 1, 8);
	check_int(world.scaler.level, 8);
	samples(&world, MINUTE);
	check(kept(&world) <= 8);

	world = begin(caps, 1, MOST);
	await_change(&world); /* more are tried */
	bnet_scaler_bound(&world.scaler, 2, MOST);
	check(!on_trial(&world.scaler));
	bnet_scaler_bound(&world.scaler, 8, MOST);
	check_int(world.scaler.level, 8);
}

/* An answer takes a while, and meanwhile the work may change. */
static void what_a_window_calls_for_is_done_when_the_answer_comes(void)
{
	struct world world = begin(caps, 1, MOST);

	while (!world.scaler.window.asks || !world.scaler.window.judged) {
		answer_question(&world);
		sample_unanswered(&world);
	}
	world.limited = world.pressed = false;
	for (int i = 0; i < 20; i++)
		sample_unanswered(&world);
	check_int(world.scaler.level, 1);
	answer_question(&world);
	sample_unanswered(&world);
	check(on_trial(&world.scaler));
}

/* The limit is a late processor, or a job with little to send. */
static void an_unlimited_path_stays_at_the_minimum(void)
{
	for (int least = 1; least <= MOST; least *= 4) {
		struct world world = begin(caps, least, MOST);

		world.limited = false;
		samples(&world, 10 * MINUTE);
		check_int(world.changes, 0);
		check_int(world.questions, 0);
	}
}

/* ---- useless streams ---- */

static void useless_streams_are_closed(void)
{
	static uint64_t (*const paths[])(int) = {link, crowded};

	for (int i = 0; i < 2; i++) {
		struct world world = begin(paths[i], 1, MOST);

		await_change(&world);
		check(world.scaler.level > 1);
		await_change(&world);
		check_int(world.scaler.level, 1);
	}
}

/* The interval between trials grows up to a bound. */
static void failed_trials_back_off(void)
{
	struct world world = begin(link, 1, MOST);
	uint64_t rest = 0, last, trial;
	int longer = 0;

	for (int turn = 0; turn < 30; turn++) {
		last = rest;
		rest = await_change(&world);
		check(world.scaler.level > 1);
		trial = await_change(&world);
		check_int(world.scaler.level, 1);
		check(trial < SECOND);   /* a trial is short */
		check(2 * rest >= last); /* their length is random within a factor of two */
		longer += turn > 0 && rest > last;
	}
	check(longer >= 3);
	check(rest > SECOND && rest < 10 * MINUTE);
}

static struct world begin_with_long_rests(void)
{
	struct world world = begin(caps_on_a_link, 1, MOST);

	samples(&world, 20 * MINUTE);
	while (!on_trial(&world.scaler) || world.scaler.level < world.scaler.before)
		sample(&world);
	await_change(&world);
	check(world.scaler.level > 4);
	return world;
}

/* What further streams do not carry, the first ones may. */
static void failed_trials_of_many_streams_do_not_delay_those_of_few(void)
{
	struct world world = begin_with_long_rests();

	bnet_scaler_set(&world.scaler, 4);
	check(await_change(&world) < SECOND);
	check_int(world.scaler.level, 8);

	world = begin_with_long_rests();
	world.carries = link;
	bnet_scaler_set(&world.scaler, 1);
	await_change(&world);
	check_int(bnet_scaler_held(&world.scaler), world.scaler.level);
	await_change(&world);
	check_int(world.scaler.level, 1);
	check(await_change(&world) < 2 * SECOND); /* the rests of this level begin anew, … */
	await_change(&world);
	check_int(world.scaler.level, 1);
	check(await_change(&world) > SECOND); /* … and grow as ever */
}

/* Streams that were useless once may help later. */
static void a_changed_path_is_noticed(void)
{
	struct world world = begin(link, 1, MOST);

	samples(&world, 10 * MINUTE);
	world.carries = caps;
	samples(&world, 10 * MINUTE);
	check_int(kept(&world), MOST);
	/* A success resets the interval: the next failure is retried as soon as the first. */
	world.carries = link;
	world.limited = false;
	samples(&world, 10 * MINUTE);
	check_int(world.scaler.level, 1);
	world.limited = true;
	await_change(&world);
	await_change(&world);
	check(await_change(&world) < 3 * SECOND);
}

/* No queue: windows are the limit, and more windows carry more in the end. */
static void a_lossy_path_uses_all_streams(void)
{
	struct world world = begin(lossy, 1, MOST), same = begin(lossy, 1, MOST);

	world.queued = false;
	samples(&world, MINUTE);
	check_int(kept(&world), MOST);
	samples(&same, MINUTE); /* with a queue, a gain this small is no gain */
	check(same.scaler.level < MOST);
}

/* One stream carries nine tenths of the throughput of four; many carry less than four. */
static uint64_t best_by_four(int streams)
{
	return streams < 4 ? 900 * MB : 1000 * MB - (uint64_t)(streams - 4) * 6 * MB;
}

/* One stream carries somewhat less than many; four carry most. */
static uint64_t second_best(int streams)
{
	return streams < 4 ? 850 * MB : 1000 * MB - (uint64_t)(streams - 4) * 5 * MB / 6;
}

/* Only many streams carry more. */
static uint64_t late_gain(int streams)
{
	return streams < 32 ? 100 * MB : 400 * MB;
}

/* Takes `count` samples and returns how many had a level above `level`. */
static uint64_t samples_above(struct world *world, int level, uint64_t count)
{
	uint64_t above = 0;

	while (count--) {
		sample(world);
		above += world->scaler.level > level;
	}
	return above;
}

/* No queue, but windows are not the limit: the doubtful climb is undone and not repeated for a while. */
static void a_doubtful_climb_is_reviewed(void)
{
	static uint64_t (*const paths[])(int) = {link, crowded, best_by_four, second_best};

	for (int i = 0; i < 4; i++) {
		struct world world = begin(paths[i], 1, MOST);

		world.queued = false;
		await_change(&world);
		await_change(&world);
		check(world.scaler.level > 4); /* the first trial was kept, though it gained nothing */
		samples(&world, MINUTE / 2);
		check(samples_above(&world, 8, 10 * MINUTE) < MINUTE / 2); /* 8: trials from four */
	}
}

/* A pause of the job does not end a climb. */
static void a_pause_does_not_end_a_climb(void)
{
	struct world world = begin(late_gain, 1, MOST);

	world.queued = false;
	await_change(&world);
	world.limited = false;
	samples(&world, SECOND / 2);
	world.limited = true;
	samples(&world, 5 * SECOND);
	check(world.highest >= 32);
}

/* Measurements of earlier climbs do not count: the path may have changed since. */
static void earlier_climbs_do_not_count(void)
{
	struct world world = begin(link, 1, MOST);

	samples(&world, MINUTE); /* failed trials, with a queue */
	world.carries = lossy;
	world.queued = false;
	samples(&world, 3 * MINUTE);
	check(samples_above(&world, MOST / 2, MINUTE) > MINUTE * 3 / 4);
}

/* The level may be set externally in any state: earlier measurements are void, and the bounds hold. */
static void setting_the_level_discards_measurements(void)
{
	for (uint64_t n = 0; n < 20 * SECOND; n += 7) {
		struct world world = begin(link, 1, MOST);

		world.queued = false;
		samples(&world, n);
		world.scaler.most = 3;
		if (world.scaler.level > 3)
			bnet_scaler_set(&world.scaler, 3);
		samples(&world, MINUTE); /* sample checks the bounds */
	}
}

/* Limited for a quarter of the time, sometimes for a whole window: without a queue this may not be the network. */
static void a_lone_stream_without_a_queue_needs_certainty(void)
{
	for (uint64_t spell = 7; spell < 10; spell++) {
		struct world first = begin(link, 1, MOST), queued = begin(link, 1, MOST);
		struct world unsure = begin(link, 1, MOST), sure = begin(link, 1, MOST);

		first.queued = unsure.queued = sure.queued = false;
		samples(&first, spell - 2);
		first.limited = false;
		samples(&first, MINUTE);
		check_int(first.changes, 0);
		for (uint64_t n = 0; n < MINUTE; n++) {
			queued.limited = unsure.limited = n / spell % 4 == 3;
			sample(&queued);
			sample(&unsure);
			sample(&sure);
		}
		check(queued.changes > 0 && sure.changes > 0);
		check_int(unsure.changes, 0);
	}
}

/* ---- what a raise must carry ---- */

/* Where ranks wait for each other, the slowest path hides what the others gain. */
static void a_raise_stays_if_the_network_limits_no_more(void)
{
	for (int bulk = 0; bulk < 2; bulk++) {
		struct world world = begin(link, 1, MOST);

		world.bulk = bulk;
		await_change(&world);
		world.limited = false;
		world.busy = 2500;
		samples(&world, 10 * SECOND);
		check(kept(&world) > 1);
		check_int(world.changes, 1);
	}
}

/* … but not if a processor limits instead, which takes longer for more streams. */
static void a_raise_that_carries_clearly_less_does_not_stay(void)
{
	for (int bulk = 0; bulk < 2; bulk++) {
		struct world world = begin(halved, 1, MOST);

		world.bulk = bulk;
		await_change(&world);
		world.limited = false;
		world.busy = 1000;
		check(await_change(&world) < SECOND);
		check_int(world.scaler.level, 1);
	}
}

static uint64_t dipped(int streams)
{
	return streams == 1 ? 700 * MB : 900 * MB;
}

/* A neighbour's trial slows the window before one of this path, and not the trial. */
static void a_dip_before_a_trial_makes_no_gain(void)
{
	struct world world = begin(link, 1, MOST), first = begin(dipped, 1, MOST);

	await_change(&world);
	await_change(&world);
	check_int(world.scaler.level, 1);
	world.carries = dipped;
	await_change(&world);
	check_int(world.scaler.level, 4);
	await_change(&world);
	check_int(world.scaler.level, 1);
	await_change(&first); /* which is a gain where nothing else is known */
	await_change(&first);
	check(first.scaler.level > 4);
}

static void a_queue_does_not_stretch_a_trial(void)
{
	struct world world = begin(caps, 1, MOST);

	world.rtt_us = 100000;
	world.min_rtt_us = 200;
	await_change(&world);
	check(await_change(&world) < SECOND);
}

/* ---- measurement ---- */

static void opening_streams_are_not_judged(void)
{
	struct world world = begin(link, 1, MOST);
	int tried;

	await_change(&world);
	tried = world.scaler.level;
	check(tried > 1);
	world.opening = true;
	samples(&world, 10 * MINUTE);
	check_int(world.scaler.level, tried);
	world.opening = false;
	await_change(&world);
	check_int(world.scaler.level, 1);
}

static uint64_t nothing(int streams)
{
	(void)streams;
	return 0;
}

/* … nor does what they carry meanwhile count in the trial. */
static void what_is_carried_meanwhile_does_not_count(void)
{
	struct world world = begin(caps, 1, MOST);
	int tried;

	await_change(&world);
	tried = world.scaler.level;
	world.opening = true;
	world.carries = nothing;
	samples(&world, SECOND);
	world.opening = false;
	world.carries = caps;
	await_change(&world);
	check(world.scaler.level > tried);
}

static void windows_span_many_round_trips(void)
{
	struct world world = begin(caps, 1, MOST);
	uint64_t near_by = await_change(&world), far;

	world = begin(caps, 1, MOST);
	world.rtt_us = 300000;
	far = await_change(&world);
	check(far > near_by && far * TICK_US > 2 * world.rtt_us);
	/* The first trial follows two windows. New streams first need time to reach their speed. */
	check(await_change(&world) > far / 2 + far / 8);
}

/* They become rare where trials are in vain. */
static void questions_end_with_the_trials(void)
{
	struct world world = begin(link, 1, MOST);
	uint64_t before;

	samples(&world, 30 * MINUTE);
	before = world.questions;
	samples(&world, 10 * MINUTE);
	check(world.questions > before);
	check(world.questions - before < 10 * MINUTE / SECOND); /* less than one a second: the rests are long by now */
}

/* ---- random samples ---- */

static uint64_t random_state = 20240607;

static uint64_t random_below(uint64_t limit)
{
	random_state ^= random_state << 13;
	random_state ^= random_state >> 7;
	random_state ^= random_state << 17;
	return random_state % limit;
}

static struct bnet_sample random_sample(uint64_t now_us)
{
	uint64_t kind = random_below(100);

	return (struct bnet_sample){
		.now_us = now_us,
		.elapsed_us = random_below(kind == 0 ? 1 : 100000),
		.acked = random_below(kind < 50 ? 10 * MB : 10000 * MB),
		.rtt_us = (uint32_t)random_below(kind == 1 ? UINT32_MAX : 1000),
		.limited = random_below(2),
		.pressed = random_below(2),
		.queued = random_below(2),
		.work = random_below(2) ? BNET_WORK_BULK : BNET_WORK_SMALL,
		.busy = (uint32_t)random_below(10001),
		.device_sent = random_below(100 * MB),
		.device_us = random_below(3) * random_below(20000),
		.opening = kind > 95,
		.minute = now_us / 60000000,
	};
}

/* Counters that grow, stand still, go back or are missing; a refusal now and then. */
static struct bnet_window_report random_report(uint64_t now_us)
{
	return (struct bnet_window_report){
		.mark = {.connection = random_below(3),
			 .moved_us = random_below(2) * now_us,
			 .received = random_below(3) * random_below(now_us * 1000)},
		.rtt_us = (uint32_t)random_below(2000),
	};
}

static void check_invariants(const struct bnet_scaler *before, const struct bnet_scaler *after, bool changed,
			     const struct bnet_sample *sample)
{
	check(after->level >= after->least && after->level <= after->most);
	check(after->least == before->least && after->most == before->most);
	check_int(changed, after->level != before->level);
	check(!on_trial(after) || (after->before >= after->least && after->before <= after->most));
	check(!sample->opening || !changed);
	check(sample->now_us >= before->settled_us || !changed);
	if (changed && before->before) /* a trial ends before the next one */
		check(after->level == before->before || after->before == before->level);
}

static void invariants_hold_for_random_samples(void)
{
	for (int path = 0; path < 200; path++) {
		int most = 1 + (int)random_below(MOST), least = 1 + (int)random_below((uint64_t)most);
		uint64_t now_us = random_below(1000 * MB);
		struct bnet_scaler scaler;
		int changes = 0;

		bnet_scaler_init(&scaler, least, most, 1);
		for (int i = 0; i < 20000; i++) {
			struct bnet_sample sample = random_sample(now_us += random_below(100000));
			const struct bnet_scaler before = scaler;
			const bool changed = bnet_scaler_step(&scaler, &sample);

			check_invariants(&before, &scaler, changed, &sample);
			if (scaler.window.asks && random_below(5)) {
				struct bnet_window_report report = random_report(now_us);

				bnet_scaler_tell(&scaler, &report);
			}
			changes += changed;
		}
		check(least == most ? changes == 0 : changes > 0);
	}
}

int main(void)
{
	per_stream_caps_add_up();
	growth_ends_where_more_streams_carry_no_more();
	bounds_hold();
	bounds_that_change_end_a_trial_beyond_them();
	what_a_window_calls_for_is_done_when_the_answer_comes();
	an_unlimited_path_stays_at_the_minimum();
	useless_streams_are_closed();
	failed_trials_back_off();
	failed_trials_of_many_streams_do_not_delay_those_of_few();
	a_changed_path_is_noticed();
	a_lossy_path_uses_all_streams();
	a_doubtful_climb_is_reviewed();
	a_pause_does_not_end_a_climb();
	earlier_climbs_do_not_count();
	setting_the_level_discards_measurements();
	a_lone_stream_without_a_queue_needs_certainty();
	a_raise_stays_if_the_network_limits_no_more();
	a_raise_that_carries_clearly_less_does_not_stay();
	a_dip_before_a_trial_makes_no_gain();
	a_queue_does_not_stretch_a_trial();
	opening_streams_are_not_judged();
	what_is_carried_meanwhile_does_not_count();
	windows_span_many_round_trips();
	questions_end_with_the_trials();
	invariants_hold_for_random_samples();
	return 0;
}
