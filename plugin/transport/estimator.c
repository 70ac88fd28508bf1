/* SPDX-License-Identifier: MIT
 *
 * What TCP_INFO says about a path; see flow.h. The control thread, except for bnet_estimator_inflight_limit.
 */
#include "transport/estimator.h"

#include <linux/tcp.h> /* knows more of struct tcp_info than netinet/tcp.h */
#include <netinet/in.h>
#include <stddef.h>
#include <string.h>
#include <sys/socket.h>

/* A stream has work when it is busy for so many hundredths of the time, and waits for its peer when the window is
 * closed for so many. */
#define BUSY_PERCENT 90
#define RWND_PERCENT 10
/* … or for so many, if round trips have grown by more than a processor adds that is not overloaded. */
#define OFTEN_BUSY_PERCENT 60
#define LATE_PROCESSOR_US 100
/* The kernel's largest send buffer is too small for the path when it is full for so many. */
#define SNDBUF_PERCENT 50
/* Where the network limits, bytes are acknowledged as fast as they are delivered. Where a processor does, what is sent
 * arrives in bursts, 2 to 30 times as fast as on average. */
#define BURST_PERCENT 150
/* Round trips this much above the smallest mean that something waits on the way. */
#define QUEUE_PERCENT 130
/* Below that, a queue cannot be told from a late processor. */
#define QUEUE_RTT_US 300
/* A sample counts for half of the estimate of a rate. The kernel counts busy time in ticks of some milliseconds, so for
 * less of a mean of it. */
#define RATE_SHARE 2
#define BUSY_SHARE 4
#define LEAST_BUSY_US 1000
/* No receiver waits so long with an acknowledgement: Linux 200 ms at the most. */
#define STALLED_US 250000
/* How much a stream may hold back, beyond two round trips. */
#define AHEAD_US 4000
/* … and while its rate is not known: it may turn out to be very slow. */
#define UNKNOWN_BYTES 32768
/* No path is faster or longer; what a kernel says beyond it is no measurement. */
#define MOST_RATE (UINT64_C(1) << 38)
#define MOST_RTT_US 10000000

bool bnet_estimator_read(int fd, struct bnet_reading *reading)
{
	struct tcp_info info;
	socklen_t size = sizeof(info);

	memset(&info, 0, sizeof(info));
	if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) < 0 ||
	    size < offsetof(struct tcp_info, tcpi_sndbuf_limited) + sizeof(info.tcpi_sndbuf_limited))
		return false;
	*reading = (struct bnet_reading){
		.acked = info.tcpi_bytes_acked,
		.busy_us = info.tcpi_busy_time,
		.rwnd_us = info.tcpi_rwnd_limited,
		.sndbuf_us = info.tcpi_sndbuf_limited,
		.delivery_rate = info.tcpi_delivery_rate,
		.segment = info.tcpi_snd_mss,
		.flight = info.tcpi_unacked,
		.rtt_us = info.tcpi_rtt,
		.min_rtt_us = info.tcpi_min_rtt,
	};
	return true;
}

static uint64_t per_second(uint64_t bytes, uint64_t us)
{
	if (us == 0)
		return 0;
	if (bytes / us >= MOST_RATE / 1000000)
		return MOST_RATE;
	return bytes / us * 1000000 + bytes % us * 1000000 / us;
}

/* Its receiver waits with the acknowledgement of a lone segment, for 40 ms most often: how long that took says nothing
 * of the path. */
static bool is_lone_segment(const struct bnet_reading *reading, uint64_t acked)
{
	return acked + (uint64_t)reading->flight * reading->segment < 2 * (uint64_t)reading->segment;
}

/* … unless nothing is acknowledged for longer than any receiver waits. */
static bool is_stalled(struct bnet_estimator *flow, uint64_t acked, uint64_t busy)
{
	flow->stalled_us = acked ? 0 : flow->stalled_us + busy;
	return flow->stalled_us >= STALLED_US;
}

static void estimate(struct bnet_estimator *flow, uint64_t acked, uint64_t busy_us)
{
	uint64_t rate = atomic_load_explicit(&flow->rate, memory_order_relaxed), now;

	if (busy_us < LEAST_BUSY_US)
		return;
	now = per_second(acked, busy_us);
	rate = rate ? rate - rate / RATE_SHARE + now / RATE_SHARE : now;
	/* A stream on which nothing arrives at all is slow, not unknown. */
	atomic_store_explicit(&flow->rate, rate ? rate : 1, memory_order_relaxed);
}

