/* SPDX-License-Identifier: MIT
 *
 * The scaler on simulated paths, whose throughput is a function of the number of streams. Tests use none of the
 * scaler's constants; they wait until the level changes.
 */
#include "scaling/scaler.h"

#include "check.h"

#define MOST 64
#define TICK_US UINT64_C(20000)
#define SECOND (1000000 / TICK_US) /* samples */
#define MINUTE (60 * SECOND)
#define MB UINT64_C(1000000)

struct world {
	struct bnet_scaler scaler;
	uint64_t (*carries)(int streams); /* bytes/s */
	uint64_t together;                /* … of ranks that wait for each other; 0: as `carries` says */
	uint64_t now_us, changes;
	uint32_t rtt_us;
	int highest;
	bool limited, pressed, queued, bulk, opening;
};

static struct world begin(uint64_t (*carries)(int streams), int least, int most)
{
	struct world world = {.carries = carries, .now_us = 9000000, .rtt_us = 200};

	world.limited = world.queued = world.bulk = true;
	bnet_scaler_init(&world.scaler, least, most);
	world.highest = world.scaler.level;
	check_int(world.scaler.level, least);
	return world;
}

static bool on_trial(const struct bnet_scaler *scaler)
{
	return scaler->state == BNET_SCALER_TRYING || scaler->state == BNET_SCALER_COMPARING;
}

