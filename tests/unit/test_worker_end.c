/* SPDX-License-Identifier: MIT
 *
 * A close waits until the worker no longer looks at the connection, and other threads do not wait meanwhile: a round of
 * a worker takes as long as all its connections have data.
 */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "bagua_net.h"
#include "oneself.h"

#define DEADLINE_S 250
#define BYTES 200000

static struct bnet_client client;
static char from[BYTES];

/* ---- interposed: a round of the worker that ends when told to ---- */

static _Atomic bool stop_the_worker, stopped, waiting, closed;
static pthread_t main_thread;

ssize_t sendmsg(int fd, const struct msghdr *message, int flags)
{
	while (atomic_load(&stop_the_worker)) {
		atomic_store(&stopped, true);
		check(!atomic_load(&closed));
		sched_yield();
	}
	return syscall(SYS_sendmsg, fd, message, flags);
}

/* The close sleeps while it waits. */
int nanosleep(const struct timespec *time, struct timespec *left)
{
	if (!pthread_equal(pthread_self(), main_thread))
		atomic_store(&waiting, true);
	return (int)syscall(SYS_nanosleep, time, left);
}

/* ---- the test ---- */

static void *close_one(void *arg)
{
	close_to_oneself(&client, *(struct oneself *)arg);
	atomic_store(&closed, true);
	return NULL;
}

static void await(_Atomic bool *what)
{
	while (!atomic_load(what))
		sched_yield();
}

static void others_go_on_while_a_close_waits_for_the_worker(void)
{
	struct oneself busy = connect_to_oneself(&client), idle = connect_to_oneself(&client), fresh;
	void *mr, *request;
	pthread_t closer;

	check_int(bnet_client_reg(&client, busy.send, from, BYTES, NCCL_PTR_HOST, &mr), ncclSuccess);
	atomic_store(&stop_the_worker, true);
	check_int(bnet_client_isend(&client, busy.send, from, BYTES, 0, mr, &request), ncclSuccess);
	await(&stopped);
	check_int(pthread_create(&closer, NULL, close_one, &idle), 0);
	await(&waiting);
	fresh = connect_to_oneself(&client);
	atomic_store(&stop_the_worker, false);
	pthread_join(closer, NULL);
	close_to_oneself(&client, fresh);
	check_int(bnet_client_dereg(&client, busy.send, mr), ncclSuccess);
	close_to_oneself(&client, busy);
}

int main(void)
{
	setenv("NCCL_SOCKET_IFNAME", "lo", 1);
	setenv("BAGUA_NET_THREADS", "1", 1);
	setenv("BAGUA_NET_CONTROL_TICK", "10000", 1);
	alarm(DEADLINE_S);
	main_thread = pthread_self();
	check_int(bnet_client_init(&client, bnet_net_table(12), 12, print_warnings), ncclSuccess);
	others_go_on_while_a_close_waits_for_the_worker();
	check_int(bnet_client_finalize(&client), ncclSuccess);
	return 0;
}
