/* SPDX-License-Identifier: MIT
 *
 * A caller that polls without ever yielding lets the thread run for which it waits. Both ends of a connection poll on
 * one processor, with a scheduling policy under which a thread runs until it yields.
 */
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <stdbool.h>
#include <stdlib.h>
#include <unistd.h>

#include "bagua_net.h"
#include "oneself.h"

#define DEADLINE_S 60
#define MESSAGE (64 << 20) /* more than a connection's buffers hold */

static struct bnet_client client;
static struct oneself ends;
static sem_t sender_polls;

/* One processor for both. False: this process may not. */
static bool take_turns(void)
{
	const struct sched_param lowest = {.sched_priority = 1};
	cpu_set_t usable, one;
	int processor = 0;

	check_int(sched_getaffinity(0, sizeof(usable), &usable), 0);
	while (!CPU_ISSET(processor, &usable))
		processor++;
	CPU_ZERO(&one);
	CPU_SET(processor, &one);
	check_int(pthread_setaffinity_np(pthread_self(), sizeof(one), &one), 0);
	return pthread_setschedparam(pthread_self(), SCHED_FIFO, &lowest) == 0;
}

static void poll_until_done(void *request)
{
	int done = 0, size;

	while (!done)
		check_int(bnet_client_test(&client, request, &done, &size), ncclSuccess);
	check_int(size, MESSAGE);
}

static void *send_main(void *data)
{
	void *mr, *request;

	check_int(bnet_client_reg(&client, ends.send, data, MESSAGE, NCCL_PTR_HOST, &mr), ncclSuccess);
	check(take_turns());
	check_int(bnet_client_isend(&client, ends.send, data, MESSAGE, 0, mr, &request), ncclSuccess);
	sem_post(&sender_polls);
	poll_until_done(request);
	check_int(bnet_client_dereg(&client, ends.send, mr), ncclSuccess);
	return NULL;
}

static void *receive_main(void *data)
{
	void *mr, *request;

	check_int(bnet_client_reg(&client, ends.recv, data, MESSAGE, NCCL_PTR_HOST, &mr), ncclSuccess);
	check(take_turns());
	check_int(bnet_client_irecv(&client, ends.recv, data, MESSAGE, 0, mr, &request), ncclSuccess);
	poll_until_done(request);
	check_int(bnet_client_dereg(&client, ends.recv, mr), ncclSuccess);
	return NULL;
}

static void *try_to_take_turns(void *may)
{
	*(bool *)may = take_turns();
	return NULL;
}

static void run(void *(*body)(void *), void *argument, pthread_t *thread)
{
	check_int(pthread_create(thread, NULL, body, argument), 0);
}

int main(void)
{
	char *from = calloc(1, MESSAGE), *to = calloc(1, MESSAGE);
	pthread_t sender, receiver, probe;
	bool may = false;

	check(from != NULL && to != NULL);
	run(try_to_take_turns, &may, &probe);
	pthread_join(probe, NULL);
	if (!may)
		return 77; /* not root, or a container without real-time scheduling */
	setenv("NCCL_SOCKET_IFNAME", "lo", 1);
	setenv("BAGUA_NET_THREADS", "0", 1);
	alarm(DEADLINE_S);
	check_int(bnet_client_init(&client, bnet_net_table(12), 12, print_warnings), ncclSuccess);
	ends = connect_to_oneself(&client);
	check_int(sem_init(&sender_polls, 0, 0), 0);
	run(send_main, from, &sender);
	sem_wait(&sender_polls);
	run(receive_main, to, &receiver);
	pthread_join(sender, NULL);
	pthread_join(receiver, NULL);
	close_to_oneself(&client, ends);
	check_int(bnet_client_finalize(&client), ncclSuccess);
	free(from);
	free(to);
	return 0;
}
