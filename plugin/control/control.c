/* SPDX-License-Identifier: MIT
 *
 * See control.h.
 */
#include "control/control.h"

#include <errno.h>
#include <stdint.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/thread.h"
#include "base/crypto.h"
#include "base/descriptors.h"
#include "base/log.h"
#include "base/socket.h"
#include "control/active.h"
#include "control/lifecycle.h"
#include "control/repair.h"
#include "control/undelivered.h"
#include "control/watchdog.h"
#include "engine/engine.h"
#include "handshake/acceptor.h"
#include "handshake/close.h"
#include "handshake/connector.h"
#include "handshake/listener.h"
#include "handshake/meter.h"
#include "handshake/question.h"
#include "scaling/quota.h"
#include "scaling/path.h"
#include "scaling/path_sample.h"
#include "scaling/sampler.h"
#include "stats/publish.h"
#include "transport/readiness.h"
#include "transport/worker.h"

/* How often silent inbound connections are looked at. */
#define SLOW_TICK_MS 100
#define ATTEMPTS_TICK_MS 10000
/* … and how often the streams of senders are read. */
#define PATH_TICK_MS 20
/* … and how often, on long paths, the kernel is told which of them have run dry. A lost packet is sent again a round
 * trip later: by then it should know. On paths of 2 to 5 ms it often does not. */
#define DRY_TICK_MS 5
/* How often a process shows what it does (stats/). It is some streams at a time, one path tick after the other. */
#define PUBLISH_MS 500
/* The same of operations alone, in a process that has some and whose connections are idle. */
#define OPERATIONS_MS 1000
/* Active connections are looked at and read less often, once in the second time, after the first one in which none of
 * them has moved anything: a rank that waits for a late one would spend most of its processor time on that. */
#define QUIET_AFTER_MS 200
#define QUIET_TICK_MS 40
/* Handled at a time, each in some ten µs: those who need the lock wait meanwhile. */
#define EVENTS 32

static void answered(const struct bnet_answer *answer)
{
	if (answer->path)
		bnet_path_answered(answer);
	else
		bnet_repair_answered(answer);
}

static void handle_event(const struct epoll_event *event)
{
	uint64_t id = event->data.u64, count;
	struct bnet_watch *watch;
	struct bnet_joined joined;
	struct bnet_answer answer;

	switch ((enum bnet_watch_kind)(id & 7)) {
	case BNET_WATCH_WAKE:
		if (read(bnet_engine.wake, &count, sizeof(count)) < 0)
			return; /* another event reset it */
		return;
	case BNET_WATCH_LISTENER:
		bnet_acceptor_ready((int)(id >> 3));
		return;
	case BNET_WATCH_INBOUND:
		watch = bnet_watch_find(id);
		if (watch)
			bnet_acceptor_hello(watch);
		return;
	case BNET_WATCH_CONNECTOR:
		watch = bnet_watch_find(id);
		if (watch && bnet_connector_ready(watch, &joined))
			bnet_lifecycle_joined(&joined);
		return;
	case BNET_WATCH_DRAIN:
		watch = bnet_watch_find(id);
		if (watch)
			bnet_drain_ready(watch);
		return;
	case BNET_WATCH_QUESTION:
		watch = bnet_watch_find(id);
		if (watch && bnet_question_ready(watch, &answer))
			answered(&answer);
		return;
	}
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
	uint64_t dry_ms;   /* when dry streams were noted */
	uint64_t undelivered_ms;
	uint64_t closed_ms;   /* when senders that were closed were looked at */
	uint64_t attempts_ms; /* when attempts that nobody asks for were looked for */
	struct contention contention;
};

static void end_late_questions(uint64_t now)
{
	struct bnet_answer answer;

	while (bnet_questions_tick(now, &answer))
		answered(&answer);
}

/* Each of these walks a whole list, so they do not run after every event: many objects that come or go at once would
 * cost the square of their number. */
