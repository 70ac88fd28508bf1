/* SPDX-License-Identifier: MIT
 *
 * Estimates of one stream's path: its rate, its round trip, and how busy it is. The control thread reads TCP_INFO;
 * the connection's owner uses the rate when it hands out slices. Everything but bnet_estimator_read is pure. Whether
 * the network limits the stream is decided in scaling/limited.h, from the steps that this returns.
 */
#ifndef BNET_ESTIMATOR_H
#define BNET_ESTIMATOR_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* Shares of time in hundredths. A stream that is busy for less has had nothing to send. */
#define BNET_BUSY_PERCENT 90

/* The kernel's counts of a socket since its beginning. */
struct bnet_reading {
	uint64_t acked;         /* bytes that the peer has acknowledged */
	uint64_t busy_us;       /* time with bytes in flight */
	uint64_t rwnd_us;       /* … of it, limited by the peer's window */
	uint64_t sndbuf_us;     /* … of it, limited by the size of the send buffer */
	uint64_t delivery_rate; /* bytes/s, of the most recently acknowledged bytes */
	uint32_t segment;       /* bytes of a full segment */
	uint32_t flight;        /* segments sent and not acknowledged */
	uint32_t rtt_us;
	uint32_t min_rtt_us;
};

/* No path is faster, in bytes/s: a higher rate counts as this one. */
#define BNET_MAX_RATE (UINT64_C(1) << 38)
/* No path is longer: a kernel that reports more has not measured. */
#define BNET_MAX_RTT_US 10000000
/* From this round trip on a path is long. No network within a building takes as long. */
#define BNET_LONG_RTT_US 2000

struct bnet_estimator {
	/* the control thread's */
	struct bnet_reading last;
	uint64_t last_us;    /* when; 0: never */
	int busy;            /* share of busy time in 1/10000, a mean over several readings */
	int busy_before;     /* … without the last reading, in which a pause may have begun */
	uint64_t stalled_us; /* busy for so long without an acknowledgement */
	uint64_t peak;       /* bytes/s; only readings that acknowledge bytes lower it, by 1/64 each */
	int64_t sndbuf;      /* as set; 0: the kernel's own sizing */
	/* for the owner */
	_Atomic uint64_t rate; /* bytes/s of busy time; 0: unknown */
	_Atomic uint32_t min_rtt_us;
};

/* What a stream did between two readings; all zero where these cannot be compared. */
struct bnet_estimator_step {
	uint64_t acked; /* bytes */
	uint64_t elapsed_us;
	uint64_t busy_us;
	uint64_t rwnd_us;
	uint64_t sndbuf_us;
	uint64_t delivery_rate; /* bytes/s */
	uint32_t rtt_us;
	uint32_t min_rtt_us;
	bool paused; /* idle for a part of the time: how busy it was says nothing */
	int busy;    /* share of busy time in 1/10000, a mean over several readings; 0 after a pause */
};

/* What an earlier stream of this path has learned: bytes/s, which the next readings correct. A low rate, as of a
 * network that was failing, counts as unknown. */
void bnet_estimator_begin(struct bnet_estimator *estimator, uint64_t rate);
/* Reads the kernel's counts. False where it does not report enough. */
bool bnet_estimator_read(int fd, struct bnet_reading *reading);
/* Takes a reading into account and returns what happened since the last one. `was_idle`: the connection was idle for a
 * part of the time. */
struct bnet_estimator_step bnet_estimator_update(struct bnet_estimator *estimator, const struct bnet_reading *reading,
						 uint64_t now_us, bool was_idle);

/* The in-flight limit: how many bytes of a stream may be unsent or unacknowledged. It is what the stream carries in a
 * few milliseconds and two round trips: more would arrive late compared with its siblings' bytes, less would leave it
 * idle. A small constant while the rate is unknown. */
uint64_t bnet_estimator_inflight_limit(const struct bnet_estimator *estimator);

/* Bytes/s of `bytes` in `us`; 0 for no time. No product overflows. */
uint64_t bnet_rate(uint64_t bytes, uint64_t us);

#endif