/* Takes one sample. True: the level changed. */
static bool sample(struct world *world)
{
	int before = world->scaler.level;
	struct bnet_scaler_sample sample = {
		.now_us = world->now_us += TICK_US,
		.elapsed_us = TICK_US,
		.acked = (world->together ? world->together : world->carries(before)) * TICK_US / 1000000,
		.rtt_us = world->rtt_us,
		.limited = world->limited,
		.pressed = world->pressed,
		.queued = world->queued,
		.work = world->bulk ? BNET_WORK_BULK : BNET_WORK_SMALL,
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

static void samples(struct world *world, uint64_t count)
{
	while (count--)
		sample(world);
}

/* Samples until the level changes, and returns the number of samples. Fails after an hour. */
static uint64_t await_change(struct world *world)
{
	for (uint64_t n = 1; n < 60 * MINUTE; n++)
		if (sample(world))
			return n;
	check(!"the level never changed");
	return 0;
}

/* ---- paths ---- */

/* Each stream has its own cap. */
static uint64_t caps(int streams)
{
	return (uint64_t)streams * 100 * MB;
}

/* … and the link carries no more than ten streams do. */
static uint64_t caps_on_a_link(int streams)
{
	return caps(streams < 10 ? streams : 10);
}

/* One stream carries as much as many. */
static uint64_t link(int streams)
{
	(void)streams;
	return 1000 * MB;
}

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

/* ---- more streams ---- */

static void per_stream_caps_add_up(void)
{
	struct world world = begin(caps, 1, MOST);

	samples(&world, MINUTE);
	check_int(world.scaler.level, MOST);
	samples(&world, 10 * MINUTE);
	check_int(world.scaler.level, MOST);
	check(world.changes < 10); /* directly: each step multiplies the level */
}

static void growth_ends_where_more_streams_carry_no_more(void)
{
	struct world world = begin(caps_on_a_link, 1, MOST);

	samples(&world, MINUTE);
	check(caps_on_a_link(on_trial(&world.scaler) ? world.scaler.before : world.scaler.level) ==
	      caps_on_a_link(MOST));
	check(world.highest < MOST);
}

static void bounds_hold(void)
{
	for (int most = 1; most <= MOST; most++)
		for (int least = 1; least <= most; least += 3) {
			struct world world = begin(caps, least, most);

			samples(&world, MINUTE);
			check(world.scaler.level * 10 >= most * 9); /* the last few may not pay off */
			world.limited = false;
			world.carries = link;
			samples(&world, MINUTE);
			check_int(world.scaler.level, least);
		}
}

/* The limit is a late processor, or a job with little to send. */
static void an_unlimited_path_stays_at_the_minimum(void)
{
	for (int least = 1; least <= MOST; least *= 4) {
		struct world world = begin(caps, least, MOST);

		world.limited = false;
		samples(&world, 10 * MINUTE);
		check_int(world.changes, 0);
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
		check(trial < SECOND); /* a trial is short */
		check(turn == 0 || rest >= last);
		longer += turn > 0 && rest > last;
	}
	check(longer >= 3);
	check(rest == last && rest < 10 * MINUTE);
}

/* Streams that were useless once may help later. */
static void a_changed_path_is_noticed(void)
{
	struct world world = begin(link, 1, MOST);

	samples(&world, 10 * MINUTE);
	world.carries = caps;
	samples(&world, 10 * MINUTE);
	check_int(world.scaler.level, MOST);
	/* A success resets the interval: the next failure is retried as soon as the first. */
	world.carries = link;
	world.limited = false;
	samples(&world, 10 * MINUTE);
	check_int(world.scaler.level, 1);
	world.limited = true;
	await_change(&world);
	await_change(&world);
	check(await_change(&world) < 2 * SECOND);
}

/* No queue: windows are the limit, and more windows carry more in the end. */
static void a_lossy_path_uses_all_streams(void)
{
	struct world world = begin(lossy, 1, MOST), same = begin(lossy, 1, MOST);

	world.queued = false;
	samples(&world, MINUTE);
	check_int(world.scaler.level, MOST);
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
	check(world.scaler.level >= 32);
}

/* A path may gain from many streams later, though they were useless before. */
static void a_review_expires(void)
{
	struct world world = begin(link, 1, MOST);

	world.queued = false;
	samples(&world, MINUTE / 2);
	check(world.scaler.careful > 0);
	world.carries = late_gain;
	samples(&world, 5 * MINUTE);
	check(world.scaler.level >= 32);
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

/* ---- messages that the kernel takes whole ---- */

static void messages_without_a_backlog_count(void)
{
	struct world world = begin(caps, 1, MOST);

	world.bulk = false;
	samples(&world, MINUTE);
	check_int(world.scaler.level, MOST);
	/* Streams that small messages do not need are kept for large ones for a while. */
	world.limited = false;
	world.carries = link;
	samples(&world, MINUTE / 2);
	check_int(world.scaler.level, MOST);
	samples(&world, 60 * MINUTE);
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

/* No other rank gains either, and the queue has gone. */
static void a_trial_does_not_wait_forever(void)
{
	struct world world = begin(link, 1, MOST);

	world.bulk = false;
	await_change(&world);
	world.limited = world.queued = false;
	samples(&world, 10 * SECOND);
	check_int(world.scaler.level, 1);
	check_int(world.changes, 2);
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

/* Two ranks wait for each other, each with slow streams: neither gains alone. */
static void a_trial_waits_for_other_ranks(void)
{
	for (uint64_t later = 0; later < SECOND / 2; later++) {
		struct world ranks[2] = {begin(caps, 1, MOST), begin(caps, 1, MOST)};

		for (uint64_t i = 0; i < 10 * SECOND; i++) {
			const uint64_t carried[2] = {caps(ranks[0].scaler.level), caps(ranks[1].scaler.level)};
			const uint64_t both = carried[0] < carried[1] ? carried[0] : carried[1];

			for (int r = 0; r < (i < later ? 1 : 2); r++) {
				ranks[r].bulk = later % 2; /* large and small messages */
				ranks[r].limited = carried[r] == both;
				ranks[r].together = both;
				sample(&ranks[r]);
			}
		}
		check(ranks[0].scaler.level >= MOST / 2 && ranks[1].scaler.level >= MOST / 2);
	}
}

static struct bnet_scaler_sample concluded(struct bnet_tally small, struct bnet_tally bulk, bool lone)
{
	struct bnet_scaler_sample sample = {.now_us = 1};

	bnet_scaler_conclude(&sample, (struct bnet_tally[]){small, bulk}, lone);
	return sample;
}

static void a_sample_says_what_most_streams_say(void)
{
	const struct bnet_tally none = {0}, pressed = {.count = 4, .queued = 2, .pressed = 1}, idle = {.count = 4};
	const struct bnet_tally limited = {.count = 4, .limited = 1, .queued = 4};
	struct bnet_scaler_sample sample = concluded(pressed, none, false);

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
	check_int(world.scaler.level, MOST);
}

/* ---- fewer streams ---- */

static void idle_streams_are_closed_if_fewer_suffice(void)
{
	struct world world = begin(caps, 1, MOST);

	samples(&world, MINUTE);
	check_int(world.scaler.level, MOST);
	world.limited = false;
	world.carries = link;
	await_change(&world);
	check(world.scaler.level < MOST && world.scaler.level > 1);
	samples(&world, MINUTE);
	check_int(world.scaler.level, 1);
}

static void a_reduction_that_costs_throughput_is_undone(void)
{
	struct world world = begin(caps, 1, MOST);
	int lowest = MOST;

	samples(&world, MINUTE);
	world.limited = false;
	await_change(&world);
	check(world.scaler.level < MOST);
	await_change(&world);
	check_int(world.scaler.level, MOST);
	for (uint64_t i = 0; i < MINUTE; i++) {
		sample(&world);
		if (world.scaler.level < lowest)
			lowest = world.scaler.level;
	}
	check(lowest >= MOST / 2);
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

static void windows_span_many_round_trips(void)
{
	struct world world = begin(caps, 1, MOST);
	uint64_t near_by = await_change(&world), far;

	world = begin(caps, 1, MOST);
	world.rtt_us = 300000;
	far = await_change(&world);
	check(far > near_by && far * TICK_US > 2 * world.rtt_us);
	check(await_change(&world) > far); /* and new streams first need time to reach their speed */
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

static struct bnet_scaler_sample random_sample(uint64_t now_us)
{
	uint64_t kind = random_below(100);

	return (struct bnet_scaler_sample){
		.now_us = now_us,
		.elapsed_us = random_below(kind == 0 ? 1 : 100000),
		.acked = random_below(kind < 50 ? 10 * MB : 10000 * MB),
		.rtt_us = (uint32_t)random_below(kind == 1 ? UINT32_MAX : 1000),
		.limited = random_below(2),
		.pressed = random_below(2),
		.queued = random_below(2),
		.work = random_below(2) ? BNET_WORK_BULK : BNET_WORK_SMALL,
		.opening = kind > 95,
	};
}

static void check_invariants(const struct bnet_scaler *before, const struct bnet_scaler *after, bool changed,
			     const struct bnet_scaler_sample *sample)
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

		bnet_scaler_init(&scaler, least, most);
		for (int i = 0; i < 20000; i++) {
			struct bnet_scaler_sample sample = random_sample(now_us += random_below(100000));
			const struct bnet_scaler before = scaler;
			const bool changed = bnet_scaler_step(&scaler, &sample);

			check_invariants(&before, &scaler, changed, &sample);
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
	an_unlimited_path_stays_at_the_minimum();
	useless_streams_are_closed();
	failed_trials_back_off();
	a_changed_path_is_noticed();
	a_lossy_path_uses_all_streams();
	a_doubtful_climb_is_reviewed();
	a_pause_does_not_end_a_climb();
	a_review_expires();
	earlier_climbs_do_not_count();
	setting_the_level_discards_measurements();
	a_lone_stream_without_a_queue_needs_certainty();
	messages_without_a_backlog_count();
	failed_trials_count_for_the_same_work_only();
	a_failed_trial_counts_for_its_first_kind_of_work();
	a_trial_does_not_wait_forever();
	a_trial_waits_for_other_ranks();
	a_sample_says_what_most_streams_say();
	several_streams_climb_when_pressed();
	pressed_streams_stay();
	idle_streams_are_closed_if_fewer_suffice();
	a_reduction_that_costs_throughput_is_undone();
	opening_streams_are_not_judged();
	windows_span_many_round_trips();
	invariants_hold_for_random_samples();
	return 0;
}
