/* SPDX-License-Identifier: MIT
 *
 * See window.h.
 */
#include "scaling/window.h"

#include <string.h>

/* A queue that is shorter than this tells nothing about a fresh flow's wait. */
#define QUEUE_US 500

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

void bnet_window_add(struct bnet_window *window, const struct bnet_sample *sample)
{
	window->bytes += sample->acked;
	window->time_us += sample->elapsed_us;
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

struct bnet_carried bnet_window_carried(const struct bnet_window *window)
{
	struct bnet_carried carried = {.own = window->bytes * 1000000 / window->time_us};

	if (window->marked == 2)
		carried.network = bnet_network_between(&window->from, &window->to, carried.own);
	return carried;
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
