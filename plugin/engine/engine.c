/* SPDX-License-Identifier: MIT
 *
 * See engine.h.
 */
#include "engine/engine.h"

#include <errno.h>
#include <sys/epoll.h>
#include <time.h>
#include <unistd.h>

struct bnet_engine bnet_engine = {.lock = PTHREAD_MUTEX_INITIALIZER, .epoll = -1, .wake = -1};
_Atomic bool bnet_engine_dozing;

void bnet_engine_lock(void)
{
	pthread_mutex_lock(&bnet_engine.lock);
}

void bnet_engine_unlock(void)
{
	pthread_mutex_unlock(&bnet_engine.lock);
}

static void init_changed(void)
{
	pthread_condattr_t attr;

	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&bnet_engine.changed, &attr);
	pthread_condattr_destroy(&attr);
}

static void init_lists(void)
{
	bnet_list_init(&bnet_engine.listens);
	bnet_list_init(&bnet_engine.conns);
	bnet_list_init(&bnet_engine.paths);
	bnet_list_init(&bnet_engine.inbound);
	bnet_list_init(&bnet_engine.connectors);
	bnet_list_init(&bnet_engine.drains);
	for (int i = 0; i < BNET_MAX_NICS; i++)
		bnet_engine.listeners[i].fd = -1;
	bnet_engine.ninbound = 0;
}

void bnet_engine_init(void)
{
	init_lists();
	init_changed();
}

void bnet_engine_wake(void)
{
	uint64_t one = 1;

	atomic_store(&bnet_engine_dozing, false);
	if (bnet_engine.wake >= 0 && write(bnet_engine.wake, &one, sizeof(one)) < 0)
		return; /* full: it is awake */
}

void bnet_engine_wait(int ms)
{
	struct timespec until;

	clock_gettime(CLOCK_MONOTONIC, &until);
	until.tv_nsec += (long)(ms % 1000) * 1000000;
	until.tv_sec += ms / 1000 + until.tv_nsec / 1000000000;
	until.tv_nsec %= 1000000000;
	pthread_cond_timedwait(&bnet_engine.changed, &bnet_engine.lock, &until);
}

/* ---- watched descriptors ---- */

int bnet_watch_add(struct bnet_watch *watch, enum bnet_watch_kind kind, uint32_t events)
{
	struct epoll_event event = {.events = events};

	watch->id = ++bnet_engine.serial << 3 | kind;
	event.data.u64 = watch->id;
	return epoll_ctl(bnet_engine.epoll, EPOLL_CTL_ADD, watch->fd, &event) < 0 ? -errno : 0;
}

int bnet_watch_change(struct bnet_watch *watch, uint32_t events)
{
	struct epoll_event event = {.events = events, .data.u64 = watch->id};

	return epoll_ctl(bnet_engine.epoll, EPOLL_CTL_MOD, watch->fd, &event) < 0 ? -errno : 0;
}

void bnet_watch_remove(struct bnet_watch *watch)
{
	epoll_ctl(bnet_engine.epoll, EPOLL_CTL_DEL, watch->fd, NULL);
}
