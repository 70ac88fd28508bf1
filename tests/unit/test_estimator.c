/* SPDX-License-Identifier: MIT
 *
 * Conclusions from the kernel's counts: a stream's rate, whether the network limits it, and its in-flight limit.
 */
#include "transport/estimator.h"

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "check.h"
#include "scaling/limited.h"

#define MS UINT64_C(1000)
#define TICK (20 * MS)
#define MB UINT64_C(1000000)

/* A simulated socket, whose counts a test advances, and the library's estimate of it. */
struct model {
	struct bnet_estimator estimator;
	struct bnet_reading at;
	uint64_t now_us;
};

static struct model begin(uint32_t rtt_us)
{
	struct model model = {.now_us = 5000000, .at = {.rtt_us = rtt_us, .min_rtt_us = rtt_us}};

	bnet_estimator_update(&model.estimator, &model.at, model.now_us, false);
	return model;
}

static struct bnet_estimator_step step_on(struct model *model, uint64_t elapsed_us, uint64_t busy_us, uint64_t bytes,
					  uint64_t delivery_rate, bool was_idle)
{
	model->now_us += elapsed_us;
	model->at.busy_us += busy_us;
	model->at.acked += bytes;
	model->at.delivery_rate = delivery_rate ? delivery_rate : bytes * 1000000 / elapsed_us;
	return bnet_estimator_update(&model->estimator, &model->at, model->now_us, was_idle);
}

/* A tick in which the stream was busy for busy_us and carried `bytes`. delivery_rate 0: evenly. */
static struct bnet_estimator_step tick(struct model *model, uint64_t busy_us, uint64_t bytes, uint64_t delivery_rate)
{
	return step_on(model, TICK, busy_us, bytes, delivery_rate, false);
}

static uint64_t rate(const struct model *model)
{
	return atomic_load(&model->estimator.rate);
}

static bool near(uint64_t a, uint64_t b)
{
	return a * 100 <= b * 103 && b * 100 <= a * 103;
}

/* `paused` has nothing to send for half of the time. */
static void the_rate_counts_busy_time_only(void)
{
	struct model busy = begin(100), paused = begin(100);

	check_int(rate(&busy), 0);
	for (int i = 0; i < 50; i++) {
		tick(&busy, TICK, 2 * MB, 0);
		tick(&paused, TICK / 2, MB, 0);
	}
	check(near(rate(&busy), 100 * MB));
	check(near(rate(&paused), 100 * MB));
}

static void the_rate_follows_changes(void)
{
	struct model model = begin(100);

	for (int i = 0; i < 50; i++)
		tick(&model, TICK, 2 * MB, 0);
	for (int i = 0; i < 50; i++)
		tick(&model, TICK, MB / 5, 0);
	check(near(rate(&model), 10 * MB));
	for (int i = 0; i < 50; i++)
		tick(&model, TICK, 2 * MB, 0);
	check(near(rate(&model), 100 * MB));
}

/* Neither idle time nor a single byte changes the rate. */
static void idle_time_keeps_the_rate(void)
{
	struct model model = begin(100);
	uint64_t before;

	for (int i = 0; i < 50; i++)
		tick(&model, TICK, 2 * MB, 0);
	before = rate(&model);
	for (int i = 0; i < 50; i++)
		tick(&model, 0, 0, 0);
	tick(&model, 10, 1, 0);
	check_int(rate(&model), before);
}

static void a_stream_without_acknowledgements_is_slow_not_unknown(void)
{
	struct model model = begin(100), dead = begin(100);
	uint64_t unknown = bnet_estimator_inflight_limit(&model.estimator);

	check(unknown > 0);
	for (int i = 0; i < 50; i++)
		tick(&model, TICK, 2 * MB, 0);
	check(bnet_estimator_inflight_limit(&model.estimator) > unknown);
	for (int i = 0; i < 500; i++) {
		tick(&model, TICK, 0, 0);
		tick(&dead, TICK, 0, 0);
		check(rate(&model) > 0 && rate(&dead) > 0);
	}
	check(rate(&model) < 1000 && rate(&dead) < 1000);
	check(bnet_estimator_inflight_limit(&model.estimator) < unknown);
	check(bnet_estimator_inflight_limit(&dead.estimator) < unknown);
	for (int i = 0; i < 50; i++)
		tick(&model, TICK, 2 * MB, 0);
	check(near(rate(&model), 100 * MB));
}

