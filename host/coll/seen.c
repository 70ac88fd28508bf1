/* SPDX-License-Identifier: MIT
 *
 * See seen.h.
 */
#include "coll/seen.h"

#include <pthread.h>
#include <stdatomic.h>

#include "bagua_net_host.h"
#include "coll/call.h"
#include "common/clock.h"

#define KINDS (BNET_COLL_SENDRECV + 1)
/* Operations that run at a time: one for each group. More are counted when they are over. */
#define PLACES 64

static struct {
	_Atomic uint64_t calls, failed, bytes, ns, waited_ns;
} seen[KINDS];

static struct {
	_Atomic int kind_1; /* 0: the place is free */
	_Atomic uint64_t began_us;
} running[PLACES];

static void add(_Atomic uint64_t *to, uint64_t more)
{
	atomic_fetch_add_explicit(to, more, memory_order_relaxed);
}

static uint64_t value(_Atomic uint64_t *of)
{
	return atomic_load_explicit(of, memory_order_relaxed);
}

/* In a child of fork(): they are its parent's. */
static void forget_running(void)
{
	for (int place = 0; place < PLACES; place++) {
		atomic_store_explicit(&running[place].began_us, 0, memory_order_relaxed);
		atomic_store_explicit(&running[place].kind_1, 0, memory_order_relaxed);
	}
}

static void watch_forks(void)
{
	pthread_atfork(NULL, NULL, forget_running);
}

int bnet_coll_seen_begin(int kind)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, watch_forks);
	for (int place = 0; place < PLACES; place++) {
		int nothing = 0;

		if (atomic_load_explicit(&running[place].kind_1, memory_order_relaxed) ||
		    !atomic_compare_exchange_strong(&running[place].kind_1, &nothing, kind + 1))
			continue;
		atomic_store_explicit(&running[place].began_us, bnet_wall_us(), memory_order_relaxed);
		return place;
	}
	return PLACES;
}

void bnet_coll_seen_end(int number, int kind, bool failed, uint64_t bytes, int64_t ns, int64_t waited_ns)
{
	if (number < PLACES) {
		atomic_store_explicit(&running[number].began_us, 0, memory_order_relaxed);
		atomic_store_explicit(&running[number].kind_1, 0, memory_order_release);
	}
	if (failed) {
		add(&seen[kind].failed, 1);
		return;
	}
	add(&seen[kind].calls, 1);
	add(&seen[kind].bytes, bytes);
	add(&seen[kind].ns, (uint64_t)ns);
	add(&seen[kind].waited_ns, (uint64_t)waited_ns);
}

static void look_at_running(int kind, struct bnet_operation *out)
{
	for (int place = 0; place < PLACES; place++) {
		const uint64_t began_us = value(&running[place].began_us);

		if (atomic_load_explicit(&running[place].kind_1, memory_order_acquire) != kind + 1 || began_us == 0)
			continue;
		out->running++;
		if (out->began_us == 0 || began_us < out->began_us)
			out->began_us = began_us;
	}
}

bool bnet_coll_seen_read(int number, struct bnet_operation *out)
{
	if (number < 0 || number >= KINDS)
		return false;
	*out = (struct bnet_operation){
		.name = bnet_coll_kind_name(number),
		.calls = value(&seen[number].calls),
		.failed = value(&seen[number].failed),
		.bytes = value(&seen[number].bytes),
		.time_us = value(&seen[number].ns) / 1000,
		.waiting_us = value(&seen[number].waited_ns) / 1000,
	};
	look_at_running(number, out);
	return true;
}
