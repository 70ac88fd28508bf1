/* SPDX-License-Identifier: MIT
 *
 * Scenarios in which this program speaks the wire protocol byte by byte: as another version of the plugin, and as a
 * peer that sends a slice twice or a message in parts. The format is written out here again on purpose: a change of the
 * format without a new version number fails here.
 */
#include "drive_contract.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define VERSION 1
#define OTHER_VERSION 7

#define HANDLE_VERSION 4
#define HANDLE_TOKEN 8
#define HANDLE_CHECK 44

#define FRAME_HELLO 1
#define FRAME_WELCOME 2
#define FRAME_DATA 3
#define HELLO_SIZE (8 + 64 + 8)
#define WELCOME_SIZE (8 + 24)
#define FRAME_QUESTION 7
#define FRAME_ANSWER 8
#define DATA_SIZE 32
#define QUESTION_SIZE (8 + 40)
#define ANSWER_SIZE (8 + 32)
#define QUESTION_MAGIC UINT32_C(0x54535551)
#define ANSWER_MAGIC UINT32_C(0x57534e41)
#define HELLO_MAGIC UINT32_C(0x4f4c4842)
#define WELCOME_MAGIC UINT32_C(0x434c5742)
#define VERDICT_OK 0
#define VERDICT_VERSION 1
#define VERDICT_GONE 3
#define CONNECTION 77

/* ---- bytes ---- */

static void put(unsigned char *to, size_t size, uint64_t value)
{
	for (size_t i = 0; i < size; i++)
		to[i] = (unsigned char)(value >> 8 * i);
}

static uint64_t get(const unsigned char *from, size_t size)
{
	uint64_t value = 0;

	for (size_t i = 0; i < size; i++)
		value |= (uint64_t)from[i] << 8 * i;
	return value;
}

static void seal_handle(unsigned char *handle)
{
	uint32_t hash = 2166136261u; /* FNV-1a */

	for (size_t i = 0; i < HANDLE_CHECK; i++)
		hash = (hash ^ handle[i]) * 16777619u;
	put(handle + HANDLE_CHECK, 4, hash);
}

static void write_handle(unsigned char *handle, const struct sockaddr_in *address)
{
	memset(handle, 0, NCCL_NET_HANDLE_MAXSIZE);
	memcpy(handle, "BNET", 4);
	handle[HANDLE_VERSION] = VERSION;
	memset(handle + HANDLE_TOKEN, 0xa5, 16);
	handle[CONTRACT_HANDLE_ADDRESS] = 4;
	memcpy(handle + CONTRACT_HANDLE_ADDRESS + 2, &address->sin_port, 2);
	memcpy(handle + CONTRACT_HANDLE_ADDRESS + 4, &address->sin_addr, 4);
	seal_handle(handle);
}

static void write_frame(unsigned char *frame, unsigned type, uint64_t length)
{
	memset(frame, 0, 8);
	frame[0] = (unsigned char)type;
	put(frame + 4, 4, length);
}

/* ---- sockets ---- */

static void say(int fd, const void *bytes, size_t size)
{
	if (send(fd, bytes, size, MSG_NOSIGNAL) < 0 && errno != EPIPE && errno != ECONNRESET)
		drive_fail("send: %m");
}

static void hear(int fd, void *bytes, size_t size)
{
	if (recv(fd, bytes, size, MSG_WAITALL) != (ssize_t)size)
		drive_fail("the library closed the connection");
}

/* Connects to the listener of a handle, sends HELLO and receives WELCOME. */
static int open_stream(const unsigned char *handle, uint64_t connection, unsigned version, unsigned stream,
		       unsigned char *welcome)
{
	unsigned char hello[HELLO_SIZE] = {0};
	int fd = contract_open_socket(handle);

	write_frame(hello, FRAME_HELLO, HELLO_SIZE - 8);
	put(hello + 8, 4, HELLO_MAGIC);
	put(hello + 12, 2, version);
	put(hello + 14, 2, stream);
	put(hello + 16, 8, connection);
	memcpy(hello + 24, handle + HANDLE_TOKEN, 16);
	say(fd, hello, sizeof(hello));
	hear(fd, welcome, WELCOME_SIZE);
	drive_check(welcome[0] == FRAME_WELCOME && get(welcome + 8, 4) == WELCOME_MAGIC, "the answer is no WELCOME");
	return fd;
}