/* Its receiver may delay the acknowledgement until a second segment arrives. */
static void a_lone_segment_is_not_measured(void)
{
	struct model lone = begin(100), many = begin(100);

	lone.at.segment = many.at.segment = 1448;
	many.at.flight = 10;
	for (int i = 0; i < 5; i++) {
		lone.at.flight = 1;
		tick(&lone, TICK, 0, 0); /* in flight */
		lone.at.flight = 0;
		tick(&lone, TICK, 1448, 0);
		tick(&many, TICK, 0, 0);
		tick(&many, TICK, 1448, 0);
	}
	check_int(rate(&lone), 0);
	check(rate(&many) > 0);
}

/* A lone segment of a fast stream is never acknowledged: no receiver delays its acknowledgement that long. */
static void a_lone_segment_that_stalls_is_slow(void)
{
	struct model model = begin(100);

	model.at.segment = 1448;
	for (int i = 0; i < 50; i++)
		tick(&model, TICK, 2 * MB, 0);
	model.at.flight = 1;
	tick(&model, TICK, 0, 0);
	check(near(rate(&model), 100 * MB));
	for (int i = 0; i < 50; i++)
		tick(&model, TICK, 0, 0);
	check(rate(&model) < MB);
}

/* The limit covers a few milliseconds and two round trips at the stream's rate. */
/* Bursts whose last segment waits for its acknowledgement until the next burst. */
static void waits_for_delayed_acknowledgements_do_not_add_up(void)
{
	struct model model = begin(100);
	uint64_t before;

	model.at.segment = 1448;
	tick(&model, TICK, MB, 0);
	before = rate(&model);
	for (int i = 0; i < 100; i++) {
		model.at.flight = 1;
		tick(&model, TICK, 0, 0);
		model.at.flight = 0;
		tick(&model, TICK, MB, 0);
	}
	check_int(rate(&model), before);
}

static void the_inflight_limit_grows_with_rate_and_round_trip(void)
{
	struct model slow = begin(100), fast = begin(100), far = begin(20000);

	for (int i = 0; i < 50; i++) {
		tick(&slow, TICK, MB / 5, 0);
		tick(&fast, TICK, 2 * MB, 0);
		tick(&far, TICK, 2 * MB, 0);
	}
	check(near(bnet_estimator_inflight_limit(&fast.estimator),
		   10 * bnet_estimator_inflight_limit(&slow.estimator)));
	check(bnet_estimator_inflight_limit(&slow.estimator) > 10 * MB / 1000);      /* more than it carries in 1 ms */
	check(bnet_estimator_inflight_limit(&slow.estimator) < 10 * MB * 20 / 1000); /* less than in 20 */
	check(near(bnet_estimator_inflight_limit(&far.estimator) - bnet_estimator_inflight_limit(&fast.estimator),
		   2 * (20000 - 100) * 100));
}

/* The conclusion from a step of a lone stream on uncontended processors. */
static bool bulk_is_limited(struct bnet_estimator_step step)
{
	return bnet_stream_is_limited(&step, BNET_WORK_BULK, true, false);
}

/* One of several streams: limited only if always busy. */
static bool small_is_limited(struct bnet_estimator_step step)
{
	return bnet_stream_is_limited(&step, BNET_WORK_SMALL, false, false);
}

static bool lone_small_is_limited(struct bnet_estimator_step step)
{
	return bnet_stream_is_limited(&step, BNET_WORK_SMALL, true, false);
}

