/* SPDX-License-Identifier: MIT
 *
 * See control.h.
 */
#include "control/control.h"

#include <errno.h>
#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/counters.h"
#include "base/socket.h"
#include "control/lifecycle.h"
#include "engine/engine.h"
#include "handshake/acceptor.h"
#include "handshake/close.h"
#include "handshake/connector.h"
#include "scaling/path.h"
#include "transport/progress.h"
#include "transport/worker.h"

/* How often connectors and drains are looked at, and how often silent inbound connections. */
#define FAST_TICK_MS 10
#define SLOW_TICK_MS 100
/* … and how often the streams of senders are read. */
#define PATH_TICK_MS 20
/* A takeover continues while it finds work, for at most this many passes. */
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
	struct bnet_joined joined;

	switch ((enum bnet_watch_kind)(id & 7)) {
	case BNET_WATCH_WAKE:
		if (read(bnet_engine.wake, &count, sizeof(count)) < 0)
			return; /* another event reset it */
		return;
	case BNET_WATCH_LISTENER:
		bnet_acceptor_ready((int)(id >> 3));
		return;
	case BNET_WATCH_INBOUND:
		watch = find_watch(&bnet_engine.inbound, id);
		if (watch)
			bnet_acceptor_hello(watch);
		return;
	case BNET_WATCH_CONNECTOR:
		watch = find_watch(&bnet_engine.connectors, id);
		if (watch && bnet_connector_ready(watch, &joined))
			bnet_lifecycle_joined(&joined);
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
	for (int i = 0; i < TAKEOVER_PASSES && bnet_progress(conn); i++)
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

struct contention {
	uint64_t sampled_ms;
	long switches; /* involuntary ones of this process until then */
};

static void sense(struct contention *contention, uint64_t now)
{
	struct rusage usage;
	uint64_t elapsed = now - contention->sampled_ms;

	if (getrusage(RUSAGE_SELF, &usage) < 0)
		return;
	if (contention->sampled_ms && elapsed <= CONTENDED_MS &&
	    (uint64_t)(usage.ru_nivcsw - contention->switches) * 1000 > CONTENDED_SWITCHES * elapsed)
		bnet_engine.contended_until_ms = now + CONTENDED_MS;
	contention->switches = usage.ru_nivcsw;
	contention->sampled_ms = now;
}

/* ---- ticks ---- */

struct ticks {
	uint64_t house_ms; /* when inbound connections, connectors and drains were last looked at */
	uint64_t paths_ms; /* when paths were sampled */
	struct contention contention;
};

/* Each of these walks a whole list, so they do not run after every event: many objects that come or go at once would
 * cost the square of their number. */
static void keep_house(struct ticks *ticks, uint64_t now)
{
	if (now - ticks->house_ms >= FAST_TICK_MS) {
		bnet_acceptor_tick(now);
		bnet_connectors_tick(now);
		bnet_drains_tick(now);
		ticks->house_ms = now;
	}
	if (now - ticks->contention.sampled_ms >= SLOW_TICK_MS)
		sense(&ticks->contention, now);
	if (now - ticks->paths_ms >= PATH_TICK_MS) {
		bnet_paths_sample(bnet_now_us());
		ticks->paths_ms = now;
	}
}

/* How long the loop may sleep for the sake of deadlines and drains; -1: without limit. */
static int housekeeping_ms(void)
{
	if (!bnet_list_empty(&bnet_engine.connectors) || !bnet_list_empty(&bnet_engine.drains))
		return FAST_TICK_MS;
	if (!bnet_list_empty(&bnet_engine.inbound))
		return SLOW_TICK_MS;
	for (int i = 0; i < bnet_engine.devices.nnics; i++)
		if (bnet_engine.listeners[i].paused_until_ms)
			return SLOW_TICK_MS;
	return -1;
}

/* ---- dozing ---- */

/* While requests are outstanding, the thread looks after connections once a tick. While none are, it dozes: it sleeps
 * without a tick, and the next post wakes it. A post counts its request first and looks at `dozing` after that; the
 * thread announces that it dozes first and looks for requests after that. So one of the two sees the other. */
enum mode {
	MODE_WATCHING,
	MODE_DOZING,
};

struct watch_state {
	enum mode mode;
	uint64_t look_at_ms; /* of MODE_WATCHING: when connections are due to be looked after */
	uint64_t tick_ms;
};

static void watch_from(struct watch_state *state, uint64_t now)
{
	state->mode = MODE_WATCHING;
	state->look_at_ms = now + state->tick_ms;
	atomic_store(&bnet_engine_dozing, false);
}

static void try_to_doze(struct watch_state *state, uint64_t now)
{
	state->mode = MODE_DOZING;
	atomic_store(&bnet_engine_dozing, true);
	if (anything_outstanding())
		watch_from(state, now);
}

/* Before the thread sleeps. */
static void look_or_doze(struct watch_state *state, uint64_t now)
{
	if (state->mode == MODE_WATCHING && now < state->look_at_ms)
		return;
	if (state->mode == MODE_WATCHING && look_after_connections())
		watch_from(state, now);
	else
		try_to_doze(state, now);
}

/* After it has slept, since `slept_from`. A post that woke it took the announcement back; its caller has a tick's time
 * before the thread steps in. */
static void wake_up(struct watch_state *state, uint64_t slept_from)
{
	uint64_t now;

	if (state->mode == MODE_WATCHING)
		return;
	now = bnet_now_ms();
	if (now - slept_from >= PATH_TICK_MS)
		bnet_engine.dozed_us = bnet_now_us();
	if (!atomic_load(&bnet_engine_dozing))
		watch_from(state, now);
}

static int sleep_ms(const struct watch_state *state, uint64_t now)
{
	int ms = housekeeping_ms();

	if (state->mode == MODE_WATCHING && (ms < 0 || now + (uint64_t)ms > state->look_at_ms))
		ms = (int)(state->look_at_ms - now);
	return ms;
}

/* ---- the loop ---- */

static bool nothing_left(void)
{
	return bnet_list_empty(&bnet_engine.listens) && bnet_list_empty(&bnet_engine.conns) &&
	       bnet_list_empty(&bnet_engine.connectors) && bnet_list_empty(&bnet_engine.drains);
}

static void end(void)
{
	bnet_workers_stop();
	bnet_list_each(node, &bnet_engine.inbound)
		bnet_acceptor_drop(bnet_entry(node, struct bnet_watch, node), NULL);
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
	struct watch_state state = {.mode = MODE_WATCHING, .tick_ms = (uint64_t)bnet_engine.config.control_tick};
	struct ticks ticks = {.house_ms = 0};

	(void)unused;
	bnet_engine_lock();
	while (!nothing_left()) {
		uint64_t now = bnet_now_ms();

		keep_house(&ticks, now);
		look_or_doze(&state, now);
		if (!nothing_left())
			wait_and_handle(sleep_ms(&state, now));
		wake_up(&state, now);
	}
	end();
	bnet_engine_unlock();
	return NULL;
}

static int spawn(void)
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

int bnet_control_start(void)
{
	struct epoll_event event = {.events = EPOLLIN, .data.u64 = BNET_WATCH_WAKE};
	int rc;

	if (bnet_engine.running)
		return 0;
	bnet_engine.epoll = bnet_fd_opened(epoll_create1(EPOLL_CLOEXEC));
	if (bnet_engine.epoll < 0)
		return bnet_engine.epoll;
	bnet_engine.wake = bnet_fd_opened(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
	rc = bnet_engine.wake;
	if (rc >= 0 && epoll_ctl(bnet_engine.epoll, EPOLL_CTL_ADD, bnet_engine.wake, &event) < 0)
		rc = -errno;
	if (rc >= 0)
		rc = spawn();
	if (rc < 0) {
		bnet_socket_close(bnet_engine.wake);
		bnet_socket_close(bnet_engine.epoll);
		bnet_engine.wake = bnet_engine.epoll = -1;
		return rc;
	}
	bnet_engine.running = true;
	return 0;
}