static int handshake(const unsigned char *handle, unsigned version, unsigned stream, unsigned char *welcome)
{
	return open_stream(handle, CONNECTION, version, stream, welcome);
}

/* ---- another version ---- */

/* The connector learns why it is refused, the log has the reason as well, and one of our version is still welcome. */
static void older_connector(struct contract *c)
{
	unsigned char handle[NCCL_NET_HANDLE_MAXSIZE], welcome[WELCOME_SIZE];
	struct pair pair;
	void *listen_comm;
	int fd;

	contract_load(c);
	listen_comm = contract_listen(c, handle);
	fd = handshake(handle, OTHER_VERSION, 0, welcome);
	drive_check(get(welcome + 12, 2) == VERSION, "it says that it speaks version %u",
		    (unsigned)get(welcome + 12, 2));
	drive_check(get(welcome + 14, 2) == VERDICT_VERSION, "its verdict is %u", (unsigned)get(welcome + 14, 2));
	while (!drive_log_has(NCCL_LOG_INFO, "dropped a connection", "version"))
		contract_nap();
	close(fd);
	pair.send = contract_connect(c, handle);
	pair.recv = contract_accept(c, listen_comm);
	contract_exchange(c, pair, 1000);
	contract_close_pair(c, pair);
	drive_ok(bnet_client_close_listen(&c->client, listen_comm));
	contract_finalize(c);
}

static void expect_both_versions_named(void)
{
	drive_check(drive_log_has(NCCL_LOG_WARN, "version 7", "version 1"), "no warning names both versions");
}

static void older_listener(struct contract *c)
{
	unsigned char handle[NCCL_NET_HANDLE_MAXSIZE];

	contract_take(c, handle, sizeof(handle));
	contract_load(c);
	contract_connect_error(c, handle);
	expect_both_versions_named();
	contract_finalize(c);
}

static void older_listener_peer(struct contract *c)
{
	unsigned char handle[NCCL_NET_HANDLE_MAXSIZE], hello[HELLO_SIZE], welcome[WELCOME_SIZE] = {0};
	struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t length = sizeof(address);
	int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), fd;

	if (listener < 0 || bind(listener, (struct sockaddr *)&address, sizeof(address)) != 0 ||
	    listen(listener, 4) != 0 || getsockname(listener, (struct sockaddr *)&address, &length) != 0)
		drive_fail("cannot listen: %m");
	write_handle(handle, &address);
	contract_give(c, handle, sizeof(handle));
	fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
	if (fd < 0)
		drive_fail("accept: %m");
	hear(fd, hello, sizeof(hello));
	drive_check(hello[0] == FRAME_HELLO && get(hello + 4, 4) == HELLO_SIZE - 8, "the connector says no HELLO");
	drive_check(get(hello + 12, 2) == VERSION, "the connector speaks version %u", (unsigned)get(hello + 12, 2));
	write_frame(welcome, FRAME_WELCOME, WELCOME_SIZE - 8);
	put(welcome + 8, 4, WELCOME_MAGIC);
	put(welcome + 12, 2, OTHER_VERSION);
	put(welcome + 14, 2, VERDICT_VERSION);
	memcpy(welcome + 16, hello + 16, 8);
	say(fd, welcome, sizeof(welcome));
	while (recv(fd, hello, 1, 0) > 0) /* until it closes */
		;
}

static void older_handle(struct contract *c)
{
	unsigned char handle[NCCL_NET_HANDLE_MAXSIZE];
	void *listen_comm;

	contract_load(c);
	listen_comm = contract_listen(c, handle);
	handle[HANDLE_VERSION] = OTHER_VERSION;
	seal_handle(handle);
	contract_connect_error(c, handle);
	expect_both_versions_named();
	drive_ok(bnet_client_close_listen(&c->client, listen_comm));
	contract_finalize(c);
}

