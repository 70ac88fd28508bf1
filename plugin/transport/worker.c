/* SPDX-License-Identifier: MIT
 *
 * See worker.h. Workers read slots without a lock, their own and each other's: the thread that empties a slot waits
 * until every worker has ended the round in which it may still have read it.
 */
#include "transport/worker.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/thread.h"
#include "base/crypto.h"
#include "base/log.h"
#include "base/socket.h"
#include "transport/progress.h"

#define SLOTS 1024
/* A worker that finds nothing to do spins for this long before it sleeps. */
#define SPIN_US 50
/* A worker that is waited for may find that the process exits: that is looked at so often. */
#define JOIN_NS 10000000
/* A sender's stream at its in-flight limit takes more once its bytes are delivered, which no event reports. */
#define NAP_MS 1
#define EVENTS 16

struct bnet_worker {
	pthread_t thread;
	int epoll; /* the epoll sets of its connections, edge-triggered, and wake_fd */
	int wake_fd;
	int load; /* connections; under the engine's lock */
	_Atomic bool stop;
	_Atomic bool passing; /* it moves a connection's data now */
	_Atomic bool asleep;  /* a post must wake it */
	_Atomic bool parked;  /* … and the worker reads no slot */
	_Atomic uint64_t round;
	_Atomic uint64_t wakes;
	bool refused;     /* in this round another thread held an owner word; the worker's own */
	_Atomic int used; /* slots from here on are empty */
	_Atomic(struct bnet_conn *) slots[SLOTS];
};

static struct {
	int wanted; /* how many there will be */
	_Atomic int count;
	struct bnet_worker *workers[BNET_MAX_WORKERS];
} pool;

/* ---- how many ---- */

#define PROCESSORS_EACH 4 /* with fewer, more threads do not help a rank */
#define PROCESSORS_LEFT 2 /* for the rank's compute and for NCCL's threads */
#define FAST_MBPS 40000   /* one thread moves less than that, copies included */
#define MBPS_PER_WORKER 20000
#define MAX_CHOSEN 3

int bnet_workers_for(int processors, int ranks, int64_t speed_mbps)
{
	int64_t each = processors / (ranks < 1 ? 1 : ranks), workers = speed_mbps / MBPS_PER_WORKER;

	if (each < PROCESSORS_EACH || speed_mbps < FAST_MBPS)
		return 0;
	if (workers > each - PROCESSORS_LEFT)
		workers = each - PROCESSORS_LEFT;
	return workers > MAX_CHOSEN ? MAX_CHOSEN : (int)workers;
}

int bnet_local_ranks(void)
{
	static const char *const names[] = {"LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS",
					    "SLURM_NTASKS_PER_NODE"};

	for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++) {
		const char *value = getenv(names[i]);
		int ranks = value ? atoi(value) : 0;

		if (ranks > 0)
			return ranks;
	}
	return 1;
}

static int usable_processors(void)
{
	cpu_set_t set;

	return sched_getaffinity(0, sizeof(set), &set) < 0 ? 1 : CPU_COUNT(&set);
}

int bnet_workers_choose(const struct bnet_config *config, const struct bnet_device_table *devices)
{
	int64_t speed = 0;

	if (config->threads >= 0)
		return (int)config->threads;
	for (int i = 0; i < devices->nnics; i++)
		if (devices->nics[i].speed_known)
			speed += devices->nics[i].speed_mbps;
	return bnet_workers_for(usable_processors(), bnet_local_ranks(), speed);
}

void bnet_workers_want(int count)
{
	pool.wanted = count;
}

int bnet_workers_wanted(void)
{
	return pool.wanted;
}

/* ---- the loop ---- */

static struct bnet_conn *in_slot(const struct bnet_worker *worker, int slot)
{
	return atomic_load(&worker->slots[slot]);
}

static bool wants_passes(const struct bnet_conn *conn)
{
	return conn && bnet_conn_is_workable(conn);
}

/* A pass over each connection that is assigned to `of`. How many of them moved something. */
static int make_passes(struct bnet_worker *worker, const struct bnet_worker *of)
{
	int used = atomic_load_explicit(&of->used, memory_order_acquire), moved = 0;

	for (int i = 0; i < used; i++) {
		struct bnet_conn *conn = in_slot(of, i);

		if (!wants_passes(conn))
			continue;
		if (!bnet_conn_try_own(conn)) {
			worker->refused = true;
			continue;
		}
		atomic_store_explicit(&worker->passing, true, memory_order_relaxed);
		moved += bnet_progress(conn);
		atomic_store_explicit(&worker->passing, false, memory_order_relaxed);
		bnet_conn_disown(conn);
	}
	return moved;
}

/* False: it is awake. */
static bool ring(struct bnet_worker *worker)
{
	uint64_t one = 1;

	atomic_fetch_add(&worker->wakes, 1);
	if (!atomic_load(&worker->asleep) || !atomic_exchange(&worker->asleep, false))
		return false;
	/* A full counter has woken it already. */
	return write(worker->wake_fd, &one, sizeof(one)) == sizeof(one) || errno == EAGAIN;
}

