/* SPDX-License-Identifier: MIT
 *
 * See common/look.h.
 */
#include "common/look.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#include "bagua_net.h"
#include "common/clock.h"
#include "base/socket.h"
#include "control/repair.h"
#include "engine/engine.h"
#include "stats/publish.h"
#include "transport/conn.h"
#include "transport/tx.h"
#include "wire/wire.h"

static bool is_on_route(const struct bnet_device *device)
{
	for (int i = 0; i < device->nmembers; i++)
		if (device->members[i]->on_route)
			return true;
	return false;
}

static int device_on_route(void)
{
	const struct bnet_device *device;

	for (int dev = 0; (device = bnet_device_get(&bnet_engine.devices, dev)); dev++)
		if (is_on_route(device))
			return dev;
	return 0;
}

static int ended(const struct bnet_stream *stream)
{
	char byte;
	ssize_t n = recv(stream->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT);

	if (n == 0)
		return -ECONNRESET;
	return n < 0 && errno != EAGAIN && errno != EINTR ? -errno : 0;
}

/* 0 while a stream is left, or may be repaired. None is dropped under the lock. Data that was received and not read yet
 * hides the end. */
static int all_ended(const struct bnet_conn *conn)
{
	int error = 0;

	for (int i = 0; i < conn->nstreams; i++) {
		const struct bnet_stream *stream = conn->streams[i];

		error = ended(stream);
		if (error == 0 || (conn->repairs && bnet_socket_is_closed(stream->fd)))
			return 0;
	}
	return error;
}

/* An idle sender would not notice: whether the peer is still there is found by repairing them. */
static void repair(struct bnet_conn *conn)
{
	if (!conn->sender || !conn->repairs || !bnet_conn_try_own(conn))
		return;
	bnet_tx_break_closed(conn);
	bnet_repair_begin(conn);
	bnet_conn_disown(conn);
}

static int lost(void *comm)
{
	struct bnet_conn *conn = comm;
	int error;

	bnet_engine_lock();
	error = atomic_load(&conn->error);
	if (error == 0)
		error = all_ended(conn);
	if (error == 0)
		repair(conn);
	bnet_engine_unlock();
	return error;
}

/* Under the lock. */
static uint64_t describe(const struct bnet_conn *conn, char *text, size_t size)
{
	const struct bnet_setup *setup = &conn->setup;

	if (text)
		snprintf(text, size, "from %s (%s) to %s: %s", conn->dev->name, conn->dev->address, conn->peer,
			 setup->last_error ? strerror(-setup->last_error) : "no answer");
	return setup->refused_since_ms ? bnet_now_ms() - setup->refused_since_ms : 0;
}

static uint64_t refused_ms(const void *handle, char *text, size_t size)
{
	struct bnet_wire_handle decoded;
	struct bnet_table_entry *entry;
	uint64_t ms = 0;

	if (text)
		text[0] = '\0';
	if (bnet_wire_handle_decode(handle, &decoded) < 0 || decoded.attempt == 0)
		return 0;
	bnet_engine_lock();
	entry = bnet_table_find(&bnet_engine.attempts_by_id, decoded.attempt, NULL);
	if (entry)
		ms = describe(bnet_entry(entry, struct bnet_conn, by_id), text, size);
	bnet_engine_unlock();
	return ms;
}

static void show_operations(bnet_operation_reader *read)
{
	bnet_engine_lock();
	bnet_stats_show_operations(read);
	bnet_engine_unlock();
}

const void *bnet_net_look(void)
{
	static const struct bnet_look look = {.device_on_route = device_on_route,
					      .lost = lost,
					      .refused_ms = refused_ms,
					      .show_operations = show_operations};

	return &look;
}
