/* SPDX-License-Identifier: MIT
 *
 * The engine's lock is held for short times, since every listen, connect, accept and close of the process waits for it:
 * no payload is copied or discarded and no connection is freed under it, of many streams a few are opened at a time,
 * and whoever waits gets it next. What reads, writes and frees is interposed. Reads and writes of a handshake, which
 * are small, may be made under the lock.
 */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "bagua_net.h"
#include "common/clock.h"
#include "engine/engine.h"
#include "handshake/connector_state.h"
#include "oneself.h"
#include "scaling/path.h"
#include "wire/wire.h"

#define DEADLINE_S 250
#define TURNS 50
#define BYTES (4 << 20)
#define PAIRS 6
#define STREAMS 40
#define AT_A_TIME 32
/* Each try may connect a second time, without binding, and so may what the events of that round have ended. */
#define MOST_CONNECTS (4 * AT_A_TIME)
#define REFUSED 200

static struct bnet_client client;
static char from[BYTES], into[BYTES];

/* ---- interposed ---- */

static _Atomic uint64_t calls, under_lock;

/* size: bytes asked for. glibc notes who holds a mutex. */
static void look(size_t size)
{
	if (size <= BNET_WIRE_HANDSHAKE_MAX)
		return;
	atomic_fetch_add(&calls, 1);
	if (bnet_engine.lock.__data.__owner == (int)syscall(SYS_gettid))
		atomic_fetch_add(&under_lock, 1);
}

ssize_t recv(int fd, void *buffer, size_t size, int flags)
{
	look(size);
	return syscall(SYS_recvfrom, fd, buffer, size, flags, NULL, NULL);
}

ssize_t readv(int fd, const struct iovec *parts, int count)
{
	look(SIZE_MAX);
	return syscall(SYS_readv, fd, parts, count);
}

ssize_t send(int fd, const void *data, size_t size, int flags)
{
	look(size);
	return syscall(SYS_sendto, fd, data, size, flags, NULL, 0);
}

ssize_t sendmsg(int fd, const struct msghdr *message, int flags)
{
	look(SIZE_MAX);
	return syscall(SYS_sendmsg, fd, message, flags);
}

/* The C library may return tens of megabytes to the kernel. */
void __real_bnet_conn_free(struct bnet_conn *conn); /* NOLINT: the linker's names */
void __wrap_bnet_conn_free(struct bnet_conn *conn);
void __wrap_bnet_conn_free(struct bnet_conn *conn)
{
	look(SIZE_MAX);
	__real_bnet_conn_free(conn);
}

/* Connects between two sleeps of the control thread, and the most of them. */
static _Atomic int connects, most_connects, all_connects;
static pthread_t main_thread;

int connect(int fd, const struct sockaddr *addr, socklen_t size)
{
	if (addr->sa_family != AF_UNSPEC && !pthread_equal(pthread_self(), main_thread)) {
		if (atomic_fetch_add(&connects, 1) + 1 > atomic_load(&most_connects))
			atomic_store(&most_connects, atomic_load(&connects));
		atomic_fetch_add(&all_connects, 1);
	}
	return (int)syscall(SYS_connect, fd, addr, size);
}

int epoll_wait(int fd, struct epoll_event *events, int count, int timeout_ms)
{
	atomic_store(&connects, 0);
	return (int)syscall(SYS_epoll_pwait, fd, events, count, timeout_ms, NULL, 8);
}

static void begin(void)
{
	atomic_store(&calls, 0);
	atomic_store(&under_lock, 0);
}

static void check_calls(void)
{
	check(atomic_load(&calls) > 0);
	check_int(atomic_load(&under_lock), 0);
}

/* ---- scenarios ---- */

static _Atomic bool had_its_turn;

static void *take_turn(void *unused)
{
	(void)unused;
	bnet_engine_lock();
	atomic_store(&had_its_turn, true);
	bnet_engine_unlock();
	return NULL;
}

static bool somebody_waits(void)
{
	if (pthread_mutex_trylock(&bnet_engine.turnstile))
		return true;
	pthread_mutex_unlock(&bnet_engine.turnstile);
	return false;
}

/* The control thread releases the lock and takes it again: whoever waits meanwhile gets it first. */
static void who_waits_gets_the_lock(void)
{
	pthread_t thread;

	for (int i = 0; i < TURNS; i++) {
		atomic_store(&had_its_turn, false);
		bnet_engine_lock();
		check_int(pthread_create(&thread, NULL, take_turn, NULL), 0);
		while (!somebody_waits())
			sched_yield();
		bnet_engine_give_way();
		check(atomic_load(&had_its_turn));
		bnet_engine_unlock();
		pthread_join(thread, NULL);
	}
}

static uint64_t longest_wait_us(void)
{
	bnet_counters_t counters;

	bnet_counters(&counters);
	return counters.lock_wait_us;
}

/* Returns after another thread has waited for about that time, or less where it was late. */
static void make_wait(uint64_t us)
{
	pthread_t thread;
	uint64_t began;

	bnet_engine_lock();
	check_int(pthread_create(&thread, NULL, take_turn, NULL), 0);
	while (!somebody_waits())
		sched_yield();
	began = bnet_now_us();
	while (bnet_now_us() - began < us)
		sched_yield();
	bnet_engine_unlock();
	pthread_join(thread, NULL);
}

static void the_longest_wait_is_counted(void)
{
	uint64_t before = longest_wait_us();

	while (longest_wait_us() <= before)
		make_wait(2 * before + 1000);
	before = longest_wait_us();
	make_wait(0);
	check(longest_wait_us() >= before);
}