/* A connection is assigned once, so that one worker may have all that move. Another one, which finds nothing of its
 * own, takes those that are not under way; one that sleeps is woken for that. A worker that sleeps has nothing to take:
 * what comes wakes it. So does whoever has taken something, since what is left will not be announced again. */
static bool steal(struct bnet_worker *worker)
{
	int count = atomic_load_explicit(&pool.count, memory_order_acquire);

	for (int i = 0; i < count; i++) {
		struct bnet_worker *busy = pool.workers[i];
		int moved;

		if (busy == worker || atomic_load(&busy->parked))
			continue;
		moved = make_passes(worker, busy);
		if (moved || atomic_load(&busy->parked))
			ring(busy);
		if (moved)
			return true;
	}
	return false;
}

/* Wakes one other. */
static void ask_for_help(const struct bnet_worker *worker)
{
	int count = atomic_load_explicit(&pool.count, memory_order_acquire);

	for (int i = 0; i < count; i++)
		if (pool.workers[i] != worker && atomic_load(&pool.workers[i]->asleep) && ring(pool.workers[i]))
			return;
}

static bool make_round(struct bnet_worker *worker)
{
	int moved;

	worker->refused = false;
	moved = make_passes(worker, worker);
	if (moved > 1)
		ask_for_help(worker);
	if (moved == 0)
		moved = steal(worker);
	atomic_fetch_add(&worker->round, 1);
	return moved > 0;
}

/* How long the worker may sleep in ms; -1: until an event; 0: not at all, since it was woken. A wake is counted
 * before its thread looks whether the worker sleeps, and the worker announces its sleep before it reads the count. */
static int may_sleep(struct bnet_worker *worker, uint64_t *seen)
{
	int used = atomic_load(&worker->used), ms = worker->refused ? NAP_MS : -1;
	uint64_t wakes = atomic_load(&worker->wakes);

	if (wakes != *seen) {
		*seen = wakes;
		return 0;
	}
	for (int i = 0; i < used; i++) {
		struct bnet_conn *conn = in_slot(worker, i);

		if (wants_passes(conn) && conn->sender && atomic_load(&conn->nstreams) > 1)
			ms = NAP_MS;
	}
	return ms;
}

static void sleep_until_woken(struct bnet_worker *worker, uint64_t *seen)
{
	struct epoll_event events[EVENTS];
	uint64_t count;
	int ms;

	atomic_store(&worker->asleep, true);
	ms = may_sleep(worker, seen);
	atomic_store(&worker->parked, true);
	if (ms && !atomic_load(&worker->stop))
		epoll_wait(worker->epoll, events, EVENTS, ms);
	atomic_store(&worker->parked, false);
	atomic_store(&worker->asleep, false);
	if (read(worker->wake_fd, &count, sizeof(count)) < 0)
		return; /* nobody woke it: a socket or the time limit ended the sleep */
}

static void *run(void *arg)
{
	struct bnet_worker *worker = arg;
	uint64_t quiet_us = 0, seen = 0;

	while (!atomic_load_explicit(&worker->stop, memory_order_acquire)) {
		uint64_t now;

		if (make_round(worker)) {
			quiet_us = 0;
			continue;
		}
		now = bnet_now_us();
		if (quiet_us == 0)
			quiet_us = now;
		if (now - quiet_us < SPIN_US)
			continue;
		sleep_until_woken(worker, &seen);
		quiet_us = 0;
	}
	if (!bnet_crypto_end_thread())
		bnet_crypto_stay();
	return NULL;
}

void bnet_worker_wake(const struct bnet_conn *conn)
{
	struct bnet_worker *worker = conn->worker;

	if (ring(worker))
		return;
	/* It is busy, and not with this one. */
	if (atomic_load_explicit(&worker->passing, memory_order_relaxed) &&
	    !atomic_load_explicit(&conn->owner, memory_order_relaxed))
		ask_for_help(worker);
}

/* ---- start and end ---- */

/* Binds the thread to the processors of the interface's memory node that the process may use; to nothing if the node is
 * unknown. */
static void place(pthread_t thread, int node)
{
	char path[64];
	cpu_set_t mine, near;
	unsigned from, to;
	FILE *file;

	if (node < 0 || sched_getaffinity(0, sizeof(mine), &mine) < 0)
		return;
	snprintf(path, sizeof(path), "/sys/devices/system/node/node%d/cpulist", node);
	file = fopen(path, "re");
	if (!file)
		return;
	CPU_ZERO(&near);
	while (fscanf(file, "%u", &from) == 1) {
		to = from;
		if (fscanf(file, "-%u", &to) == 1 && to < from)
			break;
		for (unsigned cpu = from; cpu <= to && cpu < CPU_SETSIZE; cpu++)
			CPU_SET(cpu, &near);
		if (fgetc(file) != ',')
			break;
	}
	fclose(file);
	CPU_AND(&near, &near, &mine);
	if (CPU_COUNT(&near))
		pthread_setaffinity_np(thread, sizeof(near), &near);
}

