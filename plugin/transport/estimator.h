/* SPDX-License-Identifier: MIT
 *
 * What is known of one stream's path: how fast it carries, how long its round trip is, and whether it is the network
 * that holds it up. Read off TCP_INFO by the control thread, used by the connection's owner when it hands out slices.
 * Everything but bnet_estimator_read is pure.
 */
#ifndef BNET_ESTIMATOR_H
#define BNET_ESTIMATOR_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* What the kernel has counted for a socket since its beginning. */
struct bnet_reading {
	uint64_t acked;          /* bytes that the peer has acknowledged */
	uint64_t busy_us;        /* time with bytes in flight */
	uint64_t rwnd_us;        /* … of it, held up by the peer's window */
	uint64_t sndbuf_us;      /* … of it, held up by the size of the send buffer */
	uint64_t delivery_rate;  /* bytes/s, of the last bytes that were acknowledged */
	uint32_t segment;        /* bytes of a full one */
	uint32_t flight;         /* segments that are sent and not acknowledged */
	uint32_t rtt_us;
	uint32_t min_rtt_us;
};

struct bnet_estimator {
	/* the control thread's */
	struct bnet_reading last;
	uint64_t last_us;        /* when; 0: never */
	int busy;                /* how much of the time, of late, in 1/10000 */
	int busy_before;         /* … without the last sample, where a pause may have begun in that */
	uint64_t stalled_us;     /* busy for so long without an acknowledgement */
	uint64_t peak;           /* bytes/s, remembered through pauses of a second or two */
	int64_t sndbuf;          /* as set; 0: the kernel's own sizing */
	/* for the owner */
	_Atomic uint64_t rate;   /* bytes/s while it is busy; 0: not known */
	_Atomic uint32_t min_rtt_us;
};

/* What a stream did between two readings. */
struct bnet_estimator_step {
	uint64_t acked;          /* bytes */
	uint64_t elapsed_us;
	bool limited;            /* by the network: neither by the peer nor by a processor, if there was more to send */
	bool busy;               /* for some samples now it has hardly ever been without bytes in flight */
	bool often_busy;         /* … that for most of the time, and round trips take much longer than they could */
	bool queued;             /* its bytes wait in a queue on the way */
	bool paused;             /* for a part of the time there was nothing to do: how busy it was says nothing */
};

/* Reads the kernel's counts. False where it does not tell enough. */
bool bnet_estimator_read(int fd, struct bnet_reading *reading);
/* Takes a reading into account, and says what happened since the last one. `rested`: the connection was not used for a
 * part of the time. */
struct bnet_estimator_step bnet_estimator_update(struct bnet_estimator *flow, const struct bnet_reading *reading, uint64_t now_us,
				       bool rested);

/* Bytes that may be on their way in a stream (unsent or unacknowledged): what it carries in a few milliseconds and two
 * round trips. More would arrive late compared with what its siblings carry; less would leave it idle. Little while
 * nothing is known. */
uint64_t bnet_estimator_inflight_limit(const struct bnet_estimator *flow);

#endif