static void keep_house(struct ticks *ticks, uint64_t now)
{
	if (now - ticks->house_ms >= BNET_TICK_MS) {
		bnet_acceptor_tick(now);
		bnet_connectors_tick(now);
		bnet_drains_tick(now);
		end_late_questions(now);
		ticks->house_ms = now;
	}
	if (!bnet_list_empty(&bnet_engine.closed) && now - ticks->closed_ms >= BNET_TICK_MS) {
		ticks->closed_ms = now;
		bnet_engine_unlock();
		bnet_lifecycle_end_closed();
		bnet_engine_lock();
	}
	if (now - ticks->attempts_ms >= ATTEMPTS_TICK_MS) {
		ticks->attempts_ms = now;
		bnet_engine_unlock();
		bnet_lifecycle_discard_abandoned();
		bnet_engine_lock();
	}
	if (now - ticks->contention.sampled_ms >= SLOW_TICK_MS) {
		sense(&ticks->contention, now);
		bnet_watchdog_look();
	}
	if (now - ticks->paths_ms >= PATH_TICK_MS) {
		uint64_t now_us;

		bnet_active_collect();
		now_us = bnet_now_us();
		bnet_meter_tick(now_us);
		bnet_sampler_read(now_us);
		bnet_watchdog_sample(bnet_now_us());
		ticks->paths_ms = now;
	}
	if (now - ticks->dry_ms >= DRY_TICK_MS) {
		bnet_sampler_note_dry();
		ticks->dry_ms = now;
	}
}

/* How long the loop may sleep for the sake of deadlines and drains; -1: without limit. */
static int housekeeping_ms(void)
{
	if (!bnet_list_empty(&bnet_engine.connectors) || !bnet_list_empty(&bnet_engine.drains) ||
	    !bnet_list_empty(&bnet_engine.questions) || !bnet_list_empty(&bnet_engine.closed) || bnet_listeners_wait())
		return BNET_TICK_MS;
	if (!bnet_list_empty(&bnet_engine.inbound))
		return SLOW_TICK_MS;
	return bnet_list_empty(&bnet_engine.attempts) ? -1 : ATTEMPTS_TICK_MS;
}

/* ---- active and idle ---- */

/* While connections are active, the thread looks after them once a tick. While none is, it is idle: it sleeps without a
 * tick, except for a slow one until everything has arrived, and the next post wakes it. */
enum mode {
	MODE_ACTIVE,
	MODE_IDLE,
};

struct loop_state {
	enum mode mode;
	bool undelivered; /* bytes may not have arrived: they are looked at on a tick of their own, also while idle */
	uint64_t look_at_ms; /* of MODE_ACTIVE: when the next round over the active connections is due */
	int left;            /* … and how many the present one has not looked at yet */
	uint64_t tick_ms;
	uint64_t moved_ms;      /* the last round that found that something had moved */
	bool rare;              /* of MODE_ACTIVE: nothing has moved for some time */
	uint64_t publish_at_ms; /* what `bagua-net top` sees */
	bool publishing;        /* a round is under way */
	int rounds;             /* … and so many are to come to their end before this thread may sleep for long */
};

static bool is_quiet(const struct loop_state *state, uint64_t now)
{
	return now - state->moved_ms >= QUIET_AFTER_MS && state->tick_ms < QUIET_TICK_MS;
}

static void plan_look(struct loop_state *state, uint64_t now)
{
	state->rare = is_quiet(state, now);
	state->look_at_ms = now + (state->rare ? QUIET_TICK_MS : state->tick_ms);
	/* A post on an idle connection ends a rare tick, as it ends idleness, unless it comes while this thread is
	 * awake: then it may wait for the tick. */
	atomic_store(&bnet_engine_wake_on_post, state->rare);
}

static void become_active(struct loop_state *state, uint64_t now)
{
	state->mode = MODE_ACTIVE;
	state->moved_ms = now;
	plan_look(state, now);
}

