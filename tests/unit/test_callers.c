/* SPDX-License-Identifier: MIT
 *
 * connect and accept go on with their own handshakes: connections are made while the control thread sleeps, and it is
 * woken for what callers leave behind. Its sleep is interposed.
 */
#include <errno.h>
#include <stdlib.h>
#include <stdatomic.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "bagua_net.h"
#include "engine/engine.h"
#include "handshake/acceptor.h"
#include "handshake/listener.h"
#include "inbound.h"
#include "oneself.h"
#include "transport/conn.h"

#define DEADLINE_S 250

static struct bnet_client client;

/* ---- interposed ---- */

static atomic_bool asleep, is_asleep;
static atomic_int readiness_set, limit_ms; /* of the control thread's last sleep */

static int await_events(int fd, struct epoll_event *events, int most, int ms)
{
	return (int)syscall(SYS_epoll_pwait, fd, events, most, ms, NULL, 0);
}

static void sleep_on(void)
{
	atomic_store(&is_asleep, true);
	while (atomic_load(&asleep))
		usleep(100);
	atomic_store(&is_asleep, false);
}

/* Only the control thread waits here: connections within a host have no workers. */
int epoll_wait(int fd, struct epoll_event *events, int most, int ms)
{
	int count;

	atomic_store(&readiness_set, fd);
	atomic_store(&limit_ms, ms);
	do {
		if (atomic_load(&asleep))
			sleep_on();
		count = await_events(fd, events, most, ms < 0 ? 1 : ms);
	} while (count == 0 && ms < 0);
	return count;
}

static atomic_bool short_of_descriptors;

int accept4(int fd, struct sockaddr *address, socklen_t *size, int flags)
{
	if (!atomic_load(&short_of_descriptors))
		return (int)syscall(SYS_accept4, fd, address, size, flags);
	errno = EMFILE; /* whether or not a connection waits */
	return -1;
}

static void wake_up(void)
{
	atomic_store(&asleep, false);
	while (atomic_load(&is_asleep))
		sched_yield();
}

/* With no limit, and with nothing that wakes it. */
static bool sleeps_for_ever(void)
{
	struct epoll_event event;

	return atomic_load(&limit_ms) < 0 && await_events(atomic_load(&readiness_set), &event, 1, 0) == 0;
}

/* Until wake_up, and after that until something wakes the control thread. */
static void fall_asleep(void)
{
	for (;;) {
		atomic_store(&asleep, true);
		while (!atomic_load(&is_asleep))
			sched_yield();
		if (sleeps_for_ever())
			return;
		wake_up();
		sched_yield();
	}
}

/* ---- connections ---- */

static void connections_are_made_while_the_control_thread_sleeps(void)
{
	struct oneself ends[20];

	for (int i = 0; i < 20; i++) {
		ends[i] = connect_to_oneself(&client);
		check(atomic_load(&is_asleep));
	}
	wake_up();
	for (int i = 0; i < 20; i++) {
		send_to_oneself(&client, ends[i]);
		close_to_oneself(&client, ends[i]);
	}
}

static int silent_socket(void)
{
	const struct sockaddr_storage where = bnet_engine.listeners[0].addr;
	int fd = socket(where.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);

	check_int(connect(fd, (const struct sockaddr *)&where, sizeof(struct sockaddr_in)), 0);
	return fd;
}

/* Without another call of this process. */
static void await_inbound(int count)
{
	while (inbound_connections() != count)
		sched_yield();
}

/* A caller accepts a socket that says nothing, and does not look at it again. */
static void a_silent_socket_is_dropped(void)
{
	char handle[NCCL_NET_HANDLE_MAXSIZE] = {0};
	void *listen, *comm = NULL;
	int fd;

	check_int(bnet_client_listen(&client, 0, handle, &listen), ncclSuccess);
	fall_asleep();
	check_int(bnet_client_accept(&client, listen, &comm), ncclSuccess);
	fd = silent_socket();
	while (inbound_connections() == 0)
		check_int(bnet_client_accept(&client, listen, &comm), ncclSuccess);
	check(comm == NULL);
	bnet_engine_lock();
	bnet_entry(bnet_engine.inbound.next, struct bnet_watch, node)->deadline_ms = 1; /* its 10 s are over */
	bnet_engine_unlock();
	wake_up();
	await_inbound(0);
	close(fd);
	check_int(bnet_client_close_listen(&client, listen), ncclSuccess);
}