static void a_connection_is_freed_without_the_lock(void)
{
	struct oneself ends = connect_to_oneself(&client);

	begin();
	close_to_oneself(&client, ends);
	check_calls();
}

static void *map(void *comm, char *data)
{
	void *mr;

	check_int(bnet_client_reg(&client, comm, data, BYTES, NCCL_PTR_HOST, &mr), ncclSuccess);
	return mr;
}

static void unmap(void *comm, void *mr)
{
	check_int(bnet_client_dereg(&client, comm, mr), ncclSuccess);
}

/* The receiver's socket is full when it is closed. */
static void a_close_discards_without_the_lock(void)
{
	struct oneself ends = connect_to_oneself(&client);
	void *mr = map(ends.send, from), *request;

	check_int(bnet_client_isend(&client, ends.send, from, BYTES, 0, mr, &request), ncclSuccess);
	begin();
	check_int(bnet_client_close_recv(&client, ends.recv), ncclSuccess);
	check_calls();
	unmap(ends.send, mr);
	check_int(bnet_client_close_send(&client, ends.send), ncclSuccess);
}

static uint64_t received(void)
{
	bnet_counters_t counters;

	bnet_counters(&counters);
	return counters.messages_received;
}

/* Nobody polls, so the control thread moves the data. */
static void a_takeover_moves_data_without_the_lock(void)
{
	struct oneself ends = connect_to_oneself(&client);
	void *send_mr = map(ends.send, from), *recv_mr = map(ends.recv, into), *sending, *receiving;
	uint64_t before = received();

	begin();
	check_int(bnet_client_irecv(&client, ends.recv, into, BYTES, 0, recv_mr, &receiving), ncclSuccess);
	check_int(bnet_client_isend(&client, ends.send, from, BYTES, 0, send_mr, &sending), ncclSuccess);
	while (received() == before)
		sched_yield();
	check_calls();
	unmap(ends.send, send_mr);
	unmap(ends.recv, recv_mr);
	close_to_oneself(&client, ends);
}

static int streams_of(const void *comm)
{
	return atomic_load(&((const struct bnet_conn *)comm)->nstreams);
}

/* In place of the scaler, which would take some trials. */
static void use_streams(int streams)
{
	bnet_engine_lock();
	bnet_list_each(node, &bnet_engine.paths) {
		struct bnet_path *path = bnet_entry(node, struct bnet_path, node);

		bnet_scaler_init(&path->scaler, streams, streams, 1);
		bnet_path_widen(path);
	}
	bnet_engine_wake();
	bnet_engine_unlock();
}

/* A path's trial concerns all of its connections. */
static void many_streams_are_opened_a_few_at_a_time(void)
{
	struct oneself ends[PAIRS];

	for (int i = 0; i < PAIRS; i++)
		ends[i] = connect_to_oneself(&client);
	atomic_store(&most_connects, 0);
	use_streams(STREAMS);
	for (int i = 0; i < PAIRS; i++)
		while (streams_of(ends[i].send) < STREAMS)
			sched_yield();
	check(atomic_load(&most_connects) > 0);
	check(atomic_load(&most_connects) <= MOST_CONNECTS);
	for (int i = 0; i < PAIRS; i++)
		close_to_oneself(&client, ends[i]);
}

/* All the attempts wait for their next try, and its time comes for all at once. */
static bool make_all_late(void)
{
	int late = 0;

	bnet_engine_lock();
	bnet_list_each(node, &bnet_engine.connectors)
		late += bnet_entry(node, struct bnet_connector, watch.node)->state == BNET_CONNECTOR_WAITING;
	if (late == REFUSED)
		bnet_list_each(node, &bnet_engine.connectors)
			bnet_entry(node, struct bnet_connector, watch.node)->watch.deadline_ms = 1;
	atomic_store(&most_connects, 0);
	atomic_store(&all_connects, 0);
	bnet_engine_unlock();
	return late == REFUSED;
}

/* A listening socket that is shut down refuses. The finalize ends the attempts. */
static void many_retries_are_made_a_few_at_a_time(void)
{
	char handle[NCCL_NET_HANDLE_MAXSIZE] = {0}, copy[NCCL_NET_HANDLE_MAXSIZE];
	void *listen_comm, *comm;

	check_int(bnet_client_listen(&client, 0, handle, &listen_comm), ncclSuccess);
	bnet_engine_lock();
	check_int(shutdown(bnet_engine.listeners[0].fd, SHUT_RDWR), 0);
	bnet_engine_unlock();
	for (int i = 0; i < REFUSED; i++) {
		memcpy(copy, handle, sizeof(copy));
		check_int(bnet_client_connect(&client, 0, copy, &comm), ncclSuccess);
	}
	while (!make_all_late())
		sched_yield();
	while (atomic_load(&all_connects) < REFUSED)
		sched_yield();
	check(atomic_load(&most_connects) <= MOST_CONNECTS);
	check_int(bnet_client_close_listen(&client, listen_comm), ncclSuccess);
}

int main(void)
{
	setenv("NCCL_SOCKET_IFNAME", "lo", 1);
	alarm(DEADLINE_S);
	main_thread = pthread_self();
	who_waits_gets_the_lock();
	the_longest_wait_is_counted();
	check_int(bnet_client_init(&client, bnet_net_table(12), 12, print_warnings), ncclSuccess);
	a_connection_is_freed_without_the_lock();
	a_close_discards_without_the_lock();
	a_takeover_moves_data_without_the_lock();
	many_streams_are_opened_a_few_at_a_time();
	many_retries_are_made_a_few_at_a_time();
	check_int(bnet_client_finalize(&client), ncclSuccess);
	return 0;
}