/* ---- a slice that arrives twice ---- */

#define SLICE ((size_t)65536)
#define BEGUN ((size_t)6000) /* bytes of the slice sent first by the late stream */
#define SMALL ((size_t)16)
#define REPEATS 70 /* more requests than a connection has slots */

/* The first `now` bytes of a message that is a single slice. */
static void say_message(int fd, uint64_t message, size_t size, size_t now)
{
	unsigned char bytes[DATA_SIZE + SLICE];

	write_frame(bytes, FRAME_DATA, DATA_SIZE - 8 + size);
	put(bytes + 8, 8, message);
	put(bytes + 16, 8, size);
	put(bytes + 24, 8, 0);
	memset(bytes + DATA_SIZE, 'x', size);
	say(fd, bytes, DATA_SIZE + now);
}

static void say_rest(int fd, size_t size)
{
	unsigned char bytes[SLICE];

	memset(bytes, 'x', size);
	say(fd, bytes, size);
}

static void await_request(struct contract *c, void *request)
{
	for (int done = 0, size; !done; sched_yield())
		drive_ok(bnet_client_test(&c->client, request, &done, &size));
}

static void expect_open(struct contract *c, void *request)
{
	int done = 0, size;

	drive_ok(bnet_client_test(&c->client, request, &done, &size));
	drive_check(!done, "a part of a message completed its receive");
}

/* Reads memory that this thread or a worker is still writing: ThreadSanitizer would rightly report it. */
__attribute__((no_sanitize("thread"))) static void await_part(struct contract *c, void *request,
							      const volatile unsigned char *last)
{
	for (; *last != 'x'; sched_yield())
		expect_open(c, request);
}

/* A message of a few bytes into the second half. Once it has arrived, all earlier bytes of its stream have been
 * read. */
static void small_message(struct contract *c, const struct region *region, int fd, uint64_t message)
{
	void *request = contract_irecv(c, region, SLICE, SMALL);

	say_message(fd, message, SMALL, SMALL);
	await_request(c, request);
}

/* Stream 1 begins a message, and stream 0 carries all of it: the place belongs to stream 1 until its slice has
 * arrived. */
static void overtake(struct contract *c, const struct region *region, const int *fds)
{
	void *request = contract_irecv(c, region, 0, SLICE), *next = contract_irecv(c, region, SLICE, SMALL);

	say_message(fds[1], 0, SLICE, BEGUN);
	await_part(c, request, region->data + BEGUN - 1);
	say_message(fds[0], 0, SLICE, SLICE);
	say_message(fds[0], 1, SMALL, SMALL);
	await_request(c, next);
	expect_open(c, request);
	say_rest(fds[1], SLICE - BEGUN);
	await_request(c, request);
}

/* The message's slice arrives again, by either stream, after its memory was given back: at once, and when its slot in
 * the ring of requests has been reused. */
static void repeat(struct contract *c, const struct region *region, const int *fds)
{
	uint64_t message = 2;

	for (int round = 0; round < 2 * REPEATS; round++) {
		int fd = fds[round % 2];

		if (round == 0 || round >= REPEATS)
			say_message(fd, 0, SLICE, SLICE);
		small_message(c, region, fds[1 - round % 2], message++);
		small_message(c, region, fd, message++);
	}
}

