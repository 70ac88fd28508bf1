/* SPDX-License-Identifier: MIT
 *
 * Scenarios about many streams and about limits: streams that join while data moves, errors that must get past a closed
 * window, descriptors that run out, and a message whose length does not fit into 32 bits.
 */
#include "drive_contract.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define MIB ((size_t)1 << 20)

/* ---- streams that join while data moves ---- */

/* Interposes on the library's calls. A thread may be preempted right after it hands a descriptor to epoll; here it
 * always is, so that a thread that polls meanwhile sees the events of that descriptor. */
static bool preempted;

int epoll_ctl(int epoll, int op, int fd, struct epoll_event *event)
{
	int (*next)(int, int, int, struct epoll_event *);
	int rc;

	*(void **)&next = dlsym(RTLD_NEXT, "epoll_ctl");
	rc = next(epoll, op, fd, event);
	if (preempted)
		nanosleep(&(struct timespec){.tv_nsec = 300000}, NULL);
	return rc;
}

#define JOINING 64
#define TURNS 3
#define BUSY 4 /* messages of BUSY_SIZE: more than all streams' buffers hold */
#define BUSY_SIZE (8 * MIB)

/* Messages are posted as soon as the connection is open, and tested until the last stream has joined. */
static void join_busy(struct contract *c)
{
	int before = contract_count_descriptors(), done = 0;
	struct region region = contract_map(c, contract_connect_to_peer(c), BUSY * BUSY_SIZE);
	void *requests[BUSY];

	for (size_t i = 0; i < BUSY; i++) {
		struct drive_stamp stamp = contract_stamp(i);

		drive_fill(region.data + i * BUSY_SIZE, BUSY_SIZE, &stamp);
		requests[i] = contract_isend(c, &region, i * BUSY_SIZE, BUSY_SIZE);
	}
	while (contract_count_descriptors() < before + JOINING)
		for (int i = 0; i < 100; i++) {
			drive_ok(bnet_client_test(&c->client, requests[BUSY - 1], &done, NULL));
			drive_check(!done, "sent without a receive");
		}
	contract_tell(c, 'r');
	for (size_t i = 0; i < BUSY; i++)
		contract_wait(c, requests[i]);
	contract_unmap(c, &region);
	drive_ok(bnet_client_close_send(&c->client, region.comm));
	while (contract_count_descriptors() > before)
		contract_nap();
}

static void set_streams(const char *count)
{
	setenv("BAGUA_NET_NSTREAMS", count, 1);
	setenv("BAGUA_NET_MIN_NSTREAMS", count, 1);
}

static void streams_join_busy(struct contract *c)
{
	preempted = true;
	set_streams("64");
	contract_load(c);
	for (int turn = 0; turn < TURNS; turn++)
		join_busy(c);
	contract_finalize(c);
}

static void streams_join_busy_peer(struct contract *c)
{
	set_streams("64");
	contract_load(c);
	for (int turn = 0; turn < TURNS; turn++) {
		void *comm = contract_accept_from_peer(c);

		contract_await(c, 'r');
		for (uint64_t i = 0; i < BUSY; i++)
			contract_recv_stamped(c, comm, BUSY_SIZE, i);
		drive_ok(bnet_client_close_recv(&c->client, comm));
	}
	contract_finalize(c);
}

/* ---- a receiver that pauses ---- */

#define PAUSE_S 2.5
#define PAUSED 6 /* messages of BUSY_SIZE */

/* All streams are full, and the sender keeps testing. No stream may be given up for that. */
static void receiver_pauses(struct contract *c)
{
	struct region region;
	void *requests[PAUSED];
	double until;

	set_streams("4");
	contract_load(c);
	region = contract_map(c, contract_connect_to_peer(c), PAUSED * BUSY_SIZE);
	for (size_t i = 0; i < PAUSED; i++) {
		struct drive_stamp stamp = contract_stamp(i);

		drive_fill(region.data + i * BUSY_SIZE, BUSY_SIZE, &stamp);
		requests[i] = contract_isend(c, &region, i * BUSY_SIZE, BUSY_SIZE);
	}
	contract_wait(c, requests[0]); /* the streams carry, and their rates are known */
	for (until = drive_now() + PAUSE_S; drive_now() < until;) {
		int done = 0;

		drive_ok(bnet_client_test(&c->client, requests[PAUSED - 1], &done, NULL));
		drive_check(!done, "sent without a receive");
	}
	contract_tell(c, 'r');
	for (size_t i = 1; i < PAUSED; i++)
		contract_wait(c, requests[i]);
	contract_unmap(c, &region);
	drive_ok(bnet_client_close_send(&c->client, region.comm));
	contract_finalize(c);
}

