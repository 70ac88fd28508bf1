/* SPDX-License-Identifier: MIT
 *
 * Many sockets that drain at once: an event of one socket must not make the control thread read all of them. Many
 * senders whose end has come later than their close: without workers none waits for the others.
 */
#include <errno.h>
#include <netinet/in.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "bagua_net.h"
#include "check.h"
#include "common/clock.h"
#include "base/counters.h"
#include "base/socket.h"
#include "control/control.h"
#include "control/lifecycle.h"
#include "engine/engine.h"
#include "handshake/close.h"
#include "transport/conn.h"
#include "transport/worker.h"

#define DEADLINE_S 250
#define SOCKETS 200
#define CLOSED 100
#define TICK_MS 10 /* the minimum between two passes over all of them */

/* ---- interposed on the library's reads ---- */

static _Atomic uint64_t reads, bytes;

ssize_t recv(int fd, void *buffer, size_t size, int flags)
{
	ssize_t n = syscall(SYS_recvfrom, fd, buffer, size, flags, NULL, NULL);

	atomic_fetch_add(&reads, 1);
	if (n > 0)
		atomic_fetch_add(&bytes, (uint64_t)n);
	return n;
}

/* ---- sockets ---- */

/* Opens two sockets, connected to each other over the loopback interface. */
static void open_pair(int listener, int *ours, int *peers)
{
	struct sockaddr_in addr;
	socklen_t size = sizeof(addr);

	check_int(getsockname(listener, (struct sockaddr *)&addr, &size), 0);
	*peers = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	check_int(connect(*peers, (struct sockaddr *)&addr, size), 0);
	*ours = bnet_fd_opened(accept(listener, NULL, NULL));
	check(*ours >= 0);
}

static uint64_t descriptors(void)
{
	bnet_counters_t counters;

	bnet_counters(&counters);
	return counters.descriptors;
}

/* ---- the test ---- */

/* Waits until `count` bytes were discarded or the drains have timed out. Under the lock. */
static void wait_for_bytes(uint64_t count)
{
	while (atomic_load(&bytes) < count && !bnet_list_empty(&bnet_engine.drains)) {
		bnet_engine_unlock();
		sched_yield();
		bnet_engine_lock();
	}
}

/* The peers send one byte each, one after the other, to sockets that drain. Each wakes the control thread. */
static void each_socket_is_read_separately(const int *ours, const int *peers)
{
	uint64_t started, ticks;

	bnet_engine_lock();
	check_int(bnet_control_start(), 0);
	for (int i = 0; i < SOCKETS; i++)
		bnet_drain_socket(ours[i], false);
	atomic_store(&reads, 0);
	started = bnet_now_ms();
	for (int i = 0; i < SOCKETS && !bnet_list_empty(&bnet_engine.drains); i++) {
		check_int(send(peers[i], "x", 1, MSG_NOSIGNAL), 1);
		wait_for_bytes((uint64_t)i + 1);
	}
	ticks = (bnet_now_ms() - started) / TICK_MS + 2;
	/* For each socket the byte and an empty read; and one pass over all of them on each tick. */
	check(reads <= SOCKETS * (3 + ticks));
	bnet_engine_unlock();
}

static void all_drains_end(const int *peers)
{
	for (int i = 0; i < SOCKETS; i++)
		close(peers[i]);
	bnet_engine_lock();
	while (bnet_engine.running)
		bnet_engine_wait(1000);
	bnet_engine_unlock();
	check_int(descriptors(), 0);
}

static void all_that_are_over_end_in_one_look(void)
{
	bnet_workers_want(0);
	for (int i = 0; i < CLOSED; i++) {
		struct bnet_conn *conn =
			bnet_conn_new(true, bnet_device_get(&bnet_engine.devices, 0), &bnet_engine.config, false);

		check(conn != NULL);
		atomic_store(&conn->error, -ECONNRESET);
		bnet_list_add(&bnet_engine.closed, &conn->setup.pending);
	}
	bnet_lifecycle_end_closed();
	check(bnet_list_empty(&bnet_engine.closed));
	check_int(atomic_load(&bnet_counts.connections), 0);
}

int main(void)
{
	int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	int ours[SOCKETS], peers[SOCKETS];

	setenv("NCCL_SOCKET_IFNAME", "lo", 1);
	alarm(DEADLINE_S);
	check_int(listen(listener, 1), 0);
	check_int(bnet_lifecycle_configure(), 0);
	all_that_are_over_end_in_one_look();
	for (int i = 0; i < SOCKETS; i++)
		open_pair(listener, &ours[i], &peers[i]);
	each_socket_is_read_separately(ours, peers);
	all_drains_end(peers);
	close(listener);
	return 0;
}
