/* SPDX-License-Identifier: MIT
 *
 * Scenarios about connections to the listening port that do not belong there. Whatever they send, they are dropped,
 * running connections go on, and new ones open.
 */
#include "drive_contract.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* ---- finding the port ---- */

/* The library's listening socket is the only descriptor of this process that listens on TCP. */
static bool listening_address(struct sockaddr_storage *address, socklen_t *length)
{
	for (int fd = 3; fd < 1024; fd++) {
		int listening = 0;
		socklen_t size = sizeof(listening);

		*length = sizeof(*address);
		if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listening, &size) == 0 && listening &&
		    getsockname(fd, (struct sockaddr *)address, length) == 0 &&
		    (address->ss_family == AF_INET || address->ss_family == AF_INET6))
			return true;
	}
	return false;
}

/* If it listens on all addresses, takes the loopback one. */
static void make_reachable(struct sockaddr_storage *address)
{
	struct sockaddr_in6 *in6 = (struct sockaddr_in6 *)address;
	struct sockaddr_in *in = (struct sockaddr_in *)address;

	if (address->ss_family == AF_INET && in->sin_addr.s_addr == htonl(INADDR_ANY))
		in->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	if (address->ss_family == AF_INET6 && IN6_IS_ADDR_UNSPECIFIED(&in6->sin6_addr))
		in6->sin6_addr = in6addr_loopback;
}

