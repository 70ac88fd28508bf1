/* SPDX-License-Identifier: MIT
 *
 * Inbound connections that do not say who they are are dropped after ten seconds, and do not fill the log. The clock is
 * interposed and turned on.
 */
#include <errno.h>
#include <netinet/in.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "inbound.h"
#include "bagua_net.h"
#include "common/clock.h"
#include "engine/engine.h"
#include "handshake/acceptor.h"
#include "oneself.h"

#define DEADLINE_S 250
#define INBOUND 4
#define SCANS 150
#define LINES 100 /* a minute */

/* ---- interposed ---- */

static _Atomic uint64_t turned_on_s;

int clock_gettime(clockid_t clock, struct timespec *now)
{
	int rc = (int)syscall(SYS_clock_gettime, clock, now);

	now->tv_sec += (time_t)atomic_load(&turned_on_s);
	return rc;
}

static void turn_on(uint64_t seconds)
{
	atomic_fetch_add(&turned_on_s, seconds);
	bnet_engine_lock();
	bnet_engine_wake();
	bnet_engine_unlock();
}

/* ---- the test ---- */

/* Every other one says a part of a frame. */
static void connect_silently(int *fds)
{
	struct sockaddr_in addr;

	memcpy(&addr, &bnet_engine.listeners[0].addr, sizeof(addr));
	for (int i = 0; i < INBOUND; i++) {
		fds[i] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
		check_int(connect(fds[i], (struct sockaddr *)&addr, sizeof(addr)), 0);
		if (i % 2)
			check_int(send(fds[i], "BNET", 4, MSG_NOSIGNAL), 4);
	}
}

static void silent_connections_are_dropped_after_ten_seconds(void)
{
	int fds[INBOUND];
	char byte;

	connect_silently(fds);
	while (inbound_connections() < INBOUND)
		sched_yield();
	bnet_engine_lock();
	bnet_acceptor_tick(bnet_now_ms() + 9000);
	check_int(bnet_engine.ninbound, INBOUND);
	bnet_engine_unlock();
	turn_on(10);
	for (int i = 0; i < INBOUND; i++) {
		ssize_t n = recv(fds[i], &byte, 1, 0);

		check(n == 0 || (n < 0 && errno == ECONNRESET));
		close(fds[i]);
	}
	check_int(inbound_connections(), 0);
}

/* ---- the log ---- */

static atomic_int lines, further;

__attribute__((format(printf, 5, 6))) static void count_lines(ncclDebugLogLevel level, unsigned long flags,
							      const char *file, int line, const char *fmt, ...)
{
	char text[512];
	int more;
	va_list args;

	(void)level;
	(void)flags;
	(void)file;
	(void)line;
	va_start(args, fmt);
	vsnprintf(text, sizeof(text), fmt, args);
	va_end(args);
	lines += strstr(text, "dropped a connection") != NULL;
	if (sscanf(text, "NET/BaguaNet: dropped %d more", &more) == 1)
		further = more;
}

static void scan(int times)
{
	struct sockaddr_in addr;
	char byte;

	memcpy(&addr, &bnet_engine.listeners[0].addr, sizeof(addr));
	for (int i = 0; i < times; i++) {
		int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

		check_int(connect(fd, (struct sockaddr *)&addr, sizeof(addr)), 0);
		check_int(send(fd, "GET / HTTP/1.1\r\n\r\n", 18, MSG_NOSIGNAL), 18);
		check(recv(fd, &byte, 1, 0) <= 0);
		close(fd);
	}
}

static void a_scanner_does_not_fill_the_log(void)
{
	while (lines < INBOUND)
		sched_yield();
	turn_on(60); /* those are another minute's */
	scan(SCANS);
	turn_on(60);
	scan(1);
	while (further == 0 || lines < INBOUND + LINES + 1)
		sched_yield();
	check_int(lines, INBOUND + LINES + 1);
	check_int(further, SCANS - LINES);
}

int main(void)
{
	char handle[NCCL_NET_HANDLE_MAXSIZE] = {0};
	struct bnet_client client;
	void *listen_comm;

	setenv("NCCL_SOCKET_IFNAME", "=lo", 1);
	setenv("NCCL_SOCKET_FAMILY", "AF_INET", 1);
	alarm(DEADLINE_S);
	check_int(bnet_client_init(&client, bnet_net_table(12), 12, count_lines), ncclSuccess);
	check_int(bnet_client_listen(&client, 0, handle, &listen_comm), ncclSuccess);
	silent_connections_are_dropped_after_ten_seconds();
	a_scanner_does_not_fill_the_log();
	check_int(bnet_client_close_listen(&client, listen_comm), ncclSuccess);
	check_int(bnet_client_finalize(&client), ncclSuccess);
	return 0;
}
