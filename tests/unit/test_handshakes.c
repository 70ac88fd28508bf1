/* SPDX-License-Identifier: MIT
 *
 * Who takes the steps of a handshake: the callers that wait for it, and the control thread where they stop asking.
 */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "bagua_net.h"
#include "engine/engine.h"
#include "oneself.h"
#include "transport/conn.h"

#define DEADLINE_S 100
#define CONNECTIONS 20

#define BYTES 200000

static struct bnet_client client;
static char from[BYTES], into[BYTES];

/* ---- threads run when told to ---- */

#define THREADS 2

/* The control thread is the first that starts; the worker is the other one. */
static struct late {
	void *(*run)(void *);
	void *arg;
	_Atomic bool may_run;
} threads[THREADS];
static int nthreads;

static void *run_late(void *arg)
{
	struct late *thread = arg;

	while (!atomic_load(&thread->may_run))
		sched_yield();
	return thread->run(thread->arg);
}

int __real_bnet_thread_start(pthread_t *thread, void *(*run)(void *), void *arg);
int __wrap_bnet_thread_start(pthread_t *thread, void *(*run)(void *), void *arg);

int __wrap_bnet_thread_start(pthread_t *thread, void *(*run)(void *), void *arg)
{
	struct late *late = &threads[nthreads];

	if (nthreads == THREADS) /* of a later test */
		return __real_bnet_thread_start(thread, run, arg);
	nthreads++;
	late->run = run;
	late->arg = arg;
	return __real_bnet_thread_start(thread, run_late, late);
}

static bool it_waits(void)
{
	bool waits;

	bnet_engine_lock();
	waits = bnet_engine.ticking;
	bnet_engine_unlock();
	return waits;
}

/* ---- the tests ---- */

static void finish(void *requests[2])
{
	for (int done[2] = {0, 0}; !done[0] || !done[1]; sched_yield())
		for (int i = 0; i < 2; i++)
			if (!done[i])
				check_int(bnet_client_test(&client, requests[i], &done[i], NULL), ncclSuccess);
}

/* The thread comes to run when its callers have long connected and posted. It leaves them a tick's time. */
static void a_late_thread_takes_nothing_over_at_once(void)
{
	struct oneself ends = connect_to_oneself(&client);
	const struct bnet_conn *conn = ends.send;
	void *requests[2];

	check_int(bnet_client_isend(&client, ends.send, from, BYTES, 0, NULL, &requests[0]), ncclSuccess);
	check_int(nthreads, THREADS);
	atomic_store(&threads[0].may_run, true);
	while (!it_waits())
		sched_yield();
	check_int(conn->passes, 0);
	atomic_store(&threads[1].may_run, true);
	check_int(bnet_client_irecv(&client, ends.recv, into, BYTES, 0, NULL, &requests[1]), ncclSuccess);
	finish(requests);
	close_to_oneself(&client, ends);
}

/* The control thread does not see what arrives for handshakes, as if it were not scheduled. */
static void blind_the_thread(void)
{
	bnet_engine_lock();
	check_int(epoll_ctl(bnet_engine.epoll, EPOLL_CTL_DEL, bnet_engine.handshakes, NULL), 0);
	bnet_engine_unlock();
}

static void let_the_thread_see(void)
{
	struct epoll_event event = {.events = EPOLLIN, .data.u64 = BNET_WATCH_HANDSHAKES};

	bnet_engine_lock();
	check_int(epoll_ctl(bnet_engine.epoll, EPOLL_CTL_ADD, bnet_engine.handshakes, &event), 0);
	bnet_engine_unlock();
}

/* One end asks until it is connected, then the other. */
static struct oneself connect_in_turn(bool sender_first)
{
	char handle[NCCL_NET_HANDLE_MAXSIZE] = {0};
	struct oneself ends = {NULL, NULL};
	void *listen;

	check_int(bnet_client_listen(&client, 0, handle, &listen), ncclSuccess);
	check_int(bnet_client_connect(&client, 0, handle, &ends.send), ncclSuccess);
	while (!ends.send || !ends.recv) {
		if (!ends.send && (sender_first || ends.recv))
			check_int(bnet_client_connect(&client, 0, handle, &ends.send), ncclSuccess);
		if (!ends.recv && (!sender_first || ends.send))
			check_int(bnet_client_accept(&client, listen, &ends.recv), ncclSuccess);
	}
	check_int(bnet_client_close_listen(&client, listen), ncclSuccess);
	return ends;
}

static void callers_need_no_thread(void)
{
	struct oneself first = connect_to_oneself(&client), ends;

	blind_the_thread();
	for (int i = 0; i < CONNECTIONS; i++) {
		ends = connect_in_turn(i % 2);
		send_to_oneself(&client, ends);
		close_to_oneself(&client, ends);
	}
	let_the_thread_see();
	close_to_oneself(&client, first);
}

static bool all_attempts_are_ready(void)
{
	bool ready = true;

	bnet_engine_lock();
	bnet_list_each(node, &bnet_engine.attempts)
		ready &= bnet_entry(node, struct bnet_conn, setup.pending)->setup.ready;
	bnet_engine_unlock();
	return ready;
}

/* One call each; what they have begun is ready later. */
static void the_thread_goes_on_alone(void)
{
	char handle[NCCL_NET_HANDLE_MAXSIZE] = {0};
	struct oneself ends = {NULL, NULL};
	void *listen;

	check_int(bnet_client_listen(&client, 0, handle, &listen), ncclSuccess);
	check_int(bnet_client_accept(&client, listen, &ends.recv), ncclSuccess);
	check_int(bnet_client_connect(&client, 0, handle, &ends.send), ncclSuccess);
	check(!ends.send && !ends.recv);
	while (!all_attempts_are_ready())
		sched_yield();
	check_int(bnet_client_accept(&client, listen, &ends.recv), ncclSuccess);
	check_int(bnet_client_connect(&client, 0, handle, &ends.send), ncclSuccess);
	check(ends.send && ends.recv);
	check_int(bnet_client_close_listen(&client, listen), ncclSuccess);
	close_to_oneself(&client, ends);
}

int main(void)
{
	setenv("NCCL_SOCKET_IFNAME", "=lo", 1);
	setenv("BAGUA_NET_CONTROL_TICK", "10000", 1);
	setenv("BAGUA_NET_THREADS", "1", 1);
	alarm(DEADLINE_S);
	check_int(bnet_client_init(&client, bnet_net_table(12), 12, print_warnings), ncclSuccess);
	a_late_thread_takes_nothing_over_at_once();
	callers_need_no_thread();
	for (int i = 0; i < CONNECTIONS; i++)
		the_thread_goes_on_alone();
	check_int(bnet_client_finalize(&client), ncclSuccess);
	return 0;
}