static void receiver_pauses_peer(struct contract *c)
{
	void *comm;

	set_streams("4");
	/* Otherwise the kernel may grow the buffer after the first messages until everything fits. */
	setenv("BAGUA_NET_RCVBUF", "1M", 1);
	contract_load(c);
	comm = contract_accept_from_peer(c);
	for (uint64_t i = 0; i < PAUSED; i++) {
		if (i == 2)
			contract_await(c, 'r');
		contract_recv_stamped(c, comm, BUSY_SIZE, i);
	}
	drive_ok(bnet_client_close_recv(&c->client, comm));
	contract_finalize(c);
}

/* ---- an error against a closed window ---- */

/* The receiver fails on a message and keeps its end open, while the sender's streams are full of that message. */
static void truncate_large(struct contract *c, int streams)
{
	int before, done = 0;
	struct region from, to;
	struct pair pair;
	void *request;

	contract_load(c);
	before = contract_count_descriptors();
	pair = contract_pair(c);
	from = contract_map(c, pair.send, 64 * MIB);
	to = contract_map(c, pair.recv, 4096);
	request = contract_isend(c, &from, 0, from.size);
	while (contract_count_descriptors() < before + 2 * streams)
		contract_nap();
	for (int i = 0; i < 1000; i++)
		drive_ok(bnet_client_test(&c->client, request, &done, NULL));
	drive_check(!done, "sent without a receive");
	contract_wait_error(c, contract_irecv(c, &to, 0, to.size));
	contract_wait_error(c, request);
	contract_unmap(c, &from);
	contract_unmap(c, &to);
	contract_close_pair(c, pair);
	contract_finalize(c);
}

static void truncation_reaches_sender(struct contract *c)
{
	set_streams("1");
	truncate_large(c, 1);
}

static void truncation_reaches_sender_by_streams(struct contract *c)
{
	set_streams("4");
	truncate_large(c, 4);
}

/* ---- descriptors ---- */

#define FEW 64      /* the limit of open files */
#define INBOUND 200 /* connections that never send HELLO */

static void limit_descriptors(rlim_t count)
{
	struct rlimit limit = {count, count};

	if (setrlimit(RLIMIT_NOFILE, &limit) != 0)
		drive_fail("setrlimit: %m");
}

/* The host process opens count files at once. */
static void open_files(int count)
{
	int fds[FEW];

	for (int i = 0; i < count; i++) {
		fds[i] = open("/dev/null", O_RDONLY | O_CLOEXEC);
		drive_check(fds[i] >= 0, "the process cannot open its file %d: %m", i);
	}
	for (int i = 0; i < count; i++)
		close(fds[i]);
}

static bool told(struct contract *c)
{
	char what;

	return recv(c->control, &what, 1, MSG_PEEK | MSG_DONTWAIT) == 1;
}

/* Connections that never send HELLO take at most an eighth of the descriptors. Meanwhile a connection works and a new
 * one opens. */
static void rejected_beyond_limit(struct contract *c)
{
	unsigned char handle[NCCL_NET_HANDLE_MAXSIZE];
	struct pair running, fresh;
	void *listen_comm;

	limit_descriptors(FEW);
	set_streams("2");
	contract_load(c);
	running = contract_pair(c);
	listen_comm = contract_listen(c, handle);
	contract_give(c, handle, sizeof(handle));
	while (!told(c)) {
		contract_exchange(c, running, 4097);
		open_files(FEW / 4);
	}
	contract_await(c, 'd');
	contract_exchange(c, running, 300000);
	contract_close_pair(c, running);
	fresh.send = contract_connect(c, handle);
	fresh.recv = contract_accept(c, listen_comm);
	contract_exchange(c, fresh, 300000);
	contract_close_pair(c, fresh);
	drive_ok(bnet_client_close_listen(&c->client, listen_comm));
	contract_tell(c, 'x');
	contract_finalize(c);
}

/* All of them stay open until the library has closed those beyond its limit. */
static void rejected_beyond_limit_peer(struct contract *c)
{
	struct pollfd inbound[INBOUND];
	unsigned char handle[NCCL_NET_HANDLE_MAXSIZE];
	int left = INBOUND;
	char byte;

	contract_take(c, handle, sizeof(handle));
	for (int i = 0; i < INBOUND; i++)
		inbound[i] = (struct pollfd){.fd = contract_open_socket(handle), .events = POLLIN};
	while (left > FEW / 8) {
		if (poll(inbound, INBOUND, -1) < 0)
			drive_fail("poll: %m");
		for (int i = 0; i < INBOUND; i++) {
			if (!inbound[i].revents || recv(inbound[i].fd, &byte, 1, MSG_DONTWAIT) > 0)
				continue;
			close(inbound[i].fd);
			inbound[i].fd = -1;
			left--;
		}
	}
	contract_tell(c, 'd');
	contract_await(c, 'x');
}