/* A plain socket, connected to the library's port. */
static int connect_to_port(void)
{
	struct sockaddr_storage address;
	socklen_t length;
	int fd;

	drive_check(listening_address(&address, &length), "the library listens nowhere");
	make_reachable(&address);
	fd = socket(address.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (fd < 0 || connect(fd, (struct sockaddr *)&address, length) != 0)
		drive_fail("cannot connect to the library's port: %m");
	return fd;
}

/* Returns when the library has closed the connection. */
static void await_hangup(int fd)
{
	char byte;
	ssize_t got;

	do
		got = recv(fd, &byte, 1, 0);
	while (got > 0 || (got < 0 && errno == EINTR));
	close(fd);
}

/* ---- connections that send something else than HELLO ---- */

/* The text is rejected, with one line. A running connection works meanwhile and afterwards, and a new one opens. */
static void expect_rejection(struct contract *c, const void *text, size_t size)
{
	unsigned char handle[NCCL_NET_HANDLE_MAXSIZE];
	struct pair running, fresh;
	void *listen_comm;
	int fd;

	contract_load(c);
	running = contract_pair(c);
	listen_comm = contract_listen(c, handle);
	fd = connect_to_port();
	if (send(fd, text, size, MSG_NOSIGNAL) < 0 && errno != ECONNRESET && errno != EPIPE)
		drive_fail("send: %m");
	contract_exchange(c, running, 300000);
	await_hangup(fd);
	while (!drive_log_has(NCCL_LOG_INFO, "dropped a connection", "from ")) /* it is told after the hangup */
		contract_nap();
	drive_check(drive_log_count_of(NCCL_LOG_INFO, "dropped a connection from ") == 1,
		    "%d lines for a rejected connection, 1 was expected",
		    drive_log_count_of(NCCL_LOG_INFO, "dropped a connection from "));
	contract_exchange(c, running, 300000);
	fresh.send = contract_connect(c, handle);
	fresh.recv = contract_accept(c, listen_comm);
	drive_ok(bnet_client_close_listen(&c->client, listen_comm));
	contract_exchange(c, fresh, 300000);
	contract_close_pair(c, fresh);
	contract_close_pair(c, running);
	contract_finalize(c);
}

static void rejected_garbage(struct contract *c)
{
	unsigned char garbage[65536];
	struct drive_stamp stamp = contract_stamp(99);

	drive_fill(garbage, sizeof(garbage), &stamp);
	expect_rejection(c, garbage, sizeof(garbage));
}

static void rejected_zeroes(struct contract *c)
{
	static const unsigned char zeroes[8192];

	expect_rejection(c, zeroes, sizeof(zeroes));
}

static void rejected_http(struct contract *c)
{
	static const char text[] = "GET / HTTP/1.1\r\nHost: localhost\r\nUser-Agent: scanner\r\nAccept: */*\r\n"
				   "Cookie: 01234567890123456789012345678901234567890123456789\r\n\r\n";

	expect_rejection(c, text, sizeof(text) - 1);
}

/* The first bytes of a rank on NCCL's own transport: a magic number and a type, then a stream index. */
static void rejected_nccl(struct contract *c)
{
	unsigned char text[64] = {0};
	uint64_t magic = UINT64_C(0x564ab9f2fc4b9d6c);
	int type = 2;

	memcpy(text, &magic, sizeof(magic));
	memcpy(text + 8, &type, sizeof(type));
	expect_rejection(c, text, sizeof(text));
}

/* ---- connections that send nothing, or too little ---- */

#define SILENT 100

/* Half of them have sent a part of a frame. The library waits for none of them. */
static void rejected_silent(struct contract *c)
{
	int fds[SILENT];
	struct pair running, fresh;

	contract_load(c);
	running = contract_pair(c);
	for (int i = 0; i < SILENT; i++) {
		fds[i] = connect_to_port();
		if (i % 2 && send(fds[i], "BNET", 4, MSG_NOSIGNAL) < 0 && errno != ECONNRESET && errno != EPIPE)
			drive_fail("send: %m");
	}
	contract_exchange(c, running, 300000);
	fresh = contract_pair(c);
	contract_exchange(c, fresh, 300000);
	for (int i = 0; i < SILENT; i++)
		close(fds[i]);
	contract_close_pair(c, fresh);
	contract_close_pair(c, running);
	contract_finalize(c);
}

/* Each closes at once, and no descriptor of the library is left open. */
static void rejected_leave(struct contract *c)
{
	struct pair running;
	int before;

	setenv("BAGUA_NET_NSTREAMS", "1", 1); /* further streams would join while descriptors are counted */
	contract_load(c);
	running = contract_pair(c);
	contract_exchange(c, running, 1000);
	before = contract_count_descriptors();
	for (int i = 0; i < 200; i++)
		close(connect_to_port());
	while (contract_count_descriptors() > before)
		contract_nap();
	contract_exchange(c, running, 300000);
	contract_close_pair(c, running);
	contract_finalize(c);
}

/* ---- another program behind the handle: what a connector sends, and how it takes the answer ---- */

/* Listens, passes on handle and port, and is killed, so that another program can listen there. */
static void leave_port(struct contract *c)
{
	unsigned char handle[NCCL_NET_HANDLE_MAXSIZE];
	struct sockaddr_storage address;
	socklen_t length;

	contract_load(c);
	contract_listen(c, handle);
	drive_check(listening_address(&address, &length), "the library listens nowhere");
	contract_give(c, handle, sizeof(handle));
	contract_give(c, &address, sizeof(address));
	contract_await(c, 'x'); /* until it is killed */
}

/* Listens on the peer's port. Returns the library's connection to it, and the handle that names it. */
static int take_port_over(struct contract *c, unsigned char *handle)
{
	struct sockaddr_storage address;
	int listener, caller, on = 1;
	void *comm = NULL;

	contract_take(c, handle, NCCL_NET_HANDLE_MAXSIZE);
	contract_take(c, &address, sizeof(address));
	contract_kill_peer(c);
	listener = socket(address.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (listener < 0 || setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) != 0 ||
	    bind(listener, (struct sockaddr *)&address, sizeof(address)) != 0 || listen(listener, 4) != 0)
		drive_fail("cannot take the peer's port over: %m");
	do {
		drive_ok(bnet_client_connect(&c->client, c->device, handle, &comm));
		drive_check(!comm, "it connected to a program that sends nothing");
		caller = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
		sched_yield();
	} while (caller < 0);
	close(listener);
	return caller;
}

/* A HELLO repeats the handle's token: 16 bytes, hardly any of them zero. Replaces it by another handle's. */
static void replace_token(unsigned char *hello, size_t size, const unsigned char *old, const unsigned char *new)
{
	for (size_t at = 0; at + 16 <= 64; at++) {
		unsigned char *found = memmem(hello, size, old + at, 16);
		int zeroes = 0;

		for (size_t i = 0; i < 16; i++)
			zeroes += old[at + i] == 0;
		if (found && zeroes < 4) {
			memcpy(found, new + at, 16);
			return;
		}
	}
	drive_fail("the hello holds no token");
}

static void send_once(const unsigned char *text, size_t size)
{
	int fd = connect_to_port();

	if (send(fd, text, size, MSG_NOSIGNAL) < 0 && errno != ECONNRESET && errno != EPIPE)
		drive_fail("send: %m");
	close(fd);
}

/* A HELLO for a listener of this process is repeated, cut off at every byte, and sent with each byte changed. The
 * process never crashes, and its connections go on. */
static void rejected_replay(struct contract *c)
{
	unsigned char old[NCCL_NET_HANDLE_MAXSIZE], handle[NCCL_NET_HANDLE_MAXSIZE], hello[4096];
	struct pair running;
	ssize_t size;
	void *listen_comm;
	int caller;

	contract_load(c);
	running = contract_pair(c);
	listen_comm = contract_listen(c, handle);
	caller = take_port_over(c, old);
	size = recv(caller, hello, sizeof(hello), 0);
	drive_check(size > 0, "no hello: %m");
	close(caller);
	replace_token(hello, (size_t)size, old, handle);
	for (ssize_t i = 0; i < size; i++) {
		send_once(hello, (size_t)size);
		send_once(hello, (size_t)i);
		hello[i] ^= 0x55;
		send_once(hello, (size_t)size);
		hello[i] ^= 0x55;
	}
	contract_exchange(c, running, 300000);
	drive_ok(bnet_client_close_listen(&c->client, listen_comm));
	contract_exchange(c, running, 300000);
	contract_close_pair(c, running);
	contract_finalize(c);
}

/* If the answer is no WELCOME, connect fails, and a sentence names the peer. */
static void foreign_listener(struct contract *c)
{
	static const char answer[] = "HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
	unsigned char handle[NCCL_NET_HANDLE_MAXSIZE];
	int caller;

	setenv("BAGUA_NET_CONNECT_TIMEOUT", "3", 1);
	contract_load(c);
	caller = take_port_over(c, handle);
	if (send(caller, answer, sizeof(answer) - 1, MSG_NOSIGNAL) < 0)
		drive_fail("send: %m");
	contract_connect_error(c, handle);
	drive_check(drive_log_has(NCCL_LOG_WARN, "BaguaNet", "127.0.0.1"), "no warning names the peer");
	contract_finalize(c);
}

const struct scenario contract_rejected_scenarios[] = {
	{"rejected_garbage", rejected_garbage, NULL, 0},
	{"rejected_zeroes", rejected_zeroes, NULL, 0},
	{"rejected_http", rejected_http, NULL, 0},
	{"rejected_nccl", rejected_nccl, NULL, 0},
	{"rejected_silent", rejected_silent, NULL, 0},
	{"rejected_leave", rejected_leave, NULL, 0},
	{"rejected_replay", rejected_replay, leave_port, 5},
	{"foreign_listener", foreign_listener, leave_port, 5},
	{NULL, NULL, NULL, 0},
};
