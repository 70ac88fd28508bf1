/* SPDX-License-Identifier: MIT
 *
 * See limited.h.
 */
#include "scaling/limited.h"

/* A stream waits for its peer when the window is closed for this share of its busy time, in hundredths. */
#define RWND_PERCENT 10
/* A lone stream of small messages is limited at this share of busy time as well, if round trips have grown by more
 * than a processor adds that is not overloaded. */
#define OFTEN_BUSY_PERCENT 60
#define LATE_PROCESSOR_US 100
/* Several streams are pressed at that share of busy time if round trips have grown by more than even an overloaded
 * processor adds most of the time. */
#define PRESSED_US 500
/* The kernel's largest send buffer is too small for the path when it is full for this share of busy time. */
#define SNDBUF_PERCENT 50
/* Where the network limits, bytes are acknowledged as fast as they are delivered. Where a processor does, sent bytes
 * arrive in bursts, 2 to 30 times as fast as on average. */
#define BURST_PERCENT 150
/* A round trip this much above the smallest means that bytes queue on the way. */
#define QUEUE_PERCENT 130
/* Below this round trip a queue cannot be told from a late processor. */
#define QUEUE_RTT_US 300

void bnet_tally_add(struct bnet_tally *tally, bool limited, bool queued, bool pressed)
{
	tally->count++;
	tally->limited += limited;
	tally->queued += queued;
	tally->pressed += pressed;
}

/* ---- a stream ---- */

/* The path is long, and the kernel grants no more bytes in flight. */
static bool buffer_limits(const struct bnet_estimator_step *step)
{
	return step->min_rtt_us > QUEUE_RTT_US && step->sndbuf_us * 100 >= step->busy_us * SNDBUF_PERCENT;
}

/* Bytes wait for room, so the kernel always has some to send: the network limits if it delivers them evenly. */
static bool bulk_is_limited(const struct bnet_estimator_step *step)
{
	if (step->busy_us * 100 < step->elapsed_us * BNET_BUSY_PERCENT ||
	    step->rwnd_us * 100 >= step->busy_us * RWND_PERCENT)
		return false;
	return step->delivery_rate / BURST_PERCENT < bnet_rate(step->acked, step->elapsed_us) / 100 ||
	       buffer_limits(step);
}

/* Nothing waits behind what the kernel took, so evenness says nothing, and a round trip is needed in any case: the
 * network limits a stream that is nearly always busy while its bytes queue. */
static bool small_is_limited(const struct bnet_estimator_step *step, bool lone, bool contended)
{
	bool busy = step->busy >= BNET_BUSY_PERCENT * 100;
	/* A late processor would lengthen round trips as well. */
	bool often_busy = lone && !contended && step->busy >= OFTEN_BUSY_PERCENT * 100 &&
			  step->rtt_us > (uint64_t)step->min_rtt_us + LATE_PROCESSOR_US;

	return (busy || often_busy) && bnet_stream_is_queued(step);
}

bool bnet_stream_is_limited(const struct bnet_estimator_step *step, enum bnet_work work, bool lone, bool contended)
{
	return work == BNET_WORK_BULK ? bulk_is_limited(step) : small_is_limited(step, lone, contended);
}

bool bnet_stream_is_pressed(const struct bnet_estimator_step *step)
{
	return step->busy >= OFTEN_BUSY_PERCENT * 100 && step->rtt_us > (uint64_t)step->min_rtt_us + PRESSED_US &&
	       bnet_stream_is_queued(step);
}

bool bnet_stream_is_queued(const struct bnet_estimator_step *step)
{
	return step->min_rtt_us < QUEUE_RTT_US ||
	       (uint64_t)step->rtt_us * 100 > (uint64_t)step->min_rtt_us * QUEUE_PERCENT;
}

/* ---- streams and samples together ---- */

void bnet_tally_add_stream(struct bnet_tally *tally, const struct bnet_estimator_step *step, enum bnet_work work,
			   bool lone, bool contended)
{
	bnet_tally_add(tally, bnet_stream_is_limited(step, work, lone, contended), bnet_stream_is_queued(step),
		       bnet_stream_is_pressed(step));
}

/* A lone stream must be sure; several streams that share a bottleneck differ from each other. */
bool bnet_path_is_limited(const struct bnet_tally *streams, bool lone)
{
	return streams->limited * 4 >= streams->count * (lone ? 3 : 1);
}

bool bnet_window_is_limited(const struct bnet_tally *samples, bool lone)
{
	return lone ? samples->limited * 4 >= samples->count * 3 : samples->limited * 2 >= samples->count;
}

bool bnet_path_is_pressed(const struct bnet_tally *streams, bool lone)
{
	return !lone && streams->pressed * 4 >= streams->count;
}

bool bnet_window_is_pressed(const struct bnet_tally *samples, bool lone)
{
	return !lone && samples->pressed * 2 >= samples->count;
}

bool bnet_tally_is_queued(const struct bnet_tally *tally)
{
	return tally->queued * 2 >= tally->count;
}