static void repeated_slice(struct contract *c)
{
	unsigned char handle[NCCL_NET_HANDLE_MAXSIZE], welcome[WELCOME_SIZE];
	struct region region;
	void *listen_comm, *comm;
	int fds[2];

	contract_load(c);
	listen_comm = contract_listen(c, handle);
	for (unsigned stream = 0; stream < 2; stream++) {
		fds[stream] = handshake(handle, VERSION, stream, welcome);
		drive_check(get(welcome + 14, 2) == VERDICT_OK, "stream %u is not welcome", stream);
	}
	comm = contract_accept(c, listen_comm);
	drive_ok(bnet_client_close_listen(&c->client, listen_comm));
	region = contract_map(c, comm, 2 * SLICE);
	overtake(c, &region, fds);
	drive_check(drive_untouched(region.data, SLICE, 'x') < 0, "the message came out wrong");
	memset(region.data, 'v', region.size);
	repeat(c, &region, fds);
	memset(region.data + SLICE, 'v', SMALL);
	drive_check(drive_untouched(region.data, region.size, 'v') < 0,
		    "a repeated slice wrote into memory that was given back, byte %zd",
		    drive_untouched(region.data, region.size, 'v'));
	close(fds[0]);
	close(fds[1]);
	contract_unmap(c, &region);
	drive_ok(bnet_client_close_recv(&c->client, comm));
	contract_finalize(c);
}

/* ---- small messages ---- */

/* The bytes that have arrived are in memory, and nothing else is written. */
static void receive_in_parts(struct contract *c, const struct region *region, int fd, uint64_t message, size_t first)
{
	void *request = contract_irecv(c, region, 0, SMALL);

	memset(region->data, 'v', region->size);
	say_message(fd, message, SMALL, first);
	if (first)
		await_part(c, request, region->data + first - 1);
	expect_open(c, request);
	say_rest(fd, SMALL - first);
	await_request(c, request);
	drive_check(drive_untouched(region->data, SMALL, 'x') < 0, "the message came out wrong");
	drive_check(drive_untouched(region->data + SMALL, region->size - SMALL, 'v') < 0,
		    "it wrote behind the message");
}

/* Memory of a connection that receives what this program says on *fd. */
static struct region receiver(struct contract *c, size_t size, int *fd)
{
	unsigned char handle[NCCL_NET_HANDLE_MAXSIZE], welcome[WELCOME_SIZE];
	void *listen_comm, *comm;

	contract_load(c);
	listen_comm = contract_listen(c, handle);
	*fd = handshake(handle, VERSION, 0, welcome);
	comm = contract_accept(c, listen_comm);
	drive_ok(bnet_client_close_listen(&c->client, listen_comm));
	return contract_map(c, comm, size);
}

/* After small messages that arrive alone, the receiver gets one in parts, and then one that is followed by EOF. */
static void small_in_parts(struct contract *c)
{
	uint64_t message = 0;
	int fd;
	struct region region = receiver(c, 2 * SLICE, &fd);

	for (size_t first = 0; first < SMALL; first++) {
		for (int alone = 0; alone < 3; alone++)
			small_message(c, &region, fd, message++);
		receive_in_parts(c, &region, fd, message++, first);
	}
	small_message(c, &region, fd, message++);
	say_message(fd, message, SMALL, SMALL);
	close(fd);
	drive_check(contract_wait(c, contract_irecv(c, &region, 0, SMALL)) == (int)SMALL, "the last message is lost");
	contract_wait_error(c, contract_irecv(c, &region, 0, SMALL));
	contract_unmap(c, &region);
	drive_ok(bnet_client_close_recv(&c->client, region.comm));
	contract_finalize(c);
}

/* ---- the order in which a small payload reaches memory ---- */

#define LINES ((size_t)4096) /* the largest payload of which the library copies the rest */

/* The memory is read-only when the rest of the message arrives. Ends with SIGSEGV if the library itself writes
 * there. */
static void rest_into_protected_memory(struct contract *c, size_t first)
{
	int fd;
	struct region region = receiver(c, LINES, &fd);
	void *request = contract_irecv(c, &region, 0, LINES);

	say_message(fd, 0, LINES, first);
	await_part(c, request, region.data + first - 1);
	drive_check(mprotect(region.data, region.size, PROT_READ) == 0, "mprotect: %m");
	say_rest(fd, LINES - first);
	await_request(c, request); /* fails with EFAULT if the kernel was to write into place */
}

/* The kernel copies a payload in no order that anyone guarantees, so it must not write the rest of a small one into
 * place: the library copies it in order. */
