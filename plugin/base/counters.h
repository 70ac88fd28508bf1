/* SPDX-License-Identifier: MIT
 *
 * Counters of this process: relaxed atomics, incremented by the threads that move data. Any thread.
 */
#ifndef BNET_COUNTERS_H
#define BNET_COUNTERS_H

#include <stdatomic.h>
#include <stdint.h>

#define BNET_COUNTERS(X)     \
	X(bytes_sent)        \
	X(bytes_received)    \
	X(messages_sent)     \
	X(messages_received) \
	X(slices_sent)       \
	X(slices_received)   \
	X(send_calls)        \
	X(send_again)        \
	X(receive_calls)     \
	X(receive_again)     \
	X(poll_calls)        \
	X(connections)       \
	X(streams)           \
	X(descriptors)       \
	X(rejected)          \
	X(takeovers)         \
	X(zerocopy_calls)    \
	X(zerocopy_copied)   \
	X(lock_wait_us)

struct bnet_counts {
#define X(name) _Atomic uint64_t name;
	BNET_COUNTERS(X)
#undef X
};

extern struct bnet_counts bnet_counts;

#define bnet_count(name, n) atomic_fetch_add_explicit(&bnet_counts.name, (uint64_t)(n), memory_order_relaxed)

#endif
