/* SPDX-License-Identifier: MIT
 *
 * See estimator.h.
 */
#include "transport/estimator.h"

#include "base/tcp_info.h"

/* Exponentially weighted means: a reading has the weight 1/RATE_READINGS in the rate, and 1/BUSY_READINGS in the busy
 * time, which the kernel counts in ticks of some milliseconds. */
#define RATE_READINGS 2
#define BUSY_READINGS 4
#define MIN_BUSY_US 1000
/* No receiver delays an acknowledgement for so long: Linux 200 ms at most. */
#define STALLED_US 250000
/* The in-flight limit in time, beyond two round trips. */
#define AHEAD_US 4000
/* … and in bytes while the rate is unknown: the stream may turn out to be very slow. */
#define UNKNOWN_BYTES 32768

bool bnet_estimator_read(int fd, struct bnet_reading *reading)
{
	struct bnet_tcp_info info;

	if (!bnet_tcp_info_read(fd, &info, sizeof(info)))
		return false;
	*reading = (struct bnet_reading){
		.acked = info.bytes_acked,
		.busy_us = info.busy_time,
		.rwnd_us = info.rwnd_limited,
		.sndbuf_us = info.sndbuf_limited,
		.delivery_rate = info.delivery_rate,
		.segment = info.snd_mss,
		.flight = info.unacked,
		.rtt_us = info.rtt,
		.min_rtt_us = info.min_rtt,
	};
	return true;
}

void bnet_estimator_begin(struct bnet_estimator *estimator, uint64_t rate)
{
	if (rate / 1000000 * AHEAD_US < UNKNOWN_BYTES)
		return; /* it would allow less than an unknown one, and might never be corrected */
	estimator->peak = rate;
	atomic_store_explicit(&estimator->rate, rate, memory_order_relaxed);
}

uint64_t bnet_rate(uint64_t bytes, uint64_t us)
{
	if (us == 0)
		return 0;
	if (bytes / us >= BNET_MAX_RATE / 1000000)
		return BNET_MAX_RATE;
	return bytes / us * 1000000 + bytes % us * 1000000 / us;
}

/* A receiver may delay the acknowledgement of a lone segment, most often for 40 ms: the time it took says nothing about
 * the path. */
static bool is_lone_segment(const struct bnet_reading *reading, uint64_t acked)
{
	return acked + (uint64_t)reading->flight * reading->segment < 2 * (uint64_t)reading->segment;
}

/* … unless nothing is acknowledged for longer than any receiver waits. */
static bool is_stalled(struct bnet_estimator *estimator, uint64_t acked, uint64_t busy)
{
	estimator->stalled_us = acked ? 0 : estimator->stalled_us + busy;
	return estimator->stalled_us >= STALLED_US;
}

static void learn_rate(struct bnet_estimator *estimator, uint64_t acked, uint64_t busy_us)
{
	uint64_t rate = atomic_load_explicit(&estimator->rate, memory_order_relaxed), now;

	if (busy_us < MIN_BUSY_US)
		return;
	now = bnet_rate(acked, busy_us);
	rate = rate ? rate - rate / RATE_READINGS + now / RATE_READINGS : now;
	/* A stream on which nothing arrives is slow, not unknown. */
	atomic_store_explicit(&estimator->rate, rate ? rate : 1, memory_order_relaxed);
}

static void learn_peak(struct bnet_estimator *estimator, const struct bnet_estimator_step *step)
{
	uint64_t rate = bnet_rate(step->acked, step->elapsed_us);

	if (step->acked)
		estimator->peak -= estimator->peak / 64;
	if (rate > estimator->peak)
		estimator->peak = rate;
}

static void learn_busy(struct bnet_estimator *estimator, uint64_t busy, uint64_t elapsed)
{
	const int now = busy < elapsed ? (int)(busy * 10000 / elapsed) : 10000;

	estimator->busy_before = estimator->busy;
	estimator->busy += (now - estimator->busy) / BUSY_READINGS;
	if (now >= BNET_BUSY_PERCENT * 100)
		estimator->busy_before = estimator->busy; /* no pause begins in such a reading */
}

/* A socket that was reset begins again. */
static bool went_back(const struct bnet_reading *from, const struct bnet_reading *to)
{
	return to->acked < from->acked || to->busy_us < from->busy_us || to->rwnd_us < from->rwnd_us ||
	       to->sndbuf_us < from->sndbuf_us;
}

/* The kernel reports a round trip that was not measured as the largest number. */
static uint32_t known_rtt(uint32_t rtt_us)
{
	return rtt_us <= BNET_MAX_RTT_US ? rtt_us : 0;
}

static struct bnet_estimator_step difference(const struct bnet_estimator *estimator, const struct bnet_reading *reading,
					     uint64_t elapsed_us)
{
	const struct bnet_reading *last = &estimator->last;

	return (struct bnet_estimator_step){
		.acked = reading->acked - last->acked,
		.elapsed_us = elapsed_us,
		.busy_us = reading->busy_us - last->busy_us,
		.rwnd_us = reading->rwnd_us - last->rwnd_us,
		.sndbuf_us = reading->sndbuf_us - last->sndbuf_us,
		.delivery_rate = reading->delivery_rate,
		.rtt_us = reading->rtt_us,
		.min_rtt_us = reading->min_rtt_us,
	};
}

struct bnet_estimator_step bnet_estimator_update(struct bnet_estimator *estimator, const struct bnet_reading *reading,
						 uint64_t now_us, bool was_idle)
{
	struct bnet_estimator_step step = {.acked = 0};

	if (estimator->last_us && now_us > estimator->last_us && !went_back(&estimator->last, reading)) {
		uint64_t working;
		bool stalled, lone;

		step = difference(estimator, reading, now_us - estimator->last_us);
		/* Time behind the peer's closed window says nothing about the path. */
		working = step.busy_us > step.rwnd_us ? step.busy_us - step.rwnd_us : 0;
		stalled = is_stalled(estimator, step.acked, working); /* it counts, and forgets, in each reading */
		lone = is_lone_segment(reading, step.acked) && !stalled;
		step.paused = was_idle && working * 100 < step.elapsed_us * BNET_BUSY_PERCENT;
		if (step.paused)
			estimator->busy = estimator->busy_before; /* the pause began in the reading before this */
		else
			learn_busy(estimator, lone ? 0 : working, step.elapsed_us);
		step.busy = step.paused ? 0 : estimator->busy;
		if (!lone)
			learn_rate(estimator, step.acked, working);
		learn_peak(estimator, &step);
	}
	atomic_store_explicit(&estimator->min_rtt_us, known_rtt(reading->min_rtt_us), memory_order_relaxed);
	estimator->last = *reading;
	estimator->last_us = now_us;
	return step;
}

uint64_t bnet_estimator_inflight_limit(const struct bnet_estimator *estimator)
{
	uint64_t rate = atomic_load_explicit(&estimator->rate, memory_order_relaxed);
	uint64_t time = AHEAD_US + 2 * (uint64_t)atomic_load_explicit(&estimator->min_rtt_us, memory_order_relaxed);

	return rate ? rate * time / 1000000 : UNKNOWN_BYTES;
}