static bool queued(struct bnet_estimator_step step)
{
	return bnet_stream_is_queued(&step);
}

static bool limited(uint64_t busy_us, uint64_t rwnd_us, uint64_t delivery_rate)
{
	struct model model = begin(100);

	tick(&model, TICK, 2 * MB, 0);
	model.at.rwnd_us += rwnd_us;
	return bulk_is_limited(tick(&model, busy_us, 2 * MB, delivery_rate));
}

static void a_busy_stream_without_other_limits_is_limited_by_the_network(void)
{
	check(limited(TICK, 0, 100 * MB));
	check(!limited(TICK / 2, 0, 100 * MB));    /* idle half of the time */
	check(!limited(TICK, TICK / 2, 100 * MB)); /* the peer was not reading */
	check(!limited(TICK, 0, 400 * MB));        /* bursts: a processor was late */
}

/* On average: the kernel counts busy time in ticks. */
static void an_always_busy_stream_is_limited(void)
{
	struct model always = begin(100), mostly = begin(100), held_up = begin(100), alone = begin(100);
	struct model less = begin(100), more = begin(100);
	bool less_is = true, more_is = false;

	for (int i = 0; i < 60; i++) {
		bool early = i < 30;

		alone.at.segment = 1448;
		check(early || small_is_limited(tick(&always, i % 5 ? TICK : TICK * 4 / 5, MB, 0)));
		check(!small_is_limited(tick(&mostly, i % 5 < 3 ? TICK : 0, MB, 0)));
		held_up.at.rwnd_us += TICK / 2;
		check(!small_is_limited(tick(&held_up, TICK, MB, 0)));
		if (early)
			tick(&always, TICK, MB, 0);
		check(!small_is_limited(tick(&alone, TICK, 100, 0))); /* it waits for a delayed acknowledgement */
		less_is = small_is_limited(tick(&less, early ? TICK : TICK * 88 / 100, MB, 0));
		more_is = small_is_limited(tick(&more, early ? 0 : TICK * 92 / 100, MB, 0));
	}
	check(!less_is && more_is); /* independent of the earlier level */
}

/* Between the steps of a collective streams are idle. They are pressed if round trips grow far beyond what a late
 * processor adds. */
static void an_often_busy_stream_is_pressed_if_round_trips_grow_much(void)
{
	struct model far_more = begin(20), more = begin(20), seldom = begin(20), held_up = begin(20);
	struct model far_away = begin(20000);
	struct bnet_tally tally = {0};

	for (int i = 0; i < 60; i++) {
		bool early = i < 30;
		struct bnet_estimator_step step;

		far_more.at.rtt_us = seldom.at.rtt_us = held_up.at.rtt_us = 2000;
		more.at.rtt_us = 400;
		held_up.at.rwnd_us += TICK / 2;
		step = tick(&far_more, i % 4 ? TICK : 0, MB, 0);
		check(early || (bnet_stream_is_pressed(&step) && !small_is_limited(step)));
		if (!early)
			bnet_tally_add_stream(&tally, &step, BNET_WORK_SMALL, false, false);
		step = tick(&more, i % 4 ? TICK : 0, MB, 0);
		check(!bnet_stream_is_pressed(&step));
		far_away.at.rtt_us = 22000; /* little more than the way takes */
		step = tick(&far_away, i % 4 ? TICK : 0, MB, 0);
		check(!bnet_stream_is_pressed(&step));
		step = tick(&seldom, i % 2 ? TICK : 0, MB, 0);
		check(!bnet_stream_is_pressed(&step));
		step = tick(&held_up, TICK, MB, 0);
		check(early || !bnet_stream_is_pressed(&step));
	}
	check_int(tally.count, 30);
	check_int(tally.pressed, 30);
	check_int(tally.queued, 30);
	check_int(tally.limited, 0);
}

