/* SPDX-License-Identifier: MIT
 *
 * How long a connect is tried and kept: refusals are retried for a minute, those of this machine for a second, a peer
 * that does not answer is tried until the time limit, and a connection that nobody asks for any more is given up after
 * ten minutes. The clock is interposed and turned on.
 */
#include <errno.h>
#include <netinet/in.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "bagua_net.h"
#include "base/log.h"
#include "engine/engine.h"
#include "oneself.h"
#include "transport/conn.h"
#include "wire/wire.h"

#define DEADLINE_S 250
#define LIMIT_S 3600

static struct bnet_client client;

/* ---- interposed ---- */

static _Atomic uint64_t turned_on_s, connects;
static _Atomic bool bound_have_no_route;

int clock_gettime(clockid_t clock, struct timespec *now)
{
	int rc = (int)syscall(SYS_clock_gettime, clock, now);

	now->tv_sec += (time_t)atomic_load(&turned_on_s);
	return rc;
}

static bool is_bound(int fd)
{
	struct sockaddr_in own = {0};
	socklen_t size = sizeof(own);

	return getsockname(fd, (struct sockaddr *)&own, &size) == 0 && own.sin_addr.s_addr != 0;
}

int connect(int fd, const struct sockaddr *addr, socklen_t size)
{
	if (addr->sa_family == AF_INET)
		atomic_fetch_add(&connects, 1);
	if (atomic_load(&bound_have_no_route) && addr->sa_family == AF_INET && is_bound(fd)) {
		errno = ENETUNREACH;
		return -1;
	}
	return (int)syscall(SYS_connect, fd, addr, size);
}

static void turn_on(uint64_t seconds)
{
	atomic_fetch_add(&turned_on_s, seconds);
	bnet_engine_lock();
	bnet_engine_wake();
	bnet_engine_unlock();
}

/* ---- refusals ---- */

static int listener(void)
{
	return bnet_engine.listeners[0].fd;
}

static void await_connects(uint64_t more)
{
	uint64_t before = atomic_load(&connects);

	while (atomic_load(&connects) < before + more)
		sched_yield();
}

static struct bnet_conn *only_attempt(void)
{
	return bnet_entry(bnet_engine.attempts.next, struct bnet_conn, setup.pending);
}

/* A listening socket that is shut down refuses. local: as between two processes of this machine. */
static void *begin_refused(char *handle, void **listen_comm, bool local)
{
	void *comm;

	memset(handle, 0, NCCL_NET_HANDLE_MAXSIZE);
	check_int(bnet_client_listen(&client, 0, handle, listen_comm), ncclSuccess);
	check_int(shutdown(listener(), SHUT_RDWR), 0);
	check_int(bnet_client_connect(&client, 0, handle, &comm), ncclSuccess);
	bnet_engine_lock();
	only_attempt()->setup.local = local;
	bnet_engine_unlock();
	await_connects(2);
	return comm;
}

static void refusals_are_retried_for_a_minute(void)
{
	char handle[NCCL_NET_HANDLE_MAXSIZE];
	struct oneself ends = {NULL, NULL};
	void *listen_comm;

	ends.send = begin_refused(handle, &listen_comm, false);
	turn_on(45);
	await_connects(2);
	check_int(bnet_client_connect(&client, 0, handle, &ends.send), ncclSuccess);
	check(ends.send == NULL);
	check_int(listen(listener(), 10), 0);
	while (!ends.send || !ends.recv) {
		if (!ends.send)
			check_int(bnet_client_connect(&client, 0, handle, &ends.send), ncclSuccess);
		if (!ends.recv)
			check_int(bnet_client_accept(&client, listen_comm, &ends.recv), ncclSuccess);
	}
	check_int(bnet_client_close_listen(&client, listen_comm), ncclSuccess);
	close_to_oneself(&client, ends);
}

static void and_no_longer(bool local)
{
	char handle[NCCL_NET_HANDLE_MAXSIZE];
	ncclResult_t result = ncclSuccess;
	void *listen_comm, *comm;

	begin_refused(handle, &listen_comm, local);
	turn_on(local ? 2 : 61);
	while (result == ncclSuccess) {
		result = bnet_client_connect(&client, 0, handle, &comm);
		check(comm == NULL);
	}
	check_int(listen(listener(), 10), 0);
	check_int(bnet_client_close_listen(&client, listen_comm), ncclSuccess);
}

/* ---- binding ---- */

/* To find out anew would take each connection the time of a try without an answer. */
static void a_path_that_has_no_bound_way_is_known_from_then_on(void)
{
	struct oneself first, second;
	uint64_t before = atomic_load(&connects);

	atomic_store(&bound_have_no_route, true);
	first = connect_to_oneself(&client);
	check(atomic_load(&connects) >= before + 2);
	before = atomic_load(&connects);
	second = connect_to_oneself(&client);
	check_int(atomic_load(&connects), before + 1);
	atomic_store(&bound_have_no_route, false);
	close_to_oneself(&client, second);
	close_to_oneself(&client, first);
}

/* ---- attempts ---- */

static uint64_t connections(void)
{
	bnet_counters_t counters;

	bnet_counters(&counters);
	return counters.connections;
}

/* How often the control thread has looked at the only attempt; -1: it is gone. */
static int looks(void)
{
	int count = -1;

	bnet_engine_lock();
	if (!bnet_list_empty(&bnet_engine.attempts))
		count = only_attempt()->setup.looks;
	bnet_engine_unlock();
	return count;
}

/* Ten seconds pass until the next look. */
static void await_look(void)
{
	int before = looks();

	check(before >= 0);
	turn_on(10);
	while (looks() == before)
		sched_yield();
}

