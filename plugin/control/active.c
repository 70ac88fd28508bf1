/* SPDX-License-Identifier: MIT
 *
 * See active.h.
 */
#include "control/active.h"

#include "common/clock.h"
#include "base/counters.h"
#include "base/socket.h"
#include "control/repair.h"
#include "control/watchdog.h"
#include "engine/engine.h"
#include "scaling/sampler.h"
#include "transport/progress.h"

/* A takeover continues while it finds work, for at most this many passes. */
#define TAKEOVER_PASSES 4
/* Handshakes wait for no more than this time of takeovers. */
#define TAKEOVERS_US 2000
/* Each look takes some 100 ns, since a caller's processor has written last what it reads: with more active connections,
 * each of them is looked at less often than once a tick. */
#define LOOKS 1024
/* … and after so many, whoever waits for the engine's lock gets it. */
#define LOOKS_IN_A_ROW 128
/* … and so many are taken in at a time. */
#define COLLECTED 256
/* Active receivers from which on they are in one epoll set (transport/readiness.h), and down to which they leave it. A
 * message among waiting receives takes as long as without the set at 4, and 0.8 times as long at 6
 * (benchmarks/native/waiting.c). */
#define MANY_RECEIVERS 6
#define FEW_RECEIVERS 3

static struct bnet_conn *conn_of(struct bnet_work_item *item)
{
	return bnet_entry(item, struct bnet_conn, work);
}

static void drop(struct bnet_conn *conn)
{
	bnet_worklist_remove(&bnet_engine.active, &conn->work);
	bnet_engine.active_receivers -= !conn->sender;
}

/* False: all are collected. */
static bool collect_some(void)
{
	for (int i = 0; i < COLLECTED; i++) {
		struct bnet_work_item *item = bnet_worklist_collect(&bnet_engine.active);

		if (!item)
			return false;
		bnet_engine.active_receivers += !conn_of(item)->sender;
		bnet_sampler_begin(conn_of(item));
		bnet_watchdog_begin(conn_of(item), bnet_now_us());
	}
	return true;
}

void bnet_active_collect(void)
{
	while (collect_some())
		bnet_engine_give_way();
}

bool bnet_active_any(void)
{
	return !bnet_worklist_empty(&bnet_engine.active);
}

void bnet_active_forget(struct bnet_conn *conn)
{
	while (bnet_work_item_listed(&conn->work) && !bnet_work_item_collected(&conn->work)) {
		collect_some();
		bnet_engine_give_way();
	}
	if (bnet_work_item_listed(&conn->work))
		drop(conn);
}

/* ---- a round ---- */

/* The control thread may do without the lock because it owns the connection: whoever frees one that may have work owns
 * it first. */
static void take_over(struct bnet_conn *conn)
{
	if (!bnet_conn_try_own(conn))
		return;
	bnet_engine_unlock();
	bnet_count(takeovers, 1);
	for (int i = 0; i < TAKEOVER_PASSES && bnet_progress(conn); i++)
		;
	conn->passes_seen = atomic_load_explicit(&conn->passes, memory_order_relaxed);
	bnet_conn_disown(conn); /* it may be freed from here on */
	bnet_engine_lock();
}

/* Frees streams that the peer has closed, of which the last one stays, and puts others in the place of broken ones. */
static void reap(struct bnet_conn *conn)
{
	if (!bnet_conn_try_own(conn))
		return;
	atomic_store_explicit(&conn->reap, false, memory_order_relaxed);
	for (int i = conn->nstreams - 1; i >= 0 && conn->nstreams > 1; i--)
		if (conn->streams[i]->in.state == BNET_INCOMING_ENDED && !conn->streams[i]->in.awaits)
			bnet_socket_close(bnet_conn_drop_stream(conn, i));
	if (conn->sender && conn->repairs)
		bnet_repair_begin(conn);
	bnet_conn_disown(conn);
}

static void found_idle(struct bnet_conn *conn)
{
	drop(conn);
	if (bnet_conn_is_workable(conn))
		bnet_engine_posted(&conn->work); /* after the last look */
}

/* A receiver is asked for with many others, or directly. */
static void share_readiness(struct bnet_conn *conn)
{
	int receivers = bnet_engine.active_receivers;
	bool join = !conn->ready.flag && receivers >= MANY_RECEIVERS && !conn->worker;
	bool leave = conn->ready.flag && receivers <= FEW_RECEIVERS;

	if (conn->sender || (!join && !leave) || !bnet_conn_try_own(conn))
		return;
	if (join)
		bnet_readiness_join(&conn->ready, conn->epoll >= 0 ? conn->epoll : conn->streams[0]->fd);
	else
		bnet_conn_unready(conn);
	bnet_conn_disown(conn);
}

/* True: something has moved since the last look. */
static bool has_moved(struct bnet_conn *conn)
{
	uint64_t moves = bnet_conn_moves(&conn->counts);
	bool moved = moves != conn->moves_seen;

	conn->moves_seen = moves;
	return moved;
}

/* True: it was taken over. */
static bool look_after(struct bnet_conn *conn)
{
	uint32_t passes = atomic_load_explicit(&conn->passes, memory_order_relaxed);
	bool polled = passes != conn->passes_seen;

	if (atomic_load_explicit(&conn->reap, memory_order_relaxed))
		reap(conn);
	share_readiness(conn);
	conn->passes_seen = passes;
	if (bnet_conn_is_workable(conn)) {
		if (!polled)
			take_over(conn);
		return !polled;
	}
	/* A sender is found idle by the sampler. */
	if (!polled && !conn->sender && !atomic_load_explicit(&conn->reap, memory_order_relaxed))
		found_idle(conn);
	return false;
}

bool bnet_active_look_after(int *left)
{
	uint64_t until = bnet_now_us() + TAKEOVERS_US;
	struct bnet_work_item *item;
	bool moved;

	bnet_active_collect();
	bnet_readiness_ask();
	/* Those that this round does not reach may have moved. */
	moved = bnet_engine.active.count > LOOKS;
	if (*left == 0)
		*left = bnet_engine.active.count < LOOKS ? bnet_engine.active.count : LOOKS;
	while (*left > 0) {
		item = bnet_worklist_next(&bnet_engine.active);
		*left = item ? *left - 1 : 0;
		moved |= item && has_moved(conn_of(item));
		if (item && look_after(conn_of(item)) && bnet_now_us() >= until)
			return moved;
		if (*left % LOOKS_IN_A_ROW == 0)
			bnet_engine_give_way();
	}
	return moved;
}
