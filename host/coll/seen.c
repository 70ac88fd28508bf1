/* SPDX-License-Identifier: MIT
 *
 * See seen.h.
 */
#include "coll/seen.h"

#include <stdatomic.h>

#include "bagua_net_host.h"
#include "coll/call.h"
#include "common/clock.h"

#define KINDS (BNET_COLL_SENDRECV + 1)

static struct {
	_Atomic uint64_t calls, failed, bytes, ns, waited_ns, running, began_us;
} seen[KINDS];

static void add(_Atomic uint64_t *to, uint64_t more)
{
	atomic_fetch_add_explicit(to, more, memory_order_relaxed);
}

static uint64_t value(_Atomic uint64_t *of)
{
	return atomic_load_explicit(of, memory_order_relaxed);
}

void bnet_coll_seen_begin(int kind)
{
	add(&seen[kind].running, 1);
	atomic_store_explicit(&seen[kind].began_us, bnet_wall_us(), memory_order_relaxed);
}

void bnet_coll_seen_end(int kind, bool failed, uint64_t bytes, int64_t ns, int64_t waited_ns)
{
	add(failed ? &seen[kind].failed : &seen[kind].calls, 1);
	add(&seen[kind].bytes, failed ? 0 : bytes);
	add(&seen[kind].ns, (uint64_t)ns);
	add(&seen[kind].waited_ns, (uint64_t)waited_ns);
	add(&seen[kind].running, UINT64_MAX);
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
		.running = value(&seen[number].running),
		.began_us = value(&seen[number].began_us),
	};
	return true;
}