/* What the only attempt has come to. */
static struct bnet_setup attempt(void)
{
	struct bnet_setup setup;

	bnet_engine_lock();
	setup = bnet_entry(bnet_engine.attempts.next, struct bnet_conn, setup.pending)->setup;
	bnet_engine_unlock();
	return setup;
}

/* A caller begins, and does not ask again. */
static void a_try_without_an_answer_ends(void)
{
	char handle[NCCL_NET_HANDLE_MAXSIZE] = {0};
	struct bnet_wire_handle named;
	socklen_t size = sizeof(named.addr);
	void *object, *comm = NULL;
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	check_int(bnet_client_listen(&client, 0, handle, &object), ncclSuccess);
	check_int(bnet_client_close_listen(&client, object), ncclSuccess);
	check_int(bnet_wire_handle_decode((const uint8_t *)handle, &named), 0);
	((struct sockaddr_in *)&named.addr)->sin_port = 0;
	check_int(bind(fd, (const struct sockaddr *)&named.addr, sizeof(struct sockaddr_in)), 0);
	check_int(listen(fd, 1), 0);
	check_int(getsockname(fd, (struct sockaddr *)&named.addr, &size), 0);
	bnet_wire_handle_encode((uint8_t *)handle, &named);
	fall_asleep();
	check_int(bnet_client_connect(&client, 0, handle, &comm), ncclSuccess);
	check(comm == NULL);
	bnet_engine_lock();
	bnet_entry(bnet_engine.connectors.next, struct bnet_watch, node)->deadline_ms = 1; /* its time is over */
	bnet_engine_unlock();
	wake_up();
	while (attempt().last_error == 0)
		sched_yield();
	close(fd);
}

/* Callers that begin, and do something else then. */
static void the_control_thread_finishes_what_they_begin(void)
{
	char handle[NCCL_NET_HANDLE_MAXSIZE] = {0};
	struct oneself ends = {NULL, NULL};
	void *listen;
	int fd;

	check_int(bnet_client_listen(&client, 0, handle, &listen), ncclSuccess);
	fall_asleep();
	check_int(bnet_client_connect(&client, 0, handle, &ends.send), ncclSuccess);
	while (!ends.recv)
		check_int(bnet_client_accept(&client, listen, &ends.recv), ncclSuccess);
	wake_up();
	while (!ends.send && !attempt().ready)
		sched_yield();
	while (!ends.send)
		check_int(bnet_client_connect(&client, 0, handle, &ends.send), ncclSuccess);
	fall_asleep();
	fd = silent_socket();
	wake_up();
	await_inbound(1);
	close(fd);
	await_inbound(0);
	check_int(bnet_client_close_listen(&client, listen), ncclSuccess);
	close_to_oneself(&client, ends);
}

/* A rank that waits for a late one is not to end since something else has all descriptors meanwhile. */
static void a_shortage_without_a_connection_is_none(void)
{
	char handle[NCCL_NET_HANDLE_MAXSIZE] = {0};
	void *listen, *comm = NULL;

	check_int(bnet_client_listen(&client, 0, handle, &listen), ncclSuccess);
	fall_asleep();
	atomic_store(&short_of_descriptors, true);
	for (int i = 0; i < 100; i++)
		check_int(bnet_client_accept(&client, listen, &comm), ncclSuccess);
	bnet_engine_lock();
	check_int(bnet_engine.listeners[0].short_since_ms, 0);
	bnet_engine_unlock();
	atomic_store(&short_of_descriptors, false);
	wake_up();
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
	check_int(bnet_listeners_error(((const struct bnet_listen *)listen)->dev, 0), 0);
	wake_up();
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
	a_silent_socket_is_dropped();
	the_control_thread_finishes_what_they_begin();
	a_shortage_without_a_connection_is_none();
	a_shortage_that_is_over_is_forgotten();
	a_try_without_an_answer_ends();
	close_to_oneself(&client, first);
	check_int(bnet_client_finalize(&client), ncclSuccess);
	return 0;
}
