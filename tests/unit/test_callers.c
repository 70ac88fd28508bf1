/* SPDX-License-Identifier: MIT
 *
 * connect and accept go on with their own handshakes: connections are made while the control thread sleeps, and it is
 * woken for what callers leave behind. Its sleep is interposed.
 */
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <stdatomic.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "bagua_net.h"
#include "engine/engine.h"
#include "handshake/acceptor.h"
#include "oneself.h"
#include "transport/conn.h"

#define DEADLINE_S 100

static struct bnet_client client;

/* ---- interposed ---- */

static atomic_bool asleep, is_asleep;

/* Only the control thread waits here: connections within a host have no workers. */
int epoll_wait(int fd, struct epoll_event *events, int count, int ms)
{
	if (!atomic_load(&asleep))
		return (int)syscall(SYS_epoll_pwait, fd, events, count, ms, NULL, 0);
	atomic_store(&is_asleep, true);
	while (atomic_load(&asleep))
		usleep(100);
	atomic_store(&is_asleep, false);
	return 0;
}

static void fall_asleep(void)
{
	uint64_t count;

	atomic_store(&asleep, true);
	bnet_engine_lock();
	bnet_engine_wake();
	bnet_engine_unlock();
	while (!atomic_load(&is_asleep))
		sched_yield();
	while (read(bnet_engine.wake, &count, sizeof(count)) > 0)
		;
}

static bool was_woken(void)
{
	struct pollfd wake = {.fd = bnet_engine.wake, .events = POLLIN};

	return poll(&wake, 1, 0) == 1;
}

/* ---- connections ---- */

static void connections_are_made_while_the_control_thread_sleeps(void)
{
	struct oneself ends[20];

	for (int i = 0; i < 20; i++) {
		ends[i] = connect_to_oneself(&client);
		check(atomic_load(&is_asleep));
	}
	atomic_store(&asleep, false);
	for (int i = 0; i < 20; i++) {
		send_to_oneself(&client, ends[i]);
		close_to_oneself(&client, ends[i]);
	}
}

/* It says nothing, and must not stay for ever. */
static void it_is_woken_for_a_silent_socket(void)
{
	char handle[NCCL_NET_HANDLE_MAXSIZE] = {0};
	struct sockaddr_storage where;
	void *listen, *comm = NULL;
	int fd;

	check_int(bnet_client_listen(&client, 0, handle, &listen), ncclSuccess);
	fall_asleep();
	where = bnet_engine.listeners[0].addr;
	fd = socket(where.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
	check_int(connect(fd, (struct sockaddr *)&where, sizeof(struct sockaddr_in)), 0);
	check(!was_woken());
	while (bnet_engine.ninbound == 0)
		check_int(bnet_client_accept(&client, listen, &comm), ncclSuccess);
	check(comm == NULL && was_woken());
	atomic_store(&asleep, false);
	close(fd);
	check_int(bnet_client_close_listen(&client, listen), ncclSuccess);
}

/* What callers accept ends a shortage as well. */
static void a_shortage_that_is_over_is_forgotten(void)
{
	char handle[NCCL_NET_HANDLE_MAXSIZE] = {0};
	struct oneself ends = {NULL, NULL};
	void *listen;

	check_int(bnet_client_listen(&client, 0, handle, &listen), ncclSuccess);
	fall_asleep();
	bnet_engine_lock();
	bnet_engine.listeners[0].short_since_ms = 1; /* long ago, by the control thread */
	bnet_engine.listeners[0].short_of = -EMFILE;
	bnet_engine_unlock();
	check_int(bnet_client_connect(&client, 0, handle, &ends.send), ncclSuccess);
	while (!ends.send || !ends.recv) {
		if (!ends.recv)
			check_int(bnet_client_accept(&client, listen, &ends.recv), ncclSuccess);
		if (!ends.send)
			check_int(bnet_client_connect(&client, 0, handle, &ends.send), ncclSuccess);
	}
	check_int(bnet_acceptor_error(listen), 0);
	atomic_store(&asleep, false);
	check_int(bnet_client_close_listen(&client, listen), ncclSuccess);
	close_to_oneself(&client, ends);
}

int main(void)
{
	struct oneself first;

	setenv("NCCL_SOCKET_IFNAME", "lo", 1);
	setenv("NCCL_SOCKET_FAMILY", "AF_INET", 1);
	alarm(DEADLINE_S);
	check_int(bnet_client_init(&client, bnet_net_table(12), 12, print_warnings), ncclSuccess);
	first = connect_to_oneself(&client); /* keeps the control thread */
	fall_asleep();
	connections_are_made_while_the_control_thread_sleeps();
	it_is_woken_for_a_silent_socket();
	a_shortage_that_is_over_is_forgotten();
	close_to_oneself(&client, first);
	check_int(bnet_client_finalize(&client), ncclSuccess);
	return 0;
}
