/* SPDX-License-Identifier: MIT
 *
 * Scenarios about many streams and about limits: streams that join while data moves, errors that have to get past a
 * closed window, descriptors that run out, and a message longer than 32 bits can count.
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

/* The library's calls come here first. A thread that hands a descriptor to epoll may lose its processor right then:
 * here it does, so that whoever polls meanwhile sees what was announced. */
static bool preempted;

int epoll_ctl(int epoll, int op, int fd, struct epoll_event *event)
{
	int (*next)(int, int, int, struct epoll_event *);
	int rc;

	*(void **)&next = dlsym(RTLD_NEXT, "epoll_ctl");
	rc = next(epoll, op, fd, event);
	if (preempted)
		nanosleep(&(struct timespec){ .tv_nsec = 300000 }, NULL);
	return rc;
}

#define JOINING 64
#define TURNS 3
#define BUSY 4 /* messages of BUSY_SIZE: more than all streams' buffers hold */
#define BUSY_SIZE (8 * MIB)

/* Messages are posted as soon as there is a connection, and tested until the last stream has joined. */
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
			drive_ok(bnet_client_test(&c->table, requests[BUSY - 1], &done, NULL));
			drive_check(!done, "sent without a receive");
		}
	contract_tell(c, 'r');
	for (size_t i = 0; i < BUSY; i++)
		contract_wait(c, requests[i]);
	contract_unmap(c, &region);
	drive_ok(bnet_client_close_send(&c->table, region.comm));
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
		drive_ok(bnet_client_close_recv(&c->table, comm));
	}
	contract_finalize(c);
}

/* ---- a receiver that does something else for a while ---- */

#define PAUSE_S 2.5
#define PAUSED 6 /* messages of BUSY_SIZE */

/* All streams are full and the sender keeps asking: none of them may be given up for that. */
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
	contract_wait(c, requests[0]); /* the streams carry, and how much is known */
	for (until = drive_now() + PAUSE_S; drive_now() < until;) {
		int done = 0;

		drive_ok(bnet_client_test(&c->table, requests[PAUSED - 1], &done, NULL));
		drive_check(!done, "sent without a receive");
	}
	contract_tell(c, 'r');
	for (size_t i = 1; i < PAUSED; i++)
		contract_wait(c, requests[i]);
	contract_unmap(c, &region);
	drive_ok(bnet_client_close_send(&c->table, region.comm));
	contract_finalize(c);
}

static void receiver_pauses_peer(struct contract *c)
{
	void *comm;

	set_streams("4");
	/* By itself the kernel may take all that is to come, once it has seen the first messages. */
	setenv("BAGUA_NET_RCVBUF", "1M", 1);
	contract_load(c);
	comm = contract_accept_from_peer(c);
	for (uint64_t i = 0; i < PAUSED; i++) {
		if (i == 2)
			contract_await(c, 'r');
		contract_recv_stamped(c, comm, BUSY_SIZE, i);
	}
	drive_ok(bnet_client_close_recv(&c->table, comm));
	contract_finalize(c);
}

/* ---- an error against a closed window ---- */

/* The receiver refuses a message and keeps its end open; the sender's streams are full of it. */
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
		drive_ok(bnet_client_test(&c->table, request, &done, NULL));
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

#define FEW 64 /* the limit of open files */
#define STRANGERS 200

static void limit_descriptors(rlim_t count)
{
	struct rlimit limit = { count, count };

	if (setrlimit(RLIMIT_NOFILE, &limit) != 0)
		drive_fail("setrlimit: %m");
}

/* The host process opens that many files at once. */
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

/* Strangers take an eighth of the descriptors at the most, while a connection works and a new one opens. */
static void strangers_beyond_limit(struct contract *c)
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
	drive_ok(bnet_client_close_listen(&c->table, listen_comm));
	contract_tell(c, 'x');
	contract_finalize(c);
}

/* All of them stay until the library has hung up on every one that is too many. */
static void strangers_beyond_limit_peer(struct contract *c)
{
	struct pollfd rejected[STRANGERS];
	unsigned char handle[NCCL_NET_HANDLE_MAXSIZE];
	int there = STRANGERS;
	char byte;

	contract_take(c, handle, sizeof(handle));
	for (int i = 0; i < STRANGERS; i++)
		rejected[i] = (struct pollfd){ .fd = contract_dial(handle), .events = POLLIN };
	while (there > FEW / 8) {
		if (poll(rejected, STRANGERS, -1) < 0)
			drive_fail("poll: %m");
		for (int i = 0; i < STRANGERS; i++) {
			if (!rejected[i].revents || recv(rejected[i].fd, &byte, 1, MSG_DONTWAIT) > 0)
				continue;
			close(rejected[i].fd);
			rejected[i].fd = -1;
			there--;
		}
	}
	contract_tell(c, 'd');
	contract_await(c, 'x');
}

#define ROUNDS 100

/* A peer that wants more streams than there are descriptors gets fewer, and the connection works; so does the next one,
 * which comes when half of them are taken. All the while the process opens its files. */
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
		drive_ok(bnet_client_close_recv(&c->table, comms[i]));
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
		drive_ok(bnet_client_close_send(&c->table, comms[i]));
	contract_finalize(c);
}

/* ---- a message that 32 bits cannot count ---- */

#define LARGE (((size_t)4 << 30) + 8 * MIB + 12345) /* several slices begin behind 4 GiB */
/* Divides no power of two, so that an offset that lost its upper bits shows. */
#define WINDOW (64 * MIB + 4096)

/* One window of memory over and over: room for a large message that takes little memory. */
static struct region map_windows(struct contract *c, void *comm)
{
	struct region region = { .size = LARGE / WINDOW * WINDOW + WINDOW, .comm = comm };
	int file = memfd_create("window", MFD_CLOEXEC);

	region.data = mmap(NULL, region.size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (file < 0 || ftruncate(file, (off_t)WINDOW) != 0 || region.data == MAP_FAILED)
		drive_fail("cannot make a window: %m");
	for (size_t at = 0; at < region.size; at += WINDOW)
		if (mmap(region.data + at, WINDOW, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0) ==
		    MAP_FAILED)
			drive_fail("mmap: %m");
	close(file);
	drive_ok(bnet_client_reg(&c->table, comm, region.data, region.size, NCCL_PTR_HOST, &region.mhandle));
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
	{ "streams_join_busy", streams_join_busy, streams_join_busy_peer, 0 },
	{ "receiver_pauses", receiver_pauses, receiver_pauses_peer, 0 },
	{ "truncation_reaches_sender", truncation_reaches_sender, NULL, 0 },
	{ "truncation_reaches_sender_by_streams", truncation_reaches_sender_by_streams, NULL, 0 },
	{ "strangers_beyond_limit", strangers_beyond_limit, strangers_beyond_limit_peer, 0 },
	{ "streams_within_limit", streams_within_limit, streams_within_limit_peer, 0 },
	{ "large_message", large_message, NULL, 12 },
	{ NULL, NULL, NULL, 0 },
};
