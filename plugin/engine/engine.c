/* SPDX-License-Identifier: MIT
 *
 * See engine.h.
 */
#include "engine/engine.h"

#include <errno.h>
#include <sys/epoll.h>
#include <time.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/thread.h"
#include "base/counters.h"
#include "base/log.h"
#include "base/socket.h"

struct bnet_engine bnet_engine = {
	.turnstile = PTHREAD_MUTEX_INITIALIZER,
	.lock = PTHREAD_MUTEX_INITIALIZER,
	.epoll = -1,
	.wake = -1,
};
_Atomic bool bnet_engine_wake_on_post;

/* since: when the wait began, 0: nothing had to be waited for yet. */
static void take(pthread_mutex_t *mutex, uint64_t *since)
{
	if (pthread_mutex_trylock(mutex) == 0)
		return;
	if (*since == 0)
		*since = bnet_now_us();
	pthread_mutex_lock(mutex);
}

/* Under the lock. */
static void count_wait(uint64_t us)
{
	if (us > atomic_load(&bnet_counts.lock_wait_us))
		atomic_store(&bnet_counts.lock_wait_us, us);
}

/* A mutex alone goes to whoever runs. The control thread, which takes it again as soon as it has released it while
 * there is much to do, would keep it from a caller that first has to be woken. */
void bnet_engine_lock(void)
{
	uint64_t since = 0;

	take(&bnet_engine.turnstile, &since);
	take(&bnet_engine.lock, &since);
	bnet_log_hold();
	pthread_mutex_unlock(&bnet_engine.turnstile);
	if (since)
		count_wait(bnet_now_us() - since);
}

void bnet_engine_unlock(void)
{
	struct bnet_held *held = bnet_log_release();

	pthread_mutex_unlock(&bnet_engine.lock);
	bnet_log_pass_on(held);
}

void bnet_engine_give_way(void)
{
	bnet_engine_unlock();
	bnet_engine_lock();
}

void bnet_engine_unlock_in_child(void)
{
	struct bnet_held *held = bnet_log_release_in_child();

	pthread_mutex_init(&bnet_engine.turnstile, NULL);
	pthread_mutex_unlock(&bnet_engine.lock);
	bnet_log_pass_on(held);
}

static void init_lists(void)
{
	bnet_list_init(&bnet_engine.listens);
	bnet_list_init(&bnet_engine.conns);
	bnet_list_init(&bnet_engine.paths);
	bnet_list_init(&bnet_engine.inbound);
	bnet_list_init(&bnet_engine.connectors);
	bnet_list_init(&bnet_engine.drains);
	bnet_list_init(&bnet_engine.questions);
	bnet_list_init(&bnet_engine.closed);
	bnet_list_init(&bnet_engine.attempts);
	bnet_list_init(&bnet_engine.missing);
	bnet_list_init(&bnet_engine.metered);
	bnet_table_init(&bnet_engine.listens_by_token);
	bnet_table_init(&bnet_engine.attempts_by_id);
	bnet_table_init(&bnet_engine.senders_by_id);
	bnet_table_init(&bnet_engine.receivers_by_id);
	bnet_table_init(&bnet_engine.watches_by_id);
	bnet_worklist_init(&bnet_engine.active);
	for (int i = 0; i < BNET_MAX_NICS; i++)
		bnet_engine.listeners[i].fd = -1;
	bnet_engine.ninbound = bnet_engine.ndraining_senders = bnet_engine.active_receivers = 0;
}

void bnet_engine_init(void)
{
	init_lists();
	bnet_cond_init(&bnet_engine.changed);
}

bool bnet_engine_is_empty(void)
{
	return bnet_list_empty(&bnet_engine.listens) && bnet_list_empty(&bnet_engine.conns) &&
	       bnet_list_empty(&bnet_engine.connectors) && bnet_list_empty(&bnet_engine.drains);
}

void bnet_engine_wake(void)
{
	uint64_t one = 1;

	atomic_store(&bnet_engine_wake_on_post, false);
	if (bnet_engine.wake >= 0 && write(bnet_engine.wake, &one, sizeof(one)) < 0)
		return; /* full: it is awake */
}

void bnet_engine_tick_soon(void)
{
	if (bnet_engine.asleep_until_ms <= bnet_now_ms() + BNET_TICK_MS)
		return;
	bnet_engine_wake();
	bnet_engine.asleep_until_ms = 0;
}

/* The item is added before the look at the flag, and the control thread looks for items after it has set it: one of the
 * two sees the other. */
void bnet_engine_activate(struct bnet_work_item *item)
{
	if (bnet_worklist_add(&bnet_engine.active, item) && atomic_load(&bnet_engine_wake_on_post))
		bnet_engine_wake();
}

void bnet_engine_wait(int ms)
{
	struct timespec until;

	clock_gettime(CLOCK_MONOTONIC, &until);
	until.tv_nsec += (long)(ms % 1000) * 1000000;
	until.tv_sec += ms / 1000 + until.tv_nsec / 1000000000;
	until.tv_nsec %= 1000000000;
	pthread_cond_timedwait(&bnet_engine.changed, &bnet_engine.lock, &until);
	bnet_log_hold();
}

/* ---- watched descriptors ---- */

void bnet_watch_init(struct bnet_watch *watch, int fd)
{
	bnet_list_init(&watch->node);
	bnet_table_entry_init(&watch->by_id);
	watch->fd = fd;
}

int bnet_watch_add(struct bnet_watch *watch, enum bnet_watch_kind kind, uint32_t events)
{
	struct epoll_event event = {.events = events, .data.u64 = ++bnet_engine.serial << 3 | kind};

	if (epoll_ctl(bnet_engine.epoll, EPOLL_CTL_ADD, watch->fd, &event) < 0)
		return -errno;
	bnet_table_add(&bnet_engine.watches_by_id, &watch->by_id, event.data.u64);
	return 0;
}

int bnet_watch_change(struct bnet_watch *watch, uint32_t events)
{
	struct epoll_event event = {.events = events, .data.u64 = watch->by_id.key};

	return epoll_ctl(bnet_engine.epoll, EPOLL_CTL_MOD, watch->fd, &event) < 0 ? -errno : 0;
}

bool bnet_watch_is_on(const struct bnet_watch *watch)
{
	return !bnet_list_empty(&watch->by_id.node);
}

int bnet_watch_remove(struct bnet_watch *watch)
{
	int fd = watch->fd;

	if (bnet_watch_is_on(watch))
		epoll_ctl(bnet_engine.epoll, EPOLL_CTL_DEL, fd, NULL);
	bnet_table_remove(&watch->by_id);
	watch->fd = -1;
	return fd;
}

void bnet_watch_close(struct bnet_watch *watch)
{
	bnet_table_remove(&watch->by_id);
	bnet_socket_close(watch->fd);
	watch->fd = -1;
}

struct bnet_watch *bnet_watch_find(uint64_t id)
{
	struct bnet_table_entry *entry = bnet_table_find(&bnet_engine.watches_by_id, id, NULL);

	return entry ? bnet_entry(entry, struct bnet_watch, by_id) : NULL;
}
