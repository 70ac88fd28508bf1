/* SPDX-License-Identifier: MIT
 *
 * See window.h.
 */
#include "scaling/window.h"

#include <string.h>

/* A queue that is shorter than this tells nothing about a fresh flow's wait. */
#define QUEUE_US 500
/* The least share of a window that an end must have seen, in percent. It looks every 20 ms, and leaves out the first look
 * at a burst. */
#define SEEN_PERCENT 25

void bnet_window_clear(struct bnet_window *window)
{
	const bool asks = window->asks;

	memset(window, 0, sizeof(*window));
	window->asks = asks;
}

/* 0: not known. */
static uint32_t shorter(uint32_t a, uint32_t b)
{
	return a == 0 || (b && b < a) ? b : a;
}

/* The streams' readings and the device's are about the same time. */
static bool is_seen(const struct bnet_sample *sample)
{
	return sample->device_us * 4 >= sample->elapsed_us * 3 && sample->device_us * 4 <= sample->elapsed_us * 5;
}

void bnet_window_add(struct bnet_window *window, const struct bnet_sample *sample)
{
	window->bytes += sample->acked;
	window->time_us += sample->elapsed_us;
	window->moving_us += sample->acked ? sample->elapsed_us : 0;
	if (is_seen(sample)) {
		window->seen.own += sample->acked;
		window->seen.all += sample->device_sent;
		window->seen.us += sample->device_us;
	}
	if (window->judged)
		return;
	window->queues_us += sample->queue_us;
	window->busy += sample->busy;
	window->shortest_us = shorter(window->shortest_us, sample->min_rtt_us);
	bnet_tally_add(&window->of[sample->work], sample->limited, sample->queued, sample->pressed);
}

void bnet_window_mark(struct bnet_window *window, const struct bnet_window_report *report)
{
	window->asks = false;
	if (window->marked == 0)
		window->from = report->mark;
	else
		window->to = report->mark;
	window->marked += window->marked < 2;
	window->fresh_us = shorter(window->fresh_us, report->rtt_us);
}

static struct bnet_end sent(const struct bnet_window *window)
{
	if (window->seen.us * 100 < window->time_us * SEEN_PERCENT)
		return (struct bnet_end){0};
	return bnet_end_of(window->seen.own, window->seen.all, window->seen.us);
}

/* The peer has seen a part of the window, and no stall, in which nothing arrives: the path's rate while it moves stands
 * for what of its own has arrived in that part. */
static struct bnet_end received(const struct bnet_window *window)
{
	const struct bnet_mark *from = &window->from, *to = &window->to;
	const uint64_t us = to->moved_us - from->moved_us;

	if (window->marked < 2 || !from->connection || from->connection != to->connection ||
	    to->moved_us < from->moved_us || to->received < from->received || !window->moving_us ||
	    us * 100 < window->moving_us * SEEN_PERCENT)
		return (struct bnet_end){0};
	return bnet_end_of(window->bytes * 1000 / window->moving_us * us / 1000, to->received - from->received, us);
}

struct bnet_carried bnet_window_carried(const struct bnet_window *window)
{
	return (struct bnet_carried){
		.own = window->bytes * 1000000 / window->time_us,
		.sent = sent(window),
		.received = received(window),
	};
}

static uint32_t samples_of(const struct bnet_window *window)
{
	return window->of[BNET_WORK_BULK].count + window->of[BNET_WORK_SMALL].count;
}

uint32_t bnet_window_busy(const struct bnet_window *window)
{
	return (uint32_t)(window->busy / samples_of(window));
}

enum bnet_work bnet_window_work(const struct bnet_window *window)
{
	return window->of[BNET_WORK_BULK].count >= window->of[BNET_WORK_SMALL].count ? BNET_WORK_BULK : BNET_WORK_SMALL;
}

bool bnet_window_shares_its_queue(const struct bnet_window *window)
{
	const uint64_t queue_us = window->queues_us / samples_of(window);

	return queue_us >= QUEUE_US && window->fresh_us && window->fresh_us >= window->shortest_us + queue_us / 2;
}