/* Less than always busy suffices if round trips grow for no other reason. */
static void an_often_busy_stream_is_limited_if_round_trips_grow(void)
{
	struct model near_by = begin(20), late = begin(20), seldom = begin(20);

	for (int i = 0; i < 60; i++) {
		struct bnet_estimator_step step;

		near_by.at.rtt_us = seldom.at.rtt_us = 300;
		late.at.rtt_us = 90; /* as much as a late processor adds */
		step = tick(&near_by, i % 4 ? TICK : 0, MB, 0);
		check(!small_is_limited(step) && (lone_small_is_limited(step) || i < 30));
		/* Contended: a late processor adds as much. */
		check(!bnet_stream_is_limited(&step, BNET_WORK_SMALL, true, true));
		check(!lone_small_is_limited(tick(&late, i % 4 ? TICK : 0, MB, 0)));
		check(!lone_small_is_limited(tick(&seldom, i % 2 ? TICK : 0, MB, 0)));
	}
}

/* Training steps: computing, then sending for a while. */
static void a_pause_does_not_count_as_idle_time(void)
{
	struct model bursts = begin(100), rare = begin(100), filled = begin(100);

	for (int i = 0; i < 50; i++) {
		check(step_on(&bursts, 5 * TICK, TICK / 2, MB / 2, 0, true).paused);
		for (int j = 0; j < 4; j++)
			check(small_is_limited(tick(&bursts, TICK, MB, 0)) || i < 3);
		tick(&bursts, TICK / 2, MB / 2, 0);
		check(!small_is_limited(step_on(&rare, 2 * TICK, TICK / 10, 100000, 0, true)));
		/* No pass for a while, but only because nothing could move. */
		check(!step_on(&filled, 2 * TICK, 2 * TICK, 1000, 0, true).paused);
	}
}

static void a_grown_round_trip_means_a_queue(void)
{
	struct model near_by = begin(50), far = begin(10000);

	check(queued(tick(&near_by, TICK, MB, 0))); /* undecidable on short paths: assumed */
	check(!queued(tick(&far, TICK, MB, 0)));
	far.at.rtt_us = 20000;
	check(queued(tick(&far, TICK, MB, 0)));
}

static void a_step_covers_the_time_since_the_last(void)
{
	struct model model = {.now_us = 7000000, .at = {.acked = 12345, .busy_us = 99}};
	struct bnet_estimator_step step = bnet_estimator_update(&model.estimator, &model.at, model.now_us, false);

	check(step.acked == 0 && step.elapsed_us == 0 && !bulk_is_limited(step));
	step = tick(&model, TICK, 777, 0);
	check_int(step.acked, 777);
	check_int(step.elapsed_us, TICK);
}

/* ---- implausible counts ---- */

static void decreasing_counts_restart_the_measurement(void)
{
	for (int which = 0; which < 4; which++) {
		struct model model = begin(100);
		struct bnet_estimator_step step;
		uint64_t before, peak;

		model.at.rwnd_us = 1000;
		for (int i = 0; i < 50; i++)
			tick(&model, TICK, 2 * MB, 0);
		before = rate(&model);
		peak = model.estimator.peak;
		if (which == 0)
			model.at = (struct bnet_reading){0};
		else if (which == 1)
			model.at.acked = 5;
		else if (which == 2)
			model.at.busy_us = 5;
		else
			model.at.rwnd_us = 5;
		step = tick(&model, 0, 0, 0);
		check(step.acked == 0 && step.elapsed_us == 0 && !bulk_is_limited(step));
		check_int(rate(&model), before);
		check_int(model.estimator.peak, peak);
		step = tick(&model, TICK, 2 * MB, 0);
		check_int(step.acked, 2 * MB);
		check(near(rate(&model), 100 * MB));
	}
}

static void a_stopped_or_decreasing_clock_is_ignored(void)
{
	struct model model = begin(100);

	for (uint64_t back = 0; back <= TICK; back += TICK) {
		model.now_us -= TICK + back;
		check_int(tick(&model, TICK, 2 * MB, 0).elapsed_us, 0);
		check_int(rate(&model), 0);
	}
}