/* The path is long, and the kernel lets no more bytes onto it than net.ipv4.tcp_wmem says. */
static bool buffer_limits(const struct bnet_estimator *flow, const struct bnet_reading *now, uint64_t busy)
{
	return flow->sndbuf == 0 && now->min_rtt_us > QUEUE_RTT_US &&
	       (now->sndbuf_us - flow->last.sndbuf_us) * 100 >= busy * SNDBUF_PERCENT;
}

static bool network_limits(const struct bnet_estimator *flow, const struct bnet_reading *now, uint64_t acked,
			   uint64_t elapsed)
{
	uint64_t busy = now->busy_us - flow->last.busy_us, rwnd = now->rwnd_us - flow->last.rwnd_us;

	if (busy * 100 < elapsed * BUSY_PERCENT || rwnd * 100 >= busy * RWND_PERCENT)
		return false;
	return now->delivery_rate / BURST_PERCENT < per_second(acked, elapsed) / 100 || buffer_limits(flow, now, busy);
}

/* For how much of the time it has had bytes in flight, on a mean over several readings. */
static void learn_how_busy(struct bnet_estimator *flow, uint64_t busy, uint64_t elapsed)
{
	const int now = busy < elapsed ? (int)(busy * 10000 / elapsed) : 10000;

	flow->busy_before = flow->busy;
	flow->busy += (now - flow->busy) / BUSY_SHARE;
	if (now >= BUSY_PERCENT * 100)
		flow->busy_before = flow->busy; /* no pause begins in such a one */
}

/* A socket that was reset begins again. */
static bool went_back(const struct bnet_reading *from, const struct bnet_reading *to)
{
	return to->acked < from->acked || to->busy_us < from->busy_us || to->rwnd_us < from->rwnd_us ||
	       to->sndbuf_us < from->sndbuf_us;
}

/* The kernel's word for a round trip that was not measured is the largest number that there is. */
static uint32_t known_rtt(uint32_t rtt_us)
{
	return rtt_us <= MOST_RTT_US ? rtt_us : 0;
}

struct bnet_estimator_step bnet_estimator_update(struct bnet_estimator *flow, const struct bnet_reading *reading, uint64_t now_us,
				       bool rested)
{
	struct bnet_estimator_step step = {.acked = 0};
	bool lone;

	if (flow->last_us && now_us > flow->last_us && !went_back(&flow->last, reading)) {
		/* Time in which the peer had no room says nothing of the path. */
		uint64_t held_up = reading->rwnd_us - flow->last.rwnd_us, busy = reading->busy_us - flow->last.busy_us;
		uint64_t working = busy > held_up ? busy - held_up : 0, rate;

		step.acked = reading->acked - flow->last.acked;
		step.elapsed_us = now_us - flow->last_us;
		step.limited = network_limits(flow, reading, step.acked, step.elapsed_us);
		lone = is_lone_segment(reading, step.acked) && !is_stalled(flow, step.acked, working);
		step.paused = rested && working * 100 < step.elapsed_us * BUSY_PERCENT;
		if (step.paused)
			flow->busy = flow->busy_before; /* the pause began in the sample before this */
		else
			learn_how_busy(flow, lone ? 0 : working, step.elapsed_us);
		step.busy = !step.paused && flow->busy >= BUSY_PERCENT * 100;
		step.often_busy = !step.paused && flow->busy >= OFTEN_BUSY_PERCENT * 100 &&
				  reading->rtt_us > (uint64_t)reading->min_rtt_us + LATE_PROCESSOR_US;
		step.queued = reading->min_rtt_us < QUEUE_RTT_US ||
			      (uint64_t)reading->rtt_us * 100 > (uint64_t)reading->min_rtt_us * QUEUE_PERCENT;
		if (!lone)
			estimate(flow, step.acked, working);
		rate = per_second(step.acked, step.elapsed_us);
		if (step.acked)
			flow->peak -= flow->peak / 64;
		if (rate > flow->peak)
			flow->peak = rate;
	}
	atomic_store_explicit(&flow->min_rtt_us, known_rtt(reading->min_rtt_us), memory_order_relaxed);
	flow->last = *reading;
	flow->last_us = now_us;
	return step;
}

uint64_t bnet_estimator_inflight_limit(const struct bnet_estimator *flow)
{
	uint64_t rate = atomic_load_explicit(&flow->rate, memory_order_relaxed);
	uint64_t time = AHEAD_US + 2 * (uint64_t)atomic_load_explicit(&flow->min_rtt_us, memory_order_relaxed);

	return rate ? rate * time / 1000000 : UNKNOWN_BYTES;
}