static void try_to_idle(struct loop_state *state, uint64_t now)
{
	const bool was_active = state->mode == MODE_ACTIVE;

	state->mode = MODE_IDLE;
	if (was_active)
		state->rounds = state->publishing ? 2 : 1; /* what it sees then stays */
	/* A post clears the flag. */
	if (!atomic_exchange(&bnet_engine_wake_on_post, true) || was_active)
		state->undelivered = true;
	if (bnet_active_any())
		become_active(state, now);
}

/* Before the thread sleeps. */
static void look_or_idle(struct loop_state *state, uint64_t now)
{
	if (state->mode == MODE_ACTIVE) {
		if (state->left == 0 && now < state->look_at_ms)
			return;
		if (bnet_active_look_after(&state->left))
			state->moved_ms = now;
		plan_look(state, now);
	}
	if (state->left == 0 && !bnet_active_any())
		try_to_idle(state, now);
}

/* While requests are outstanding, and after that until everything has arrived. */
static void look_at_undelivered(struct loop_state *state, struct ticks *ticks, uint64_t now)
{
	if ((!state->undelivered && state->mode == MODE_IDLE) || now - ticks->undelivered_ms < BNET_DELIVERY_LOOK_MS)
		return;
	state->undelivered = bnet_undelivered_look();
	ticks->undelivered_ms = now;
}

/* After it has slept, since `slept_from`. A post that woke it cleared the flag; its caller has a tick's time
 * before the thread steps in. */
static void wake_up(struct loop_state *state, uint64_t slept_from)
{
	uint64_t now;

	if (state->mode == MODE_ACTIVE && !state->rare)
		return;
	now = bnet_now_ms();
	if (state->mode == MODE_IDLE && now - slept_from >= PATH_TICK_MS)
		bnet_engine.idle_until_us = bnet_now_us();
	if (!atomic_load(&bnet_engine_wake_on_post))
		become_active(state, now);
}

static int until(uint64_t then, uint64_t now)
{
	return then > now ? (int)(then - now) : 0;
}

static void publish(struct loop_state *state, uint64_t now)
{
	if (now < state->publish_at_ms)
		return;
	if (state->mode == MODE_IDLE && state->rounds == 0 && !bnet_stats_is_behind()) {
		bnet_stats_publish_operations();
		state->publish_at_ms = now + OPERATIONS_MS;
		return;
	}
	state->publishing = bnet_stats_publish();
	state->publish_at_ms = now + (state->publishing ? PATH_TICK_MS : PUBLISH_MS);
	state->rounds -= state->rounds && !state->publishing && !bnet_stats_is_awaited();
}

/* Active connections are to be looked after and their streams to be read. */
static int sleep_ms(const struct loop_state *state, const struct ticks *ticks, uint64_t now)
{
	int ms = housekeeping_ms(), look = until(state->look_at_ms, now);
	int read = until(ticks->paths_ms + PATH_TICK_MS, now), dry = until(ticks->dry_ms + DRY_TICK_MS, now);
	int published = until(state->publish_at_ms, now);

	if (state->undelivered && (ms < 0 || ms > BNET_DELIVERY_LOOK_MS))
		ms = BNET_DELIVERY_LOOK_MS;
	if (state->mode == MODE_IDLE)
		return (state->rounds || bnet_stats_has_operations() || bnet_stats_is_behind()) &&
				       (ms < 0 || published < ms)
			       ? published
			       : ms;
	if (state->left)
		return 0;
	if (published < look)
		look = published;
	if (!state->rare && read < look)
		look = read;
	if (!state->rare && dry < look && bnet_sampler_any_far())
		look = dry;
	return ms < 0 || look < ms ? look : ms;
}

/* ---- the loop ---- */

