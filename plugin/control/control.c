/* SPDX-License-Identifier: MIT
 *
 * The control thread: one loop that sleeps in epoll. It greets, dials and drains, moves data for connections whose
 * caller has not come by, and fits send buffers to their paths. It holds the engine's lock except while it sleeps.
 */
#include "control/control.h"

#include <errno.h>
#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/counters.h"
#include "engine/engine.h"
#include "base/log.h"
#include "scaling/path.h"
#include "base/socket.h"
#include "transport/worker.h"

/* How often dials and drains are looked at; how often silent guests and paths are. */
#define FAST_TICK_MS 10
#define SLOW_TICK_MS 100
/* … and how often the streams of senders are. */
#define PATH_TICK_MS 20
/* A takeover goes on while it finds work, for at most this many passes. */
#define TAKEOVER_PASSES 4

static struct bnet_watch *find_watch(struct bnet_node *head, uint64_t id)
{
	bnet_list_each(node, head) {
		struct bnet_watch *watch = bnet_entry(node, struct bnet_watch, node);

		if (watch->id == id)
			return watch;
	}
	return NULL;
}

static void handle_event(const struct epoll_event *event)
{
	uint64_t id = event->data.u64, count;
	struct bnet_watch *watch;

	switch ((enum bnet_watch_kind)(id & 7)) {
	case BNET_WATCH_WAKE:
		if (read(bnet_engine.wake, &count, sizeof(count)) < 0)
			return; /* somebody else's event was it */
		return;
	case BNET_WATCH_LISTENER:
		bnet_acceptor_ready((int)(id >> 3));
		return;
	case BNET_WATCH_INBOUND:
		watch = find_watch(&bnet_engine.guests, id);
		if (watch)
			bnet_inbound_ready(watch, event->events);
		return;
	case BNET_WATCH_CONNECTOR:
		watch = find_watch(&bnet_engine.dials, id);
		if (watch)
			bnet_connector_ready(watch, event->events);
		return;
	case BNET_WATCH_DRAIN:
		watch = find_watch(&bnet_engine.drains, id);
		if (watch)
			bnet_drain_ready(watch);
		return;
	}
}

/* ---- connections whose caller is away ---- */

static void take_over(struct bnet_conn *conn)
{
	if (!bnet_conn_try_own(conn))
		return;
	bnet_count(takeovers, 1);
	for (int i = 0; i < TAKEOVER_PASSES && bnet_conn_progress(conn); i++)
		;
	bnet_conn_disown(conn);
	conn->passes_seen = atomic_load_explicit(&conn->passes, memory_order_relaxed);
}

static bool anything_outstanding(void)
{
	bnet_list_each(node, &bnet_engine.conns) {
		const struct bnet_conn *conn = bnet_entry(node, struct bnet_conn, node);

		if (bnet_conn_has_work(conn) && !atomic_load_explicit(&conn->error, memory_order_relaxed))
			return true;
	}
	return false;
}

/* True: something is outstanding somewhere, so that the next look is due in a tick. */
static bool look_after_connections(void)
{
	bool work = false;

	bnet_list_each(node, &bnet_engine.conns) {
		struct bnet_conn *conn = bnet_entry(node, struct bnet_conn, node);
		uint32_t passes = atomic_load_explicit(&conn->passes, memory_order_relaxed);

		if (!bnet_conn_has_work(conn) || atomic_load_explicit(&conn->error, memory_order_relaxed))
			continue;
		work = true;
		if (passes == conn->passes_seen)
			take_over(conn);
		else
			conn->passes_seen = passes;
	}
	return work;
}

/* ---- processors ---- */

/* Involuntary switches a second, of all threads together, from which on this process counts as one that shares its
 * processors: alone on them it sees one or two hundred, and one whose idle loops yield to others some thousands. */
#define CONTENDED_SWITCHES 1000
#define CONTENDED_MS 2000

static void sense_contention(uint64_t now)
{
	struct rusage usage;
	uint64_t elapsed = now - bnet_engine.sampled_ms;

	if (getrusage(RUSAGE_SELF, &usage) < 0)
		return;
	if (bnet_engine.sampled_ms && elapsed <= CONTENDED_MS &&
	    (uint64_t)(usage.ru_nivcsw - bnet_engine.switches) * 1000 > CONTENDED_SWITCHES * elapsed)
		bnet_engine.contended_until_ms = now + CONTENDED_MS;
	bnet_engine.switches = usage.ru_nivcsw;
	bnet_engine.sampled_ms = now;
}

