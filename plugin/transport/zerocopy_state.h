/* SPDX-License-Identifier: MIT
 *
 * The state of sends without a copy, of a connection and of each stream; see zerocopy.h. The owner's.
 */
#ifndef BNET_ZEROCOPY_STATE_H
#define BNET_ZEROCOPY_STATE_H

#include <stdbool.h>
#include <stdint.h>

enum bnet_zerocopy_mode {
	BNET_ZEROCOPY_OFF,
	BNET_ZEROCOPY_TRIAL,
	BNET_ZEROCOPY_ON,
};

/* Of a connection. */
struct bnet_zerocopy {
	enum bnet_zerocopy_mode mode;
	bool forced; /* stays on where the kernel copies */
	struct bnet_zerocopy_cost {
		uint64_t bytes;
		uint64_t ns;       /* in the system calls that sent them and read their notifications */
	} with_copy, without_copy; /* of the trial */
};

/* Of a stream: the calls that have not been notified. The kernel has room for some 170 notifications
 * (net.core.optmem_max). */
#define BNET_ZEROCOPY_PENDING 64
struct bnet_zerocopy_calls {
	bool enabled;                     /* SO_ZEROCOPY is set */
	uint32_t made;                    /* the kernel's number of the next call */
	uint32_t notified;                /* … of the first call that has not been notified */
	bool over[BNET_ZEROCOPY_PENDING]; /* notified before an earlier call */
};

static inline bool bnet_zerocopy_pending(const struct bnet_zerocopy_calls *calls)
{
	return calls->made != calls->notified;
}

#endif
