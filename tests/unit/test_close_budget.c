/* SPDX-License-Identifier: MIT
 *
 * Closes that overlap share a second, and so does the process's end. The peer reads nothing, so every close has
 * something to wait for. The clock is interposed: it stands still unless it is turned on.
 */
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "bagua_net.h"
#include "common/clock.h"
#include "engine/engine.h"
#include "oneself.h"

#define DEADLINE_S 250
#define BYTES ((size_t)128 << 10) /* more than the receiver's small buffer takes, and less than the sender's holds */

static struct bnet_client client;
static char from[BYTES];

/* ---- interposed ---- */

static _Atomic bool stands_still;
static _Atomic uint64_t stopped_ns, turned_on_ns;
static _Atomic uint64_t awaited_ns; /* by threads that wait for a change of the engine */

static uint64_t real_ns(void)
{
	struct timespec now;

	syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

int clock_gettime(clockid_t clock, struct timespec *now)
{
	uint64_t ns;

	if (clock != CLOCK_MONOTONIC)
		return (int)syscall(SYS_clock_gettime, clock, now);
	ns = (atomic_load(&stands_still) ? atomic_load(&stopped_ns) : real_ns()) + atomic_load(&turned_on_ns);
	now->tv_sec = (time_t)(ns / 1000000000);
	now->tv_nsec = (long)(ns % 1000000000);
	return 0;
}

/* Nothing changes until then. */
int pthread_cond_timedwait(pthread_cond_t *cond, pthread_mutex_t *mutex, const struct timespec *until)
{
	uint64_t then = (uint64_t)until->tv_sec * 1000000000 + (uint64_t)until->tv_nsec, now = bnet_now_ns();

	(void)cond;
	(void)mutex;
	atomic_fetch_add(&awaited_ns, then - now);
	atomic_fetch_add(&turned_on_ns, then - now);
	return ETIMEDOUT;
}

static pthread_t main_thread;
static _Atomic uint64_t looks; /* of the control thread at sockets that drain */

ssize_t recv(int fd, void *buffer, size_t size, int flags)
{
	if (!pthread_equal(pthread_self(), main_thread))
		atomic_fetch_add(&looks, 1);
	return syscall(SYS_recvfrom, fd, buffer, size, flags, NULL, NULL);
}

static void stop_clock(void)
{
	atomic_store(&stopped_ns, real_ns());
	atomic_store(&stands_still, true);
}

static void turn_on_ms(uint64_t ms)
{
	atomic_fetch_add(&turned_on_ns, ms * 1000000);
}

/* ---- the test ---- */

/* All is in the kernel, and the receiver has not posted a receive. */
static struct oneself send_unread(void)
{
	struct oneself ends = connect_to_oneself(&client);
	void *mr, *request;

	check_int(bnet_client_reg(&client, ends.send, from, BYTES, NCCL_PTR_HOST, &mr), ncclSuccess);
	check_int(bnet_client_isend(&client, ends.send, from, BYTES, 0, mr, &request), ncclSuccess);
	for (int done = 0; !done; sched_yield())
		check_int(bnet_client_test(&client, request, &done, NULL), ncclSuccess);
	check_int(bnet_client_dereg(&client, ends.send, mr), ncclSuccess);
	return ends;
}

static void close_sender(struct oneself ends)
{
	check_int(bnet_client_close_send(&client, ends.send), ncclSuccess);
}

static int draining(void)
{
	int count;

	bnet_engine_lock();
	count = bnet_engine.ndraining_senders;
	bnet_engine_unlock();
	return count;
}

/* Each turn lets the control thread look once, and it ends what is over. Its second look follows the end of the
 * first. */
static void pass_ms(uint64_t ms)
{
	uint64_t before = atomic_load(&looks);

	turn_on_ms(ms - 10);
	while (atomic_load(&looks) < before + (uint64_t)draining())
		sched_yield();
	before = atomic_load(&looks);
	turn_on_ms(10);
	while (atomic_load(&looks) == before)
		sched_yield();
}

static void closes_share_a_second(const struct oneself *ends)
{
	stop_clock();
	close_sender(ends[0]);
	pass_ms(600);
	close_sender(ends[1]);
	pass_ms(390);
	check_int(draining(), 2);
	turn_on_ms(20);
	while (draining())
		sched_yield();
	/* After that another second begins. */
	close_sender(ends[2]);
	pass_ms(700);
	check_int(draining(), 1);
}

static bool ends_in_order;

/* After the library's own destructor, which has no priority. */
__attribute__((destructor(101))) static void the_process_s_end_takes_the_rest_of_it(void)
{
	uint64_t ms = atomic_load(&awaited_ns) / 1000000;

	if (ends_in_order && (ms < 290 || ms > 300)) {
		fprintf(stderr, "the process's end waited for %llu ms, expected 300\n", (unsigned long long)ms);
		_exit(1);
	}
}

int main(void)
{
	struct oneself ends[3];

	setenv("NCCL_SOCKET_IFNAME", "lo", 1);
	setenv("BAGUA_NET_NSTREAMS", "1", 1);
	setenv("BAGUA_NET_REPAIR", "0", 1); /* a sender that is closed would wait for longer */
	setenv("BAGUA_NET_RCVBUF", "32K", 1);
	setenv("BAGUA_NET_SNDBUF", "208K", 1);
	setenv("BAGUA_NET_NOTSENT_LOWAT", "0", 1);
	alarm(DEADLINE_S);
	main_thread = pthread_self();
	check_int(bnet_client_init(&client, bnet_net_table(12), 12, print_warnings), ncclSuccess);
	for (int i = 0; i < 3; i++)
		ends[i] = send_unread();
	closes_share_a_second(ends);
	ends_in_order = true;
	return 0;
}
