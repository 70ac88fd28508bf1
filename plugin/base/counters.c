/* SPDX-License-Identifier: MIT
 *
 * The counters and their public snapshot. Any thread.
 */
#include "base/counters.h"

#include "bagua_net.h"

struct bnet_counts bnet_counts;

void bnet_counters(bnet_counters_t *out)
{
#define X(name) out->name = atomic_load_explicit(&bnet_counts.name, memory_order_relaxed);
	BNET_COUNTERS(X)
#undef X
}
