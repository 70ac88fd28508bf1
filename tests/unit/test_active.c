/* SPDX-License-Identifier: MIT
 *
 * The control thread looks only at connections with a recent post, and less often while nothing moves on them. Without
 * such connections it sleeps without a timer. It misses no post.
 */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "bagua_net.h"
#include "engine/engine.h"
#include "oneself.h"

#define DEADLINE_S 250
#define BYTES 300000
#define IDLE_PAIRS 6
#define ROUNDS 100

static struct bnet_client client;
static char from[BYTES], into[BYTES];

/* ---- interposed: how the control thread sleeps ---- */

static pthread_t main_thread;
static _Atomic bool sleeps_without_timer;
static _Atomic int timer_ms; /* of its last sleep */
static _Atomic int woken;    /* its sleeps with a long timer that something else has ended */

/* The timer of rounds while nothing moves, and not that of idleness in which bytes may be undelivered. */
static bool is_rare(int timer)
{
	return timer > 2 * bnet_engine.config.control_tick && timer < 100;
}

int epoll_wait(int fd, struct epoll_event *events, int count, int timeout_ms)
{
	bool control = !pthread_equal(pthread_self(), main_thread);
	int n;

	if (control) {
		atomic_store(&sleeps_without_timer, timeout_ms < 0);
		atomic_store(&timer_ms, timeout_ms);
	}
	n = (int)syscall(SYS_epoll_pwait, fd, events, count, timeout_ms, NULL, 8);
	if (control) {
		atomic_store(&sleeps_without_timer, false);
		atomic_fetch_add(&woken, n > 0 && is_rare(timeout_ms));
	}
	return n;
}

/* ---- connections ---- */

struct pair {
	struct oneself ends;
	void *send_mr, *recv_mr;
};

static struct pair open_pair(void)
{
	struct pair pair = {.ends = connect_to_oneself(&client)};

	check_int(bnet_client_reg(&client, pair.ends.send, from, BYTES, NCCL_PTR_HOST, &pair.send_mr), ncclSuccess);
	check_int(bnet_client_reg(&client, pair.ends.recv, into, BYTES, NCCL_PTR_HOST, &pair.recv_mr), ncclSuccess);
	return pair;
}

static void close_pair(struct pair *pair)
{
	check_int(bnet_client_dereg(&client, pair->ends.send, pair->send_mr), ncclSuccess);
	check_int(bnet_client_dereg(&client, pair->ends.recv, pair->recv_mr), ncclSuccess);
	close_to_oneself(&client, pair->ends);
}

struct requests {
	void *sending, *receiving;
};

static struct requests post(const struct pair *pair)
{
	struct requests posted;

	check_int(bnet_client_irecv(&client, pair->ends.recv, into, BYTES, 0, pair->recv_mr, &posted.receiving),
		  ncclSuccess);
	check_int(bnet_client_isend(&client, pair->ends.send, from, BYTES, 0, pair->send_mr, &posted.sending),
		  ncclSuccess);
	check(posted.sending && posted.receiving);
	return posted;
}

static void finish(void *request)
{
	for (int done = 0; !done; sched_yield())
		check_int(bnet_client_test(&client, request, &done, NULL), ncclSuccess);
}

static void exchange(const struct pair *pair)
{
	struct requests posted = post(pair);

	finish(posted.sending);
	finish(posted.receiving);
}

static int active(void)
{
	int count;

	bnet_engine_lock();
	count = bnet_engine.active.count;
	bnet_engine_unlock();
	return count;
}

/* ---- the tests ---- */

static void await_timer(bool rare)
{
	while (is_rare(atomic_load(&timer_ms)) != rare)
		sched_yield();
}

/* A receive is outstanding all the time. */
static void it_looks_rarely_while_nothing_moves(void)
{
	struct pair pair = open_pair();
	void *receiving[2], *sending;

	for (int i = 0; i < 2; i++)
		check_int(bnet_client_irecv(&client, pair.ends.recv, into, BYTES, 0, pair.recv_mr, &receiving[i]),
			  ncclSuccess);
	for (int i = 0; i < 2; i++) {
		await_timer(true);
		check_int(bnet_client_isend(&client, pair.ends.send, from, BYTES, 0, pair.send_mr, &sending),
			  ncclSuccess);
		finish(sending);
		finish(receiving[i]);
		if (i == 0)
			await_timer(false);
	}
	close_pair(&pair);
}

/* A post on another connection does not wait for the rare round. */
static void a_post_ends_the_rare_rounds(void)
{
	struct pair quiet = open_pair(), other = open_pair();
	int before = atomic_load(&woken);
	void *waiting, *sending;

	check_int(bnet_client_irecv(&client, quiet.ends.recv, into, BYTES, 0, quiet.recv_mr, &waiting), ncclSuccess);
	while (atomic_load(&woken) == before) {
		exchange(&other);
		await_timer(true);
	}
	check_int(bnet_client_isend(&client, quiet.ends.send, from, BYTES, 0, quiet.send_mr, &sending), ncclSuccess);
	finish(sending);
	finish(waiting);
	close_pair(&quiet);
	close_pair(&other);
}

static void it_sleeps_without_a_timer_when_all_are_idle(void)
{
	struct pair pair = open_pair();

	for (int i = 0; i < 3; i++) {
		exchange(&pair);
		while (active() || !atomic_load(&sleeps_without_timer))
			sched_yield();
	}
	close_pair(&pair);
}

static void idle_connections_are_not_looked_at_beside_one_that_moves(void)
{
	struct pair moving = open_pair(), idle[IDLE_PAIRS];

	for (int i = 0; i < IDLE_PAIRS; i++) {
		idle[i] = open_pair();
		exchange(&idle[i]);
	}
	do
		exchange(&moving);
	while (active() > 2);
	for (int i = 0; i < IDLE_PAIRS; i++)
		close_pair(&idle[i]);
	close_pair(&moving);
}

static uint64_t received(void)
{
	bnet_counters_t counters;

	bnet_counters(&counters);
	return counters.messages_received;
}

/* Nobody polls, so a post that is overlooked stays. The pauses are around the time after which a connection counts as
 * idle. */
static void no_post_is_overlooked(void)
{
	struct pair pair = open_pair();
	uint32_t state = 1;

	for (int i = 0; i < ROUNDS; i++) {
		uint64_t before = received();
		struct requests posted = post(&pair);

		while (received() == before)
			sched_yield();
		finish(posted.sending);
		finish(posted.receiving);
		state = state * 1664525 + 1013904223;
		nanosleep(&(struct timespec){.tv_nsec = state % 70000000}, NULL);
	}
	close_pair(&pair);
}

int main(void)
{
	setenv("NCCL_SOCKET_IFNAME", "lo", 1);
	setenv("BAGUA_NET_CONTROL_TICK", "1", 1);
	alarm(DEADLINE_S);
	main_thread = pthread_self();
	check_int(bnet_client_init(&client, bnet_net_table(12), 12, print_warnings), ncclSuccess);
	it_looks_rarely_while_nothing_moves();
	a_post_ends_the_rare_rounds();
	it_sleeps_without_a_timer_when_all_are_idle();
	idle_connections_are_not_looked_at_beside_one_that_moves();
	no_post_is_overlooked();
	check_int(bnet_client_finalize(&client), ncclSuccess);
	return 0;
}