#define ROUNDS 100

/* A peer that wants more streams than there are descriptors gets fewer, and the connection works. So does the next one,
 * which comes when half of the descriptors are in use. Meanwhile the process can open files. */
static void streams_within_limit(struct contract *c)
{
	void *comms[2];

	limit_descriptors(FEW);
	set_streams("64");
	contract_load(c);
	for (int i = 0; i < 2; i++)
		comms[i] = contract_accept_from_peer(c);
	for (uint64_t round = 0; round < ROUNDS; round++)
		for (int i = 0; i < 2; i++) {
			contract_recv_stamped(c, comms[i], MIB, round);
			open_files(FEW / 4);
		}
	for (int i = 0; i < 2; i++)
		drive_ok(bnet_client_close_recv(&c->client, comms[i]));
	contract_finalize(c);
}

static void streams_within_limit_peer(struct contract *c)
{
	void *comms[2];

	set_streams("64");
	contract_load(c);
	for (int i = 0; i < 2; i++)
		comms[i] = contract_connect_to_peer(c);
	for (uint64_t round = 0; round < ROUNDS; round++)
		for (int i = 0; i < 2; i++)
			contract_send_stamped(c, comms[i], MIB, round);
	for (int i = 0; i < 2; i++)
		drive_ok(bnet_client_close_send(&c->client, comms[i]));
	contract_finalize(c);
}

/* ---- a message longer than 32 bits can count ---- */

#define LARGE (((size_t)4 << 30) + 8 * MIB + 12345) /* several slices begin behind 4 GiB */
/* Divides no power of two, so that an offset without its upper bits hits other data. */
#define WINDOW (64 * MIB + 4096)

/* Maps one window of memory repeatedly: a large message needs little memory. */
static struct region map_windows(struct contract *c, void *comm)
{
	struct region region = {.size = LARGE / WINDOW * WINDOW + WINDOW, .comm = comm};
	int file = memfd_create("window", MFD_CLOEXEC);

	region.data = mmap(NULL, region.size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (file < 0 || ftruncate(file, (off_t)WINDOW) != 0 || region.data == MAP_FAILED)
		drive_fail("cannot make a window: %m");
	for (size_t at = 0; at < region.size; at += WINDOW)
		if (mmap(region.data + at, WINDOW, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0) ==
		    MAP_FAILED)
			drive_fail("mmap: %m");
	close(file);
	drive_ok(bnet_client_reg(&c->client, comm, region.data, region.size, NCCL_PTR_HOST, &region.mhandle));
	return region;
}

static void large_message(struct contract *c)
{
	struct drive_stamp stamp = contract_stamp(1);
	struct region from, to;
	struct pair pair;
	struct sizes sizes;
	void *sending;

	set_streams("4");
	contract_load(c);
	pair = contract_pair(c);
	from = map_windows(c, pair.send);
	to = map_windows(c, pair.recv);
	drive_fill(from.data, WINDOW, &stamp);
	sending = contract_isend(c, &from, 0, LARGE);
	sizes = contract_wait_both(c, sending, contract_irecv(c, &to, 0, LARGE + 1));
	drive_check(sizes.sent == INT_MAX && sizes.received == INT_MAX, "%d sent, %d received", sizes.sent,
		    sizes.received);
	drive_check(drive_mismatch(to.data, WINDOW, &stamp) < 0, "wrong from byte %zd of a window",
		    drive_mismatch(to.data, WINDOW, &stamp));
	contract_exchange(c, pair, 1000);
	contract_unmap(c, &from);
	contract_unmap(c, &to);
	contract_close_pair(c, pair);
	contract_finalize(c);
}

const struct scenario contract_streams_scenarios[] = {
	{"streams_join_busy", streams_join_busy, streams_join_busy_peer, 0},
	{"receiver_pauses", receiver_pauses, receiver_pauses_peer, 0},
	{"truncation_reaches_sender", truncation_reaches_sender, NULL, 0},
	{"truncation_reaches_sender_by_streams", truncation_reaches_sender_by_streams, NULL, 0},
	{"rejected_beyond_limit", rejected_beyond_limit, rejected_beyond_limit_peer, 0},
	{"streams_within_limit", streams_within_limit, streams_within_limit_peer, 0},
	{"large_message", large_message, NULL, 12},
	{NULL, NULL, NULL, 0},
};