/* Another program's socket, with a handle that names it: the kernel takes the connection, and nobody answers. */
static int listen_silently(char *handle)
{
	struct sockaddr_in addr = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	struct bnet_wire_handle named = {.version = BNET_WIRE_VERSION};
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	socklen_t size = sizeof(addr);

	check_int(bind(fd, (struct sockaddr *)&addr, sizeof(addr)), 0);
	check_int(listen(fd, 10), 0);
	check_int(getsockname(fd, (struct sockaddr *)&addr, &size), 0);
	memcpy(&named.addr, &addr, sizeof(addr));
	bnet_wire_handle_encode((uint8_t *)handle, &named);
	return fd;
}

static void a_peer_that_does_not_answer_is_tried_until_the_limit(void)
{
	char handle[NCCL_NET_HANDLE_MAXSIZE] = {0};
	int fd = listen_silently(handle);
	ncclResult_t result = ncclSuccess;
	void *comm;

	check_int(bnet_client_connect(&client, 0, handle, &comm), ncclSuccess);
	turn_on(LIMIT_S - 30);
	await_look();
	check_int(bnet_client_connect(&client, 0, handle, &comm), ncclSuccess);
	turn_on(25);
	await_look(); /* of the control thread, after which the attempt has failed */
	result = bnet_client_connect(&client, 0, handle, &comm);
	check(result != ncclSuccess && comm == NULL);
	close(fd);
}

/* It may well be connected: an aborted communicator never asks. A receiver is kept, since its rank may be late. */
static void an_attempt_that_nobody_asks_for_is_given_up(void)
{
	char handle[NCCL_NET_HANDLE_MAXSIZE] = {0};
	void *listen_comm, *comm;

	check_int(bnet_client_listen(&client, 0, handle, &listen_comm), ncclSuccess);
	check_int(bnet_client_connect(&client, 0, handle, &comm), ncclSuccess);
	check(comm == NULL);
	while (connections() < 2) /* the receiver */
		sched_yield();
	while (looks() < 59)
		await_look();
	check_int(connections(), 2);
	await_look();
	while (connections() == 2)
		sched_yield();
	check_int(connections(), 1);
	check_int(bnet_client_close_listen(&client, listen_comm), ncclSuccess);
	check_int(connections(), 0);
}

static void one_that_somebody_asks_for_is_not(void)
{
	char handle[NCCL_NET_HANDLE_MAXSIZE] = {0};
	struct oneself ends = {NULL, NULL};
	void *listen_comm;

	ends.send = begin_refused(handle, &listen_comm, false);
	for (int i = 0; i < 5; i++) {
		await_look();
		check_int(bnet_client_connect(&client, 0, handle, &ends.send), ncclSuccess);
	}
	check(looks() <= 1);
	check_int(listen(listener(), 10), 0);
	while (!ends.send)
		check_int(bnet_client_connect(&client, 0, handle, &ends.send), ncclSuccess);
	check(bnet_list_empty(&bnet_engine.attempts));
	check_int(bnet_client_close_send(&client, ends.send), ncclSuccess);
	check_int(bnet_client_close_listen(&client, listen_comm), ncclSuccess);
}

/* ---- nobody connects ---- */

static int warnings, on_stderr;

static void count_warnings(ncclDebugLogLevel level, unsigned long flags, const char *file, int line, const char *fmt,
			   ...)
{
	(void)file, (void)line, (void)fmt;
	warnings += level == NCCL_LOG_WARN;
	on_stderr += level == NCCL_LOG_WARN && flags == BNET_WAITS;
}

static void wait_to_accept(void *listen_comm, uint64_t seconds)
{
	void *comm = NULL;

	turn_on(seconds);
	check_int(bnet_client_accept(&client, listen_comm, &comm), ncclSuccess);
	check(comm == NULL);
}

/* A rank that is late for some seconds is told to the logger only; after a minute, also where NCCL_DEBUG is not set. */
static void a_peer_that_does_not_come_is_told(void)
{
	char handle[NCCL_NET_HANDLE_MAXSIZE] = {0};
	void *listen_comm;

	check_int(bnet_client_listen(&client, 0, handle, &listen_comm), ncclSuccess);
	bnet_log_set(count_warnings);
	wait_to_accept(listen_comm, 0);
	check_int(warnings, 0);
	wait_to_accept(listen_comm, 15);
	check_int(warnings, 1);
	wait_to_accept(listen_comm, 30);
	check_int(warnings, 2);
	check_int(on_stderr, 0);
	wait_to_accept(listen_comm, 60);
	check_int(warnings, 3);
	check_int(on_stderr, 1);
	bnet_log_set(print_warnings);
	check_int(bnet_client_close_listen(&client, listen_comm), ncclSuccess);
}

int main(void)
{
	setenv("NCCL_SOCKET_IFNAME", "=lo", 1);
	setenv("NCCL_SOCKET_FAMILY", "AF_INET", 1);
	setenv("BAGUA_NET_CONNECT_TIMEOUT", "3600", 1);   /* LIMIT_S */
	setenv("BAGUA_NET_PORT_RANGE", "23000-23999", 1); /* so that the listener keeps its port */
	alarm(DEADLINE_S);
	check_int(bnet_client_init(&client, bnet_net_table(12), 12, print_warnings), ncclSuccess);
	refusals_are_retried_for_a_minute();
	and_no_longer(false);
	and_no_longer(true);
	a_path_that_has_no_bound_way_is_known_from_then_on();
	a_peer_that_does_not_answer_is_tried_until_the_limit();
	an_attempt_that_nobody_asks_for_is_given_up();
	one_that_somebody_asks_for_is_not();
	a_peer_that_does_not_come_is_told();
	check_int(bnet_client_finalize(&client), ncclSuccess);
	return 0;
}
