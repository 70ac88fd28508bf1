/* SPDX-License-Identifier: MIT
 *
 * Scenarios about rejected on the listening port: whoever connects there, running connections go on, new ones open,
 * and the stranger is let go.
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

/* The library's listening socket among this process's descriptors: the only one that listens on TCP. */
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

/* An address to reach it by, where it listens on all of them. */
static void make_reachable(struct sockaddr_storage *address)
{
	struct sockaddr_in6 *in6 = (struct sockaddr_in6 *)address;
	struct sockaddr_in *in = (struct sockaddr_in *)address;

	if (address->ss_family == AF_INET && in->sin_addr.s_addr == htonl(INADDR_ANY))
		in->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	if (address->ss_family == AF_INET6 && IN6_IS_ADDR_UNSPECIFIED(&in6->sin6_addr))
		in6->sin6_addr = in6addr_loopback;
}

static int call_stranger(void)
{
	struct sockaddr_storage address;
	socklen_t length;
	int fd;

	drive_check(listening_address(&address, &length), "the library listens nowhere");
	make_reachable(&address);
	fd = socket(address.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (fd < 0 || connect(fd, (struct sockaddr *)&address, length) != 0)
		drive_fail("a stranger cannot connect: %m");
	return fd;
}

/* Until the library has hung up on the stranger. */
static void await_hangup(int fd)
{
	char byte;
	ssize_t got;

	do
		got = recv(fd, &byte, 1, 0);
	while (got > 0 || (got < 0 && errno == EINTR));
	close(fd);
}

/* ---- rejected with something to say ---- */

/* Two connections, one of them new each time, work before and after. */
static void stranger_says(struct contract *c, const void *text, size_t size)
{
	unsigned char handle[NCCL_NET_HANDLE_MAXSIZE];
	struct pair running, fresh;
	void *listen_comm;
	int fd;

	contract_load(c);
	running = contract_pair(c);
	listen_comm = contract_listen(c, handle);
	fd = call_stranger();
	if (send(fd, text, size, MSG_NOSIGNAL) < 0 && errno != ECONNRESET && errno != EPIPE)
		drive_fail("send: %m");
	contract_exchange(c, running, 300000);
	await_hangup(fd);
	contract_exchange(c, running, 300000);
	fresh.send = contract_connect(c, handle);
	fresh.recv = contract_accept(c, listen_comm);
	drive_ok(bnet_client_close_listen(&c->table, listen_comm));
	contract_exchange(c, fresh, 300000);
	contract_close_pair(c, fresh);
	contract_close_pair(c, running);
	contract_finalize(c);
}

static void stranger_garbage(struct contract *c)
{
	unsigned char garbage[65536];
	struct drive_stamp stamp = contract_stamp(99);

	drive_fill(garbage, sizeof(garbage), &stamp);
	stranger_says(c, garbage, sizeof(garbage));
}

static void stranger_zeroes(struct contract *c)
{
	static const unsigned char zeroes[8192];

	stranger_says(c, zeroes, sizeof(zeroes));
}

static void stranger_http(struct contract *c)
{
	static const char text[] = "GET / HTTP/1.1\r\nHost: localhost\r\nUser-Agent: scanner\r\nAccept: */*\r\n"
				   "Cookie: 01234567890123456789012345678901234567890123456789\r\n\r\n";

	stranger_says(c, text, sizeof(text) - 1);
}

/* How a rank begins that runs NCCL's own transport: a magic number and a type, then a stream index. */
static void stranger_nccl(struct contract *c)
{
	unsigned char text[64] = { 0 };
	uint64_t magic = UINT64_C(0x564ab9f2fc4b9d6c);
	int type = 2;

	memcpy(text, &magic, sizeof(magic));
	memcpy(text + 8, &type, sizeof(type));
	stranger_says(c, text, sizeof(text));
}

/* ---- rejected who say nothing, or not enough ---- */

#define SILENT 100

/* Half of them have sent the beginning of something; none is waited for. */
static void strangers_silent(struct contract *c)
{
	int fds[SILENT];
	struct pair running, fresh;

	contract_load(c);
	running = contract_pair(c);
	for (int i = 0; i < SILENT; i++) {
		fds[i] = call_stranger();
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

/* Each hangs up at once; the library's descriptors do not grow. */
static void strangers_leave(struct contract *c)
{
	struct pair running;
	int before;

	setenv("BAGUA_NET_NSTREAMS", "1", 1); /* further ones would join while descriptors are counted */
	contract_load(c);
	running = contract_pair(c);
	contract_exchange(c, running, 1000);
	before = contract_count_descriptors();
	for (int i = 0; i < 200; i++)
		close(call_stranger());
	while (contract_count_descriptors() > before)
		contract_nap();
	contract_exchange(c, running, 300000);
	contract_close_pair(c, running);
	contract_finalize(c);
}

/* ---- somebody else where the handle points: what a connector says, and what it makes of an answer ---- */

/* Listens, tells handle and port, and is killed: its port is free for somebody else. */
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

/* Takes the peer's port over; returns the library's connection to it, and the handle that leads there. */
static int spring_trap(struct contract *c, unsigned char *handle)
{
	struct sockaddr_storage address;
	int trap, caller, on = 1;
	void *comm = NULL;

	contract_take(c, handle, NCCL_NET_HANDLE_MAXSIZE);
	contract_take(c, &address, sizeof(address));
	contract_kill_peer(c);
	trap = socket(address.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (trap < 0 || setsockopt(trap, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) != 0 ||
	    bind(trap, (struct sockaddr *)&address, sizeof(address)) != 0 || listen(trap, 4) != 0)
		drive_fail("cannot take the peer's port over: %m");
	do {
		drive_ok(bnet_client_connect(&c->table, c->device, handle, &comm));
		drive_check(!comm, "it connected to a program that says nothing");
		caller = accept4(trap, NULL, NULL, SOCK_CLOEXEC);
		sched_yield();
	} while (caller < 0);
	close(trap);
	return caller;
}

/* The token is what a hello repeats of the handle: 16 bytes, hardly any of them zero. Puts another handle's in. */
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
	int fd = call_stranger();

	if (send(fd, text, size, MSG_NOSIGNAL) < 0 && errno != ECONNRESET && errno != EPIPE)
		drive_fail("send: %m");
	close(fd);
}

/* A handshake for a listener of this process: repeated, cut off everywhere, and with each of its bytes changed. Never a
 * crash, and the connections there are go on. */
static void stranger_replay(struct contract *c)
{
	unsigned char old[NCCL_NET_HANDLE_MAXSIZE], handle[NCCL_NET_HANDLE_MAXSIZE], hello[4096];
	struct pair running;
	ssize_t size;
	void *listen_comm;
	int caller;

	contract_load(c);
	running = contract_pair(c);
	listen_comm = contract_listen(c, handle);
	caller = spring_trap(c, old);
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
	drive_ok(bnet_client_close_listen(&c->table, listen_comm));
	contract_exchange(c, running, 300000);
	contract_close_pair(c, running);
	contract_finalize(c);
}

/* Whoever answers with something else is not a peer: an error, and a sentence. */
static void foreign_listener(struct contract *c)
{
	static const char answer[] = "HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
	unsigned char handle[NCCL_NET_HANDLE_MAXSIZE];
	int caller;

	setenv("BAGUA_NET_CONNECT_TIMEOUT", "3", 1);
	contract_load(c);
	caller = spring_trap(c, handle);
	if (send(caller, answer, sizeof(answer) - 1, MSG_NOSIGNAL) < 0)
		drive_fail("send: %m");
	contract_connect_error(c, handle);
	drive_check(drive_log_has(NCCL_LOG_WARN, "BaguaNet", "127.0.0.1"), "no warning names the peer");
	contract_finalize(c);
}

const struct scenario contract_stranger_scenarios[] = {
	{ "stranger_garbage", stranger_garbage, NULL, 0 },
	{ "stranger_zeroes", stranger_zeroes, NULL, 0 },
	{ "stranger_http", stranger_http, NULL, 0 },
	{ "stranger_nccl", stranger_nccl, NULL, 0 },
	{ "strangers_silent", strangers_silent, NULL, 0 },
	{ "strangers_leave", strangers_leave, NULL, 0 },
	{ "stranger_replay", stranger_replay, leave_port, 5 },
	{ "foreign_listener", foreign_listener, leave_port, 5 },
	{ NULL, NULL, NULL, 0 },
};