static void small_copied_in_order(struct contract *c)
{
	const size_t parts[] = {1, LINES / 2, LINES - 1};

	for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++) {
		pid_t child = fork();
		int status;

		drive_check(child >= 0, "fork: %m");
		if (child == 0) {
			setrlimit(RLIMIT_CORE, &(struct rlimit){0});
			signal(SIGSEGV, SIG_DFL); /* a sanitizer would report it */
			rest_into_protected_memory(c, parts[i]);
			_exit(0);
		}
		drive_check(waitpid(child, &status, 0) == child, "waitpid: %m");
		drive_check(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV,
			    "the library did not copy the rest of a message of which %zu bytes had arrived", parts[i]);
	}
}

/* ---- questions ---- */

struct answer {
	unsigned verdict;
	uint64_t moved_us, received;
};

static struct answer ask(const unsigned char *handle, uint64_t connection)
{
	unsigned char question[QUESTION_SIZE] = {0}, bytes[ANSWER_SIZE], rest;
	int fd = contract_open_socket(handle);

	write_frame(question, FRAME_QUESTION, QUESTION_SIZE - 8);
	put(question + 8, 4, QUESTION_MAGIC);
	put(question + 12, 2, VERSION);
	put(question + 16, 8, connection);
	memcpy(question + 24, handle + HANDLE_TOKEN, 16);
	say(fd, question, sizeof(question));
	hear(fd, bytes, sizeof(bytes));
	drive_check(bytes[0] == FRAME_ANSWER && get(bytes + 8, 4) == ANSWER_MAGIC && get(bytes + 16, 8) == connection,
		    "the answer is no ANSWER");
	drive_check(recv(fd, &rest, 1, 0) == 0, "the socket is not closed after the answer");
	close(fd);
	return (struct answer){.verdict = (unsigned)get(bytes + 14, 2),
			       .moved_us = get(bytes + 24, 8),
			       .received = get(bytes + 32, 8)};
}

/* A peer learns how much the device has received while the connection's bytes arrived. */
static void questions(struct contract *c)
{
	unsigned char handle[NCCL_NET_HANDLE_MAXSIZE], welcome[WELCOME_SIZE];
	struct region region;
	struct answer answer;
	void *listen_comm, *comm;
	unsigned verdict;
	int fd;

	contract_load(c);
	listen_comm = contract_listen(c, handle);
	fd = open_stream(handle, CONNECTION, VERSION, 0, welcome);
	comm = contract_accept(c, listen_comm);
	region = contract_map(c, comm, SLICE);
	answer = ask(handle, CONNECTION);
	drive_check(answer.verdict == VERDICT_OK && !answer.moved_us && !answer.received,
		    "before anything has arrived, the verdict is %u, and %llu bytes were received", answer.verdict,
		    (unsigned long long)answer.received);
	for (uint64_t message = 0; !answer.moved_us; message++) {
		void *request = contract_irecv(c, &region, 0, SLICE);

		say_message(fd, message, SLICE, SLICE);
		await_request(c, request);
		answer = ask(handle, CONNECTION);
	}
	drive_check(answer.received >= SLICE, "the device has received %llu bytes",
		    (unsigned long long)answer.received);
	verdict = ask(handle, CONNECTION + 1).verdict;
	drive_check(verdict == VERDICT_GONE, "the verdict about another connection is %u", verdict);
	while (!drive_log_has(NCCL_LOG_INFO, "dropped a connection", "does not exist"))
		contract_nap();
	close(fd);
	contract_unmap(c, &region);
	drive_ok(bnet_client_close_recv(&c->client, comm));
	drive_ok(bnet_client_close_listen(&c->client, listen_comm));
	contract_finalize(c);
}

const struct scenario contract_wire_scenarios[] = {
	{"older_connector", older_connector, NULL, 0},
	{"older_listener", older_listener, older_listener_peer, 0},
	{"older_handle", older_handle, NULL, 0},
	{"repeated_slice", repeated_slice, NULL, 0},
	{"small_in_parts", small_in_parts, NULL, 0},
	{"questions", questions, NULL, 0},
	{"small_copied_in_order", small_copied_in_order, NULL, 0},
	{NULL, NULL, NULL, 0},
};
