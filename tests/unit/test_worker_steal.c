/* SPDX-License-Identifier: MIT
 *
 * Two connections that one worker has. Another worker, which has nothing to do, is woken by a post while the first one
 * is busy, and where both connections move; and it moves the one that is not under way.
 */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "check.h"
#include "engine/engine.h"
#include "transport/conn.h"
#include "transport/request.h"
#include "transport/worker.h"

#define DEADLINE_S 250
#define WORKERS 2
#define QUIET_YIELDS 500
#define DESCRIPTORS 1024
#define BYTES (1 << 20) /* more than a socket pair holds */

static char from[BYTES];

/* ---- interposed ---- */

static _Atomic int hold = -1; /* whoever sends on this descriptor is held there … */
static _Atomic bool held;

ssize_t sendmsg(int fd, const struct msghdr *message, int flags)
{
	while (atomic_load(&hold) == fd) {
		atomic_store(&held, true);
		sched_yield();
	}
	return syscall(SYS_sendmsg, fd, message, flags);
}

static _Atomic int asleep, last_woken, woken;
static _Atomic int wakes[DESCRIPTORS]; /* by the worker's epoll set */

int epoll_wait(int fd, struct epoll_event *events, int count, int timeout_ms)
{
	const bool sleeps = timeout_ms != 0;
	int n;

	atomic_fetch_add(&asleep, sleeps);
	n = (int)syscall(SYS_epoll_pwait, fd, events, count, timeout_ms, NULL, 8);
	atomic_fetch_sub(&asleep, sleeps);
	if (sleeps) {
		atomic_fetch_add(&wakes[fd], 1);
		atomic_fetch_add(&woken, 1);
		atomic_store(&last_woken, fd);
	}
	return n;
}

/* … and nothing that is still under way wakes them again: they stay asleep while others run. */
static void await_asleep(int workers)
{
	int seen = -1;

	for (int same = 0; same < QUIET_YIELDS; sched_yield()) {
		bool stay = atomic_load(&asleep) == workers && atomic_load(&woken) == seen;

		same = stay ? same + 1 : 0;
		seen = atomic_load(&woken);
	}
}

/* ---- connections ---- */

static struct bnet_nic nic = {.numa_node = -1};
static struct bnet_device device = {.name = "unit", .address = "", .nmembers = 1, .members = {&nic}};

struct end {
	struct bnet_conn *conn;
	int peer;
};

static struct end open_end(void)
{
	struct end end = {.conn = bnet_conn_new(true, &device, &bnet_engine.config, true)};
	int pair[2];

	check(end.conn != NULL);
	check_int(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair), 0);
	check_int(bnet_conn_add_stream(end.conn, pair[0], NULL), 0);
	end.peer = pair[1];
	bnet_worker_adopt(end.conn);
	check(end.conn->worker != NULL);
	return end;
}

static void close_end(const struct end *end)
{
	bnet_worker_release(end->conn);
	bnet_workers_await();
	bnet_conn_free(end->conn);
	close(end->peer);
}

/* Does not wake the worker. */
static struct bnet_request *post(const struct end *end)
{
	struct bnet_request *request = bnet_request_post(end->conn, from, BYTES);

	check(request != NULL);
	return request;
}

static void take(const struct end *end, struct bnet_request *request)
{
	static char into[BYTES];

	while (!atomic_load(&request->done))
		if (recv(end->peer, into, sizeof(into), MSG_DONTWAIT) < 0)
			sched_yield();
	while (recv(end->peer, into, sizeof(into), MSG_DONTWAIT) > 0)
		;
	bnet_request_take(request);
}

/* ---- the tests ---- */

static void another_moves_what_is_posted_while_its_own_is_busy(const struct end *busy, const struct end *other)
{
	struct bnet_request *first, *second;

	await_asleep(WORKERS);
	atomic_store(&held, false);
	atomic_store(&hold, busy->conn->streams[0]->fd);
	first = post(busy);
	bnet_worker_wake(busy->conn);
	while (!atomic_load(&held))
		sched_yield();
	await_asleep(WORKERS - 1);
	second = post(other);
	bnet_worker_wake(other->conn);
	take(other, second);
	atomic_store(&hold, -1);
	take(busy, first);
}

/* By its epoll set. */
static int worker_of(const struct end *end)
{
	await_asleep(WORKERS);
	atomic_store(&last_woken, -1);
	bnet_worker_wake(end->conn);
	while (atomic_load(&last_woken) < 0)
		sched_yield();
	await_asleep(WORKERS);
	return atomic_load(&last_woken);
}

static void where_two_move_another_is_woken(const struct end two[], int other)
{
	struct bnet_request *requests[2];
	int before = atomic_load(&wakes[other]);

	for (int i = 0; i < 2; i++)
		requests[i] = post(&two[i]);
	bnet_worker_wake(two[0].conn);
	while (atomic_load(&wakes[other]) == before)
		sched_yield();
	for (int i = 0; i < 2; i++)
		take(&two[i], requests[i]);
}

int main(void)
{
	struct end two[2], idle;

	alarm(DEADLINE_S);
	bnet_engine.config.min_chunksize = 4096;
	bnet_engine.config.max_chunksize = 65536;
	bnet_workers_want(WORKERS);
	two[0] = open_end();
	idle = open_end();
	two[1] = open_end();
	check(two[0].conn->worker == two[1].conn->worker && idle.conn->worker != two[0].conn->worker);
	another_moves_what_is_posted_while_its_own_is_busy(&two[0], &two[1]);
	where_two_move_another_is_woken(two, worker_of(&idle));
	close_end(&idle);
	for (int i = 0; i < 2; i++)
		close_end(&two[i]);
	bnet_workers_stop();
	return 0;
}
