/* SPDX-License-Identifier: MIT
 *
 * What a process counts. Each connection counts what moves on it, in memory of its own: only its owner writes there, so
 * that counting costs no atomic operation and takes no line from another processor. What happens rarely is counted once
 * for the process, by relaxed atomics.
 */
#ifndef BNET_COUNTERS_H
#define BNET_COUNTERS_H

#include <stdatomic.h>
#include <stdint.h>

#define BNET_CONN_COUNTERS(X) \
	X(bytes_sent)         \
	X(bytes_received)     \
	X(messages_sent)      \
	X(messages_received)  \
	X(slices_sent)        \
	X(slices_received)    \
	X(slices_repeated)    \
	X(send_calls)         \
	X(send_again)         \
	X(receive_calls)      \
	X(receive_again)      \
	X(poll_calls)         \
	X(zerocopy_calls)     \
	X(zerocopy_copied)

#define BNET_PROCESS_COUNTERS(X) \
	X(connections)           \
	X(streams)               \
	X(descriptors)           \
	X(rejected)              \
	X(takeovers)             \
	X(repairs)               \
	X(unverified)            \
	X(lock_wait_us)

/* Of a connection. Any thread reads, its owner writes. */
struct bnet_conn_counts {
#define X(name) _Atomic uint64_t name;
	BNET_CONN_COUNTERS(X)
#undef X
};

/* How long messages of a connection took, by powers of two of a µs; likewise. */
#define BNET_LATENCIES 24
struct bnet_latencies {
	_Atomic uint64_t below[BNET_LATENCIES], sum_us;
};

/* Of the process. Any thread. */
struct bnet_counts {
#define X(name) _Atomic uint64_t name;
	BNET_PROCESS_COUNTERS(X)
#undef X
	struct bnet_conn_counts ended; /* of connections that are no more; under the engine's lock */
};

extern struct bnet_counts bnet_counts;

#define bnet_count(name, n) atomic_fetch_add_explicit(&bnet_counts.name, (uint64_t)(n), memory_order_relaxed)

/* Of a counter that one thread at a time writes. */
static inline void bnet_count_own(_Atomic uint64_t *counter, uint64_t n)
{
	atomic_store_explicit(counter, atomic_load_explicit(counter, memory_order_relaxed) + n, memory_order_relaxed);
}

/* The owner. */
#define bnet_conn_count(conn, name, n) bnet_count_own(&(conn)->counts.name, (uint64_t)(n))

static inline void bnet_count_latency(struct bnet_latencies *latencies, uint64_t us)
{
	const int power = us ? 64 - __builtin_clzll(us) : 0;

	bnet_count_own(&latencies->sum_us, us);
	bnet_count_own(&latencies->below[power < BNET_LATENCIES ? power : BNET_LATENCIES - 1], 1);
}

static inline void bnet_conn_counts_add(struct bnet_conn_counts *sum, const struct bnet_conn_counts *counts)
{
#define X(name) bnet_count_own(&sum->name, atomic_load_explicit(&counts->name, memory_order_relaxed));
	BNET_CONN_COUNTERS(X)
#undef X
}

/* Calls that have sent or received something. */
static inline uint64_t bnet_conn_moves(const struct bnet_conn_counts *counts)
{
	return atomic_load_explicit(&counts->send_calls, memory_order_relaxed) -
	       atomic_load_explicit(&counts->send_again, memory_order_relaxed) +
	       atomic_load_explicit(&counts->receive_calls, memory_order_relaxed) -
	       atomic_load_explicit(&counts->receive_again, memory_order_relaxed);
}

#endif