static void free_worker(struct bnet_worker *worker)
{
	bnet_socket_close(worker->wake_fd);
	bnet_socket_close(worker->epoll);
	free(worker);
}

static struct bnet_worker *new_worker(void)
{
	struct bnet_worker *worker = calloc(1, sizeof(*worker));
	struct epoll_event event = {.events = EPOLLIN};

	if (!worker)
		return NULL;
	worker->epoll = bnet_fd_opened(epoll_create1(EPOLL_CLOEXEC));
	worker->wake_fd = bnet_fd_opened(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
	if (worker->epoll >= 0 && worker->wake_fd >= 0 &&
	    epoll_ctl(worker->epoll, EPOLL_CTL_ADD, worker->wake_fd, &event) == 0)
		return worker;
	free_worker(worker);
	return NULL;
}

static bool start_worker(int node)
{
	struct bnet_worker *worker = new_worker();

	if (!worker)
		return false;
	if (bnet_thread_start(&worker->thread, run, worker) < 0) {
		free_worker(worker);
		return false;
	}
	place(worker->thread, node);
	pool.workers[pool.count] = worker;
	atomic_fetch_add(&pool.count, 1);
	return true;
}

/* False: the process exits, and the worker stays. */
static bool join(const struct bnet_worker *worker)
{
	struct timespec until;

	while (!bnet_crypto_is_over()) {
		clock_gettime(CLOCK_REALTIME, &until);
		until.tv_nsec += JOIN_NS;
		until.tv_sec += until.tv_nsec / 1000000000;
		until.tv_nsec %= 1000000000;
		if (pthread_timedjoin_np(worker->thread, NULL, &until) == 0)
			return true;
	}
	return pthread_tryjoin_np(worker->thread, NULL) == 0;
}

/* Each may still look at the others. */
void bnet_workers_stop(void)
{
	uint64_t one = 1;
	bool ended = true;

	for (int i = 0; i < pool.count; i++) {
		atomic_store(&pool.workers[i]->stop, true);
		ended &= write(pool.workers[i]->wake_fd, &one, sizeof(one)) == sizeof(one);
	}
	for (int i = 0; i < pool.count && ended; i++)
		ended = join(pool.workers[i]);
	for (int i = 0; i < pool.count && ended; i++)
		free_worker(pool.workers[i]);
	pool.count = 0;
}

void bnet_workers_forget(void)
{
	for (int i = 0; i < pool.count; i++) {
		close(pool.workers[i]->wake_fd);
		close(pool.workers[i]->epoll);
		free(pool.workers[i]);
	}
	pool.count = 0;
}

/* ---- connections ---- */

static struct bnet_worker *least_loaded(void)
{
	struct bnet_worker *least = NULL;

	for (int i = 0; i < pool.count; i++)
		if (!least || pool.workers[i]->load < least->load)
			least = pool.workers[i];
	return least && least->load < SLOTS ? least : NULL;
}

void bnet_worker_adopt(struct bnet_conn *conn)
{
	struct epoll_event event = {.events = EPOLLIN | EPOLLET};
	struct bnet_worker *worker;
	int slot = 0;

	while (pool.count < bnet_workers_wanted() && start_worker(conn->dev->members[0]->numa_node))
		;
	worker = least_loaded();
	if (!worker || conn->epoll < 0 || epoll_ctl(worker->epoll, EPOLL_CTL_ADD, conn->epoll, &event) < 0)
		return; /* the caller moves the data */
	while (in_slot(worker, slot))
		slot++;
	worker->load++;
	conn->worker_sleeps = &worker->parked;
	conn->worker = worker;
	atomic_store(&worker->slots[slot], conn);
	if (slot >= atomic_load(&worker->used))
		atomic_store(&worker->used, slot + 1);
	ring(worker);
}

void bnet_worker_release(struct bnet_conn *conn)
{
	struct bnet_worker *worker = conn->worker;
	int slot = 0;

	if (!worker)
		return;
	while (in_slot(worker, slot) != conn)
		slot++;
	atomic_store(&worker->slots[slot], NULL);
	epoll_ctl(worker->epoll, EPOLL_CTL_DEL, conn->epoll, NULL);
	worker->load--;
	conn->worker = NULL;
}

static void await_round(const struct bnet_worker *worker)
{
	/* Sleeping lets a worker of lower priority on the same processor finish its round. */
	const struct timespec pause = {.tv_nsec = 50000};
	uint64_t round = atomic_load(&worker->round);

	while (atomic_load(&worker->round) == round && !atomic_load(&worker->parked))
		nanosleep(&pause, NULL);
}

/* Workers are there until the engine's lists are empty. */
void bnet_workers_await(void)
{
	int count = atomic_load(&pool.count);

	for (int i = 0; i < count; i++)
		await_round(pool.workers[i]);
}