/* Nothing overflows: huge values stay huge, and an unknown round trip counts as 0. */
static void extreme_counts_do_not_overflow(void)
{
	struct model model = begin(100), unknown = begin(UINT32_MAX);
	uint64_t fast;

	tick(&model, TICK, UINT64_MAX / 2, UINT64_MAX);
	fast = rate(&model);
	check(fast > UINT64_C(100000) * MB);
	check(bnet_estimator_inflight_limit(&model.estimator) > fast / 1000);
	model.at.min_rtt_us = UINT32_MAX - 1;
	tick(&model, UINT64_MAX / 200, UINT64_MAX / 4, UINT64_MAX);
	check(bnet_estimator_inflight_limit(&model.estimator) > 0);
	for (int i = 0; i < 50; i++)
		tick(&unknown, TICK, 2 * MB, 0);
	check(bnet_estimator_inflight_limit(&unknown.estimator) < 100 * MB / 10); /* a tenth of a second's bytes */
}

/* ---- the kernel ---- */

static void sockets_are_read(void)
{
	struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t size = sizeof(address);
	int listener = socket(AF_INET, SOCK_STREAM, 0), from = socket(AF_INET, SOCK_STREAM, 0), to;
	struct bnet_reading reading;
	char bytes[1000] = {0};

	check_int(bind(listener, (struct sockaddr *)&address, size), 0);
	check_int(listen(listener, 1), 0);
	check_int(getsockname(listener, (struct sockaddr *)&address, &size), 0);
	check_int(connect(from, (struct sockaddr *)&address, size), 0);
	to = accept(listener, NULL, NULL);
	check(to >= 0);
	check_int(send(from, bytes, sizeof(bytes), 0), sizeof(bytes));
	check_int(recv(to, bytes, sizeof(bytes), MSG_WAITALL), sizeof(bytes));
	do /* until the acknowledgement arrives */
		check(bnet_estimator_read(from, &reading));
	while (reading.acked < sizeof(bytes));
	check(reading.min_rtt_us > 0 && reading.min_rtt_us < 10 * MB);
	check(!bnet_estimator_read(-1, &reading));
	close(from);
	close(to);
	close(listener);
}

/* A lower one would be corrected late or never. */
static void a_recalled_rate_allows_more_than_an_unknown_one(void)
{
	struct bnet_estimator unknown, slow, fast;

	memset(&unknown, 0, sizeof(unknown));
	slow = fast = unknown;
	bnet_estimator_begin(&slow, 1000000);
	check(bnet_estimator_inflight_limit(&slow) == bnet_estimator_inflight_limit(&unknown));
	bnet_estimator_begin(&fast, 100000000);
	check(bnet_estimator_inflight_limit(&fast) > bnet_estimator_inflight_limit(&unknown));
}

int main(void)
{
	a_recalled_rate_allows_more_than_an_unknown_one();
	the_rate_counts_busy_time_only();
	the_rate_follows_changes();
	idle_time_keeps_the_rate();
	a_stream_without_acknowledgements_is_slow_not_unknown();
	a_lone_segment_is_not_measured();
	a_lone_segment_that_stalls_is_slow();
	waits_for_delayed_acknowledgements_do_not_add_up();
	the_inflight_limit_grows_with_rate_and_round_trip();
	a_busy_stream_without_other_limits_is_limited_by_the_network();
	an_always_busy_stream_is_limited();
	an_often_busy_stream_is_limited_if_round_trips_grow();
	an_often_busy_stream_is_pressed_if_round_trips_grow_much();
	a_pause_does_not_count_as_idle_time();
	a_grown_round_trip_means_a_queue();
	a_step_covers_the_time_since_the_last();
	decreasing_counts_restart_the_measurement();
	a_stopped_or_decreasing_clock_is_ignored();
	extreme_counts_do_not_overflow();
	sockets_are_read();
	return 0;
}
