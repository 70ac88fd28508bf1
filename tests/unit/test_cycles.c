/* SPDX-License-Identifier: MIT
 *
 * Connections that are made, moved on and closed, one after another, while their streams are reset at any time: every
 * message arrives, and no descriptor, thread or byte is left.
 *
 *   test_cycles [CYCLES]
 */
#include <dirent.h>
#include <limits.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "../sanitize.h"
#include "bagua_net.h"
#include "base/socket.h"
#include "engine/engine.h"
#include "oneself.h"
#include "transport/conn.h"
#include "transport/progress.h"

#define DEADLINE_S 3000 /* of 10,000 cycles under a sanitizer */
#define USUAL 60
#define NIGHTLY 1000 /* a minute: most cycles wait for a repair */
#define WARM_UP 20
/* What an allocator may keep for itself, whatever the number of cycles. */
#define SLACK (256 << 10)
#define SMALL 1000
#define LARGE 400000

static struct bnet_client client;
static char from[LARGE], into[LARGE];

static uint32_t any(uint32_t below)
{
	static uint64_t state = 1;

	state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
	return (uint32_t)(state >> 33) % below;
}

/* ---- interposed ---- */

static _Atomic(struct bnet_conn *) polled; /* changes under the engine's lock */

/* A stream is in place from here on: its owner may pass, and frees the one before it, while the control thread is
 * about to note that. glibc notes who holds a mutex. */
int epoll_ctl(int epoll, int op, int fd, struct epoll_event *event)
{
	const int rc = (int)syscall(SYS_epoll_ctl, epoll, op, fd, event);

	if (op == EPOLL_CTL_MOD && bnet_engine.lock.__data.__owner == (int)syscall(SYS_gettid) && polled)
		bnet_progress_inline(polled);
	return rc;
}

static void poll_between(struct bnet_conn *conn)
{
	bnet_engine_lock();
	polled = conn;
	bnet_engine_unlock();
}

/* ---- cycles ---- */

/* One of its streams, at this end. The other end hears of it. */
static void reset_one(void *comm)
{
	struct bnet_conn *conn = comm;

	bnet_engine_lock();
	if (conn->nstreams)
		bnet_socket_reset(conn->streams[any((uint32_t)conn->nstreams)]->fd);
	bnet_engine_unlock();
}

static void pass(struct oneself ends, size_t size)
{
	memset(into, 0, size);
	from[any((uint32_t)size)]++;
	pass_to_oneself(&client, ends, from, into, size);
	check(memcmp(from, into, size) == 0);
}

/* The sends are done, and what one of them has lost is not repaired yet when its connection is closed. */
static void close_beside_a_repair(struct oneself ends)
{
	void *send, *receive;
	int done[2] = {0, 0};

	check_int(bnet_client_irecv(&client, ends.recv, into, SMALL, 0, NULL, &receive), ncclSuccess);
	check_int(bnet_client_isend(&client, ends.send, from, SMALL, 0, NULL, &send), ncclSuccess);
	for (; !done[0]; sched_yield())
		check_int(bnet_client_test(&client, send, &done[0], NULL), ncclSuccess);
	reset_one(ends.send);
	check_int(bnet_client_close_send(&client, ends.send), ncclSuccess);
	for (; !done[1]; sched_yield())
		check_int(bnet_client_test(&client, receive, &done[1], NULL), ncclSuccess);
	check(memcmp(from, into, SMALL) == 0);
	check_int(bnet_client_close_recv(&client, ends.recv), ncclSuccess);
}

static void cycle(void)
{
	struct oneself ends = connect_to_oneself(&client);

	poll_between(ends.send);
	for (int message = 0; message < 3; message++) {
		if (any(2))
			reset_one(any(2) ? ends.send : ends.recv);
		pass(ends, any(2) ? SMALL : LARGE);
	}
	poll_between(NULL);
	if (any(3) == 0)
		close_beside_a_repair(ends);
	else
		close_to_oneself(&client, ends);
}

static int entries(const char *path)
{
	DIR *directory = opendir(path);
	int count = 0;

	check(directory != NULL);
	while (readdir(directory))
		count++;
	closedir(directory);
	return count - 3; /* with "." and ".." and, of descriptors, its own */
}

struct left {
	int descriptors, threads;
	size_t bytes;
};

/* Once nothing is being closed any more: the control thread has ended, and there are no more threads than before. */
static struct left what_is_left(int most_threads)
{
	while (entries("/proc/self/task") > most_threads || control_runs())
		usleep(1000);
	malloc_trim(0);
	return (struct left){
		.descriptors = entries("/proc/self/fd"),
		.threads = entries("/proc/self/task"),
		.bytes = mallinfo2().uordblks,
	};
}

int main(int argc, char **argv)
{
	const int cycles = argc > 1 ? atoi(argv[1]) : is_nightly() ? NIGHTLY : USUAL;
	struct left before, after;

	setenv("NCCL_SOCKET_IFNAME", "lo", 1);
	setenv("BAGUA_NET_MIN_NSTREAMS", "3", 1);
	setenv("BAGUA_NET_NSTREAMS", "3", 1);
	alarm(DEADLINE_S);
	check_int(bnet_client_init(&client, bnet_net_table(12), 12, print_warnings), ncclSuccess);
	for (int i = 0; i < WARM_UP; i++)
		cycle();
	before = what_is_left(INT_MAX);
	for (int i = 0; i < cycles; i++)
		cycle();
	after = what_is_left(before.threads);
	printf("%d cycles: %d descriptors, %d threads, %zu bytes before and %d, %d, %zu after\n", cycles,
	       before.descriptors, before.threads, before.bytes, after.descriptors, after.threads, after.bytes);
	check_int(after.descriptors, before.descriptors);
#if !defined(SANITIZE_ADDRESS) && !defined(SANITIZE_THREAD) /* they have an allocator of their own */
	check(after.bytes <= before.bytes + SLACK);
#endif
	check_int(bnet_client_finalize(&client), ncclSuccess);
	return 0;
}