static void end(void)
{
	bnet_workers_stop();
	bnet_readiness_end();
	bnet_quota_end();
	bnet_stats_end();
	bnet_list_each(node, &bnet_engine.inbound)
		bnet_acceptor_drop(bnet_entry(node, struct bnet_watch, node), NULL);
	for (int i = 0; i < BNET_MAX_NICS; i++) {
		bnet_socket_close(bnet_engine.listeners[i].fd);
		bnet_engine.listeners[i].fd = -1;
	}
	bnet_socket_close(bnet_engine.wake);
	bnet_socket_close(bnet_engine.epoll);
	bnet_engine.wake = bnet_engine.epoll = -1;
	atomic_store(&bnet_engine_wake_on_post, false);
	bnet_engine.running = false;
	pthread_cond_broadcast(&bnet_engine.changed);
}

/* An event may belong to an object that an earlier one has ended: then it is found no more. */
static void wait_and_handle(int ms)
{
	struct epoll_event events[EVENTS];
	int n, fd = bnet_engine.epoll;

	bnet_engine.asleep_until_ms = ms < 0 ? UINT64_MAX : bnet_now_ms() + (uint64_t)ms;
	bnet_engine_unlock();
	bnet_descriptors_reserve();
	n = epoll_wait(fd, events, EVENTS, ms);
	bnet_engine_lock();
	bnet_engine.asleep_until_ms = 0;
	for (int i = 0; i < n; i++)
		handle_event(&events[i]);
}

static void *run(void *unused)
{
	struct loop_state state = {.tick_ms = (uint64_t)bnet_engine.config.control_tick};
	struct ticks ticks = {.house_ms = 0};
	bool may_end;

	(void)unused;
	bnet_engine_lock();
	/* The first look comes a tick later: callers may have posted before this thread ran. */
	become_active(&state, bnet_now_ms());
	while (!bnet_engine_is_empty()) {
		uint64_t now = bnet_now_ms();
		bool more;

		keep_house(&ticks, now);
		look_at_undelivered(&state, &ticks, now);
		bnet_engine_give_way();
		more = bnet_paths_open();
		bnet_engine_give_way();
		publish(&state, now);
		bnet_engine_give_way();
		look_or_idle(&state, now);
		if (!bnet_engine_is_empty())
			wait_and_handle(more ? 0 : sleep_ms(&state, &ticks, now));
		wake_up(&state, now);
	}
	may_end = bnet_crypto_end_thread(); /* under the lock, so that no fork comes in between */
	end();
	bnet_engine_unlock();
	if (!may_end)
		bnet_crypto_stay();
	return NULL;
}

static int start_thread(void)
{
	pthread_t thread;
	int rc = bnet_thread_start(&thread, run, NULL);

	if (rc == 0)
		pthread_detach(thread);
	else
		bnet_warn("NET/BaguaNet: no thread can start: %s. The limit of processes, of a user (ulimit -u) or of a "
			  "container, counts threads",
			  strerror(-rc));
	return rc;
}

int bnet_control_start(void)
{
	struct epoll_event event = {.events = EPOLLIN, .data.u64 = BNET_WATCH_WAKE};
	int rc;

	if (bnet_engine.running)
		return 0;
	bnet_engine.epoll = bnet_fd_opened(epoll_create1(EPOLL_CLOEXEC));
	if (bnet_engine.epoll < 0)
		return bnet_shortage(bnet_engine.epoll, "control thread");
	bnet_engine.wake = bnet_fd_opened(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
	rc = bnet_engine.wake;
	if (rc >= 0 && epoll_ctl(bnet_engine.epoll, EPOLL_CTL_ADD, bnet_engine.wake, &event) < 0)
		rc = -errno;
	rc = rc < 0 ? bnet_shortage(rc, "control thread") : start_thread();
	if (rc < 0) {
		bnet_socket_close(bnet_engine.wake);
		bnet_socket_close(bnet_engine.epoll);
		bnet_engine.wake = bnet_engine.epoll = -1;
		return rc;
	}
	bnet_engine.running = true;
	return 0;
}
