/* SPDX-License-Identifier: MIT
 *
 * The counters' public snapshot.
 */
#include "bagua_net.h"
#include "base/counters.h"
#include "engine/engine.h"
#include "transport/conn.h"

static void sum_up(struct bnet_conn_counts *sum)
{
	*sum = bnet_counts.ended;
	if (!bnet_engine.configured)
		return; /* there are no lists yet */
	bnet_list_each(node, &bnet_engine.conns)
		bnet_conn_counts_add(sum, &bnet_entry(node, struct bnet_conn, node)->counts);
}

void bnet_counters(bnet_counters_t *out)
{
	struct bnet_conn_counts conns;

	bnet_engine_lock();
	sum_up(&conns);
	bnet_engine_unlock();
#define X(name) out->name = atomic_load_explicit(&conns.name, memory_order_relaxed);
	BNET_CONN_COUNTERS(X)
#undef X
#define X(name) out->name = atomic_load_explicit(&bnet_counts.name, memory_order_relaxed);
	BNET_PROCESS_COUNTERS(X)
#undef X
}
