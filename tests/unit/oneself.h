/* SPDX-License-Identifier: MIT
 *
 * For test programs that hold both ends of their connections.
 */
#ifndef BNET_ONESELF_H
#define BNET_ONESELF_H

#include <sched.h>
#include <stdarg.h>
#include <stdio.h>

#include "check.h"
#include "common/client.h"
#include "control/active.h"
#include "engine/engine.h"

/* An ncclDebugLogger_t: a failed check is easier to understand with the warnings. */
__attribute__((format(printf, 5, 6))) static inline void print_warnings(ncclDebugLogLevel level, unsigned long flags,
									const char *file, int line, const char *fmt,
									...)
{
	va_list args;

	(void)flags;
	if (level != NCCL_LOG_WARN)
		return;
	va_start(args, fmt);
	fprintf(stderr, "%s:%d ", file, line);
	vfprintf(stderr, fmt, args);
	fprintf(stderr, "\n");
	va_end(args);
}

/* Does the control thread run? It ends some time after the last connection. */
static inline bool control_runs(void)
{
	bool running;

	bnet_engine_lock();
	running = bnet_engine.running;
	bnet_engine_unlock();
	return running;
}

struct oneself {
	void *send, *recv;
};

/* Over the first device. */
static inline struct oneself connect_to_oneself(const struct bnet_client *client)
{
	char handle[NCCL_NET_HANDLE_MAXSIZE] = {0};
	struct oneself ends = {NULL, NULL};
	void *listen;

	check_int(bnet_client_listen(client, 0, handle, &listen), ncclSuccess);
	check(listen != NULL);
	while (!ends.send || !ends.recv) {
		if (!ends.send)
			check_int(bnet_client_connect(client, 0, handle, &ends.send), ncclSuccess);
		if (!ends.recv)
			check_int(bnet_client_accept(client, listen, &ends.recv), ncclSuccess);
	}
	check_int(bnet_client_close_listen(client, listen), ncclSuccess);
	return ends;
}

/* Sends a message and waits until both ends are done. */
static inline void pass_to_oneself(const struct bnet_client *client, struct oneself ends, char *from, char *into,
				   size_t size)
{
	void *requests[2];

	check_int(bnet_client_irecv(client, ends.recv, into, size, 0, NULL, &requests[0]), ncclSuccess);
	check_int(bnet_client_isend(client, ends.send, from, size, 0, NULL, &requests[1]), ncclSuccess);
	for (int i = 0; i < 2; i++)
		for (int done = 0; !done; sched_yield())
			check_int(bnet_client_test(client, requests[i], &done, NULL), ncclSuccess);
}

/* Sends a byte and waits until both ends are done. */
static inline void send_to_oneself(const struct bnet_client *client, struct oneself ends)
{
	char from = 'x', into;

	pass_to_oneself(client, ends, &from, &into, 1);
	check_int(into, from);
}

/* The connection moves, as its path and the control thread see it: it is in the lists of both. Under the engine's lock. */
static inline void move_oneself(struct oneself ends)
{
	struct bnet_conn *conn = ends.send;

	bnet_engine_posted(&conn->work);
	bnet_active_collect();
}

static inline void close_to_oneself(const struct bnet_client *client, struct oneself ends)
{
	check_int(bnet_client_close_send(client, ends.send), ncclSuccess);
	check_int(bnet_client_close_recv(client, ends.recv), ncclSuccess);
}

#endif
