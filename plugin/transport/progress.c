/* SPDX-License-Identifier: MIT
 *
 * See progress.h.
 */
#include "transport/progress.h"

#include <sched.h>

#include "transport/request.h"
#include "transport/rx.h"
#include "transport/tx.h"

bool bnet_progress(struct bnet_conn *conn)
{
	atomic_fetch_add_explicit(&conn->passes, 1, memory_order_relaxed);
	if (atomic_load_explicit(&conn->error, memory_order_relaxed))
		return false;
	return conn->sender ? bnet_tx_progress(conn) : bnet_rx_progress(conn);
}

/* Passes of a thread in a row that moved nothing, on any connection, after which it yields: the peer may be waiting for
 * this processor. A small message and its reply arrive within fewer passes. */
#define IDLE_PASSES 64

static void yield_if_idle(bool moved)
{
	static _Thread_local unsigned idle;

	idle = moved ? 0 : idle + 1;
	if (idle < IDLE_PASSES)
		return;
	idle = 0;
	sched_yield();
}

/* A worker that has written all sleeps, and no event tells it of acknowledgements that a send waits for. */
static bool is_callers(const struct bnet_conn *conn)
{
	return bnet_conn_is_inline(conn) ||
	       (conn->sender && conn->repairs && atomic_load_explicit(conn->worker_sleeps, memory_order_relaxed) &&
		bnet_conn_all_is_claimed(conn));
}

void bnet_progress_inline(struct bnet_conn *conn)
{
	bool moved;

	if (!is_callers(conn) || !bnet_conn_try_own(conn))
		return;
	moved = bnet_progress(conn);
	bnet_conn_disown(conn);
	yield_if_idle(moved);
}

void bnet_progress_posted_receive(struct bnet_conn *conn)
{
	if (!bnet_conn_is_inline(conn) || !bnet_conn_try_own(conn))
		return;
	if (bnet_rx_has_stalled(conn))
		bnet_progress(conn);
	bnet_conn_disown(conn);
}

int bnet_progress_test(struct bnet_request *request, uint64_t *size)
{
	struct bnet_conn *conn = request->conn;

	if (!atomic_load_explicit(&request->done, memory_order_acquire)) {
		bnet_progress_inline(conn);
		if (!atomic_load_explicit(&request->done, memory_order_acquire))
			return atomic_load_explicit(&conn->error, memory_order_acquire);
	}
	*size = bnet_request_take(request);
	return 1;
}