/* ---- the loop ---- */

static bool nothing_left(void)
{
	return bnet_list_empty(&bnet_engine.listens) && bnet_list_empty(&bnet_engine.conns) &&
	       bnet_list_empty(&bnet_engine.dials) && bnet_list_empty(&bnet_engine.drains);
}

static void end(void)
{
	bnet_workers_stop();
	bnet_list_each(node, &bnet_engine.guests)
		bnet_inbound_drop(bnet_entry(node, struct bnet_watch, node), NULL);
	for (int i = 0; i < BNET_MAX_NICS; i++) {
		bnet_socket_close(bnet_engine.listeners[i].fd);
		bnet_engine.listeners[i].fd = -1;
	}
	bnet_socket_close(bnet_engine.wake);
	bnet_socket_close(bnet_engine.epoll);
	bnet_engine.wake = bnet_engine.epoll = -1;
	atomic_store(&bnet_engine_dozing, false);
	bnet_engine.running = false;
	pthread_cond_broadcast(&bnet_engine.changed);
}

/* How long the loop may sleep for the sake of deadlines and drains; -1: for ever. */
static int housekeeping_ms(void)
{
	if (!bnet_list_empty(&bnet_engine.dials) || !bnet_list_empty(&bnet_engine.drains))
		return FAST_TICK_MS;
	if (!bnet_list_empty(&bnet_engine.guests))
		return SLOW_TICK_MS;
	for (int i = 0; i < bnet_engine.devices.nnics; i++)
		if (bnet_engine.listeners[i].paused_until_ms)
			return SLOW_TICK_MS;
	return -1;
}

/* Each of these looks at all there are, so not after every event: many that come or go at once would cost the
 * square. */
static void keep_house(uint64_t now)
{
	if (now - bnet_engine.housekept_ms >= FAST_TICK_MS) {
		bnet_acceptor_tick(now);
		bnet_connectors_tick(now);
		bnet_drains_tick(now);
		bnet_engine.housekept_ms = now;
	}
	if (now - bnet_engine.sampled_ms >= SLOW_TICK_MS)
		sense_contention(now);
	if (now - bnet_engine.paths_ms >= PATH_TICK_MS) {
		bnet_paths_sample(bnet_now_us());
		bnet_engine.paths_ms = now;
	}
}

static void wait_and_handle(int ms)
{
	struct epoll_event event;
	int n, fd = bnet_engine.epoll;

	bnet_engine_unlock();
	n = epoll_wait(fd, &event, 1, ms);
	bnet_engine_lock();
	if (n == 1)
		handle_event(&event);
}

static void *run(void *unused)
{
	uint64_t look_at = 0, tick = (uint64_t)bnet_engine.config.control_tick;
	bool work = true;

	(void)unused;
	bnet_engine_lock();
	while (!nothing_left()) {
		uint64_t now = bnet_now_ms();
		int ms;

		keep_house(now);
		if (work && now >= look_at) {
			work = look_after_connections();
			look_at = now + tick;
		}
		/* Say so first and look after that: see bnet_conn_post. */
		atomic_store(&bnet_engine_dozing, !work);
		if (!work && anything_outstanding()) {
			work = true;
			look_at = now + tick;
			atomic_store(&bnet_engine_dozing, false);
		}
		ms = housekeeping_ms();
		if (work && (ms < 0 || now + (uint64_t)ms > look_at))
			ms = (int)(look_at - now);
		if (!nothing_left())
			wait_and_handle(ms);
		if (!work && bnet_now_ms() - now >= PATH_TICK_MS)
			bnet_engine.dozed_us = bnet_now_us();
		/* Whoever woke us for a post took the word back; the caller gets a tick's time before we step in. */
		if (!work && !atomic_load(&bnet_engine_dozing)) {
			work = true;
			look_at = bnet_now_ms() + tick;
		}
	}
	end();
	bnet_engine_unlock();
	return NULL;
}

int bnet_control_spawn(void)
{
	sigset_t all, before;
	pthread_attr_t attr;
	pthread_t thread;
	int rc;

	pthread_attr_init(&attr);
	pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	rc = pthread_create(&thread, &attr, run, NULL);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	pthread_attr_destroy(&attr);
	return -rc;
}
