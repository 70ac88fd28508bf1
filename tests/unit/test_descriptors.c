/* SPDX-License-Identifier: MIT
 *
 * A process that runs out of descriptors says so once a minute, for streams and for inbound connections, however often
 * it happens and however long it lasts.
 */
#include <netinet/in.h>
#include <sched.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "bagua_net.h"
#include "engine/engine.h"
#include "oneself.h"
#include "transport/conn.h"

#define DEADLINE_S 50 /* less than a minute */
#define DESCRIPTORS 200
#define PAIRS 20

static struct bnet_client client;
static _Atomic int fewer_streams, cannot_accept;

__attribute__((format(printf, 5, 6))) static void count(ncclDebugLogLevel level, unsigned long flags, const char *file,
							int line, const char *fmt, ...)
{
	char text[1024];
	va_list args;

	(void)flags;
	(void)file;
	(void)line;
	if (level != NCCL_LOG_WARN)
		return;
	va_start(args, fmt);
	vsnprintf(text, sizeof(text), fmt, args);
	va_end(args);
	fewer_streams += strstr(text, "half of the limit of open files") != NULL;
	cannot_accept += strstr(text, "cannot accept a connection") != NULL;
}

static void limit_descriptors(rlim_t most)
{
	struct rlimit limit;

	check_int(getrlimit(RLIMIT_NOFILE, &limit), 0);
	limit.rlim_cur = most;
	check_int(setrlimit(RLIMIT_NOFILE, &limit), 0);
}

static bool opens_streams(const struct bnet_conn *conn)
{
	bool opens;

	bnet_engine_lock();
	opens = bnet_conn_is_opening(conn);
	bnet_engine_unlock();
	return opens;
}

static void connections_that_lack_streams_share_a_line(void)
{
	struct oneself ends[PAIRS];

	for (int i = 0; i < PAIRS; i++)
		ends[i] = connect_to_oneself(&client);
	for (int i = 0; i < PAIRS; i++)
		while (opens_streams(ends[i].send))
			sched_yield();
	check_int(fewer_streams, 1);
	for (int i = 0; i < PAIRS; i++)
		close_to_oneself(&client, ends[i]);
}

static uint64_t paused_until(void)
{
	uint64_t until;

	bnet_engine_lock();
	until = bnet_engine.listeners[0].paused_until_ms;
	bnet_engine_unlock();
	return until;
}

static void await_pauses(int number)
{
	for (uint64_t last = 0; number > 0;) {
		uint64_t now = paused_until();

		if (now == 0 || now == last)
			continue;
		last = now;
		number--;
	}
}

static uint64_t next_warning(uint64_t change)
{
	uint64_t at;

	bnet_engine_lock();
	if (change)
		bnet_engine.listeners[0].warn_at_ms = change;
	at = bnet_engine.listeners[0].warn_at_ms;
	bnet_engine_unlock();
	return at;
}

static bool nothing_is_closing(void)
{
	bool nothing;

	bnet_engine_lock();
	nothing = bnet_list_empty(&bnet_engine.drains) && bnet_list_empty(&bnet_engine.inbound) &&
		  bnet_list_empty(&bnet_engine.connectors);
	bnet_engine_unlock();
	return nothing;
}

static void the_line_is_repeated_after_a_minute(void)
{
	char handle[NCCL_NET_HANDLE_MAXSIZE] = {0};
	struct sockaddr_storage address;
	int stranger, free_one;
	uint64_t due;
	void *listen;

	check_int(bnet_client_listen(&client, 0, handle, &listen), ncclSuccess);
	address = bnet_engine.listeners[0].addr;
	while (!nothing_is_closing())
		sched_yield(); /* else a descriptor below the new limit would become free */
	stranger = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	free_one = dup(stranger);
	close(free_one);
	limit_descriptors((rlim_t)free_one);
	check_int(connect(stranger, (struct sockaddr *)&address, sizeof(struct sockaddr_in)), 0);
	while (cannot_accept == 0)
		sched_yield();
	due = next_warning(0);
	await_pauses(3);
	check_int(cannot_accept, 1);
	check(next_warning(0) == due);
	next_warning(1); /* as if the minute were over */
	while (cannot_accept == 1)
		sched_yield();
	limit_descriptors(DESCRIPTORS);
	close(stranger);
	check_int(bnet_client_close_listen(&client, listen), ncclSuccess);
}

int main(void)
{
	setenv("NCCL_SOCKET_IFNAME", "=lo", 1);
	setenv("NCCL_SOCKET_FAMILY", "AF_INET", 1);
	setenv("BAGUA_NET_MIN_NSTREAMS", "8", 1);
	setenv("BAGUA_NET_STATS", "0", 1); /* which has a descriptor */
	alarm(DEADLINE_S);
	limit_descriptors(DESCRIPTORS);
	check_int(bnet_client_init(&client, bnet_net_table(12), 12, count), ncclSuccess);
	connections_that_lack_streams_share_a_line();
	the_line_is_repeated_after_a_minute();
	check_int(bnet_client_finalize(&client), ncclSuccess);
	return 0;
}
