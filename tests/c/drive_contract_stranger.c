/* SPDX-License-Identifier: MIT
 *
 * Scenarios about strangers on the listening port: whoever connects there, running connections go on, new ones open,
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

/* ---- strangers with something to say ---- */

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
	drive_ok(bnet_table_close_listen(&c->table, listen_comm));
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
				   "Cookie: 0123456789012345678901234567890123456789012345678901234567890123456789\r\n\r\n";

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

/* ---- strangers who say nothing, or not enough ---- */

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

/* ---- a program of ours where the handle points: what a connector says, and what it makes of an answer ---- */

struct trap {
	int listener;
	int caller; /* the library's connection to it */
	void *comm; /* what connect has given: nothing, for as long as nobody answers */
	unsigned char handle[NCCL_NET_HANDLE_MAXSIZE];
};

static void replace_port(unsigned char *handle, uint16_t port, uint16_t by)
{
	uint16_t here;

	for (size_t i = 0; i + 1 < NCCL_NET_HANDLE_MAXSIZE; i++) {
		memcpy(&here, handle + i, sizeof(here));
		if (here == port || here == (uint16_t)(port << 8 | port >> 8)) {
			here = here == port ? by : (uint16_t)(by << 8 | by >> 8);
			memcpy(handle + i, &here, sizeof(here));
			return;
		}
	}
	drive_fail("the handle holds no port");
}

/* Points a copy of the handle at a listener of this program, and lets the library connect to it. */
static void spring_trap(struct contract *c, const unsigned char *handle, struct trap *trap)
{
	struct sockaddr_storage address;
	struct sockaddr_in *in = (struct sockaddr_in *)&address; /* IPv6 has its port at the same place */
	socklen_t length;
	uint16_t port;

	drive_check(listening_address(&address, &length), "the library listens nowhere");
	port = in->sin_port;
	in->sin_port = 0;
	trap->comm = NULL;
	trap->listener = socket(address.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (trap->listener < 0 || bind(trap->listener, (struct sockaddr *)&address, length) != 0 ||
	    listen(trap->listener, 4) != 0 || getsockname(trap->listener, (struct sockaddr *)&address, &length) != 0)
		drive_fail("cannot listen: %m");
	memcpy(trap->handle, handle, sizeof(trap->handle));
	replace_port(trap->handle, port, in->sin_port);
	do {
		drive_ok(bnet_table_connect(&c->table, c->device, trap->handle, &trap->comm));
		drive_check(!trap->comm, "it connected to a program that says nothing");
		trap->caller = accept4(trap->listener, NULL, NULL, SOCK_CLOEXEC);
		sched_yield();
	} while (trap->caller < 0);
}

/* A handshake of the library's own, repeated, and with each of its bytes changed in turn: never a crash, and the
 * connections there are go on. */
static void stranger_replay(struct contract *c)
{
	unsigned char handle[NCCL_NET_HANDLE_MAXSIZE], hello[4096];
	struct pair running;
	struct trap trap;
	ssize_t size;
	void *listen_comm;

	contract_load(c);
	running = contract_pair(c);
	listen_comm = contract_listen(c, handle);
	spring_trap(c, handle, &trap);
	size = recv(trap.caller, hello, sizeof(hello), 0);
	drive_check(size > 0, "no hello: %m");
	for (ssize_t i = -4; i < size; i++) {
		int fd = call_stranger();

		if (i >= 0)
			hello[i] ^= 0x55;
		if (send(fd, hello, (size_t)size, MSG_NOSIGNAL) < 0 && errno != ECONNRESET && errno != EPIPE)
			drive_fail("send: %m");
		if (i >= 0)
			hello[i] ^= 0x55;
		close(fd);
	}
	contract_exchange(c, running, 300000);
	drive_ok(bnet_table_close_listen(&c->table, listen_comm));
	contract_exchange(c, running, 300000);
	contract_close_pair(c, running);
	contract_finalize(c);
}

/* Whoever answers with something else is not a peer: an error, and a sentence. */
static void foreign_listener(struct contract *c)
{
	static const char answer[] = "HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
	unsigned char handle[NCCL_NET_HANDLE_MAXSIZE];
	void *listen_comm;
	struct trap trap;

	setenv("BAGUA_NET_CONNECT_TIMEOUT", "3", 1);
	contract_load(c);
	listen_comm = contract_listen(c, handle);
	spring_trap(c, handle, &trap);
	if (send(trap.caller, answer, sizeof(answer) - 1, MSG_NOSIGNAL) < 0)
		drive_fail("send: %m");
	contract_connect_error(c, trap.handle);
	drive_check(drive_log_count(NCCL_LOG_WARN) > 0, "connect failed without a warning");
	drive_ok(bnet_table_close_listen(&c->table, listen_comm));
	contract_finalize(c);
}

const struct scenario contract_stranger_scenarios[] = {
	{ "stranger_garbage", stranger_garbage, NULL, 0 },
	{ "stranger_zeroes", stranger_zeroes, NULL, 0 },
	{ "stranger_http", stranger_http, NULL, 0 },
	{ "stranger_nccl", stranger_nccl, NULL, 0 },
	{ "strangers_silent", strangers_silent, NULL, 0 },
	{ "strangers_leave", strangers_leave, NULL, 0 },
	{ "stranger_replay", stranger_replay, NULL, 5 },
	{ "foreign_listener", foreign_listener, NULL, 5 },
	{ NULL, NULL, NULL, 0 },
};
