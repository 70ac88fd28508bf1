/* SPDX-License-Identifier: MIT
 *
 * See conn.h.
 */
#include "transport/conn.h"

#include <errno.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>

#include "base/counters.h"
#include "base/log.h"
#include "base/socket.h"

#define POLL_EVENTS 16

struct bnet_conn *bnet_conn_new(bool sender, const struct bnet_device *dev, const struct bnet_config *config,
				bool watched)
{
	struct bnet_conn *conn = calloc(1, sizeof(*conn));

	if (!conn)
		return NULL;
	bnet_list_init(&conn->node);
	bnet_list_init(&conn->of_path);
	bnet_list_init(&conn->meter.node);
	bnet_work_item_init(&conn->work);
	bnet_table_entry_init(&conn->by_id);
	bnet_list_init(&conn->setup.connectors);
	bnet_list_init(&conn->setup.missing);
	bnet_list_init(&conn->setup.pending);
	bnet_claim_init(&conn->claim);
	bnet_list_init(&conn->broken);
	conn->streams = conn->usual;
	conn->places = BNET_MAX_STREAMS;
	conn->sender = sender;
	conn->dev = dev;
	conn->config = config;
	conn->epoll = -1;
	atomic_init(&conn->level, 1);
	conn->setup.wanted = conn->setup.most = 1;
	conn->watched = watched;
	for (int i = 0; i < BNET_RING; i++) {
		conn->ring[i].conn = conn;
		bnet_reassembly_init(&conn->ring[i].reassembly);
	}
	bnet_count(connections, 1);
	return conn;
}

void bnet_conn_close(struct bnet_conn *conn)
{
	for (int i = 0; i < conn->nstreams; i++) {
		bnet_socket_close(conn->streams[i]->fd);
		conn->streams[i]->fd = -1;
	}
	bnet_socket_close(conn->epoll);
	conn->epoll = -1;
}

static void put_copy(struct bnet_conn *conn, void *copy, uint64_t length)
{
	if (copy)
		bnet_copy_put(&conn->copies, copy, length);
}

void bnet_stream_free(struct bnet_conn *conn, struct bnet_stream *stream)
{
	if (stream->replaces)
		bnet_stream_free(conn, stream->replaces);
	if (stream->out.active)
		put_copy(conn, stream->out.copy, stream->out.length);
	while (stream->ledger.count) {
		struct bnet_sent_slice slice = bnet_ledger_take(&stream->ledger);

		put_copy(conn, slice.copy, slice.data.length);
	}
	bnet_ledger_free(&stream->ledger);
	bnet_seal_free(stream->seal);
	free(stream);
}

void bnet_conn_free(struct bnet_conn *conn)
{
	bnet_conn_close(conn);
	for (int i = 0; i < conn->nstreams; i++) {
		bnet_stream_free(conn, conn->streams[i]);
		bnet_count(streams, -1);
	}
	bnet_list_each(node, &conn->broken)
		bnet_stream_free(conn, bnet_entry(node, struct bnet_stream, node));
	if (conn->streams != conn->usual)
		free(conn->streams);
	bnet_copies_free(&conn->copies);
	for (int i = 0; i < BNET_RING; i++)
		bnet_reassembly_destroy(&conn->ring[i].reassembly);
	free(conn);
	bnet_count(connections, -1);
}

static int watch_in(int epoll, const struct bnet_conn *conn, const struct bnet_stream *stream, int op, bool armed)
{
	uint32_t wanted = EPOLLIN | EPOLLRDHUP | EPOLLET | (conn->sender ? (uint32_t)EPOLLOUT : 0);
	struct epoll_event event = {.events = armed ? wanted : EPOLLET, .data.u32 = (uint32_t)stream->index};

	return epoll_ctl(epoll, op, stream->fd, &event) < 0 ? -errno : 0;
}

static int watch_stream(const struct bnet_conn *conn, const struct bnet_stream *stream, int op, bool armed)
{
	return watch_in(conn->epoll, conn, stream, op, armed);
}

/* A lone stream needs no epoll set, unless a worker sleeps on it; the second stream creates the set. The connection's
 * owner may look at it as soon as it is there. */
static int open_set(struct bnet_conn *conn)
{
	int rc, fd = bnet_fd_opened(epoll_create1(EPOLL_CLOEXEC));

	if (fd < 0)
		return fd;
	rc = conn->nstreams ? watch_in(fd, conn, conn->streams[0], EPOLL_CTL_ADD, true) : 0;
	if (rc == 0 && conn->ready.flag)
		rc = bnet_readiness_add(&conn->ready, fd);
	if (rc < 0)
		bnet_socket_close(fd);
	else
		conn->epoll = fd;
	return rc;
}

/* For one more stream, of a receiver, that takes another one's place. */
static int make_place(struct bnet_conn *conn, const struct bnet_stream_start *start)
{
	struct bnet_stream **more;

	if (conn->nstreams < conn->places)
		return 0;
	if (conn->sender || !start || !start->repairs || conn->places == BNET_MOST_PLACES)
		return -ENOSPC;
	more = calloc((size_t)conn->places * 2, sizeof(struct bnet_stream *));
	if (!more)
		return -ENOMEM;
	memcpy(more, conn->streams, (size_t)conn->places * sizeof(struct bnet_stream *));
	if (conn->streams != conn->usual)
		free(conn->streams);
	conn->streams = more;
	conn->places *= 2;
	return 0;
}

int bnet_conn_add_stream(struct bnet_conn *conn, int fd, const struct bnet_stream_start *start)
{
	int n = atomic_load_explicit(&conn->nstreams, memory_order_relaxed);
	struct bnet_stream *stream;
	int rc = make_place(conn, start);

	if (rc < 0)
		return rc;
	stream = calloc(1, sizeof(*stream));
	if (!stream)
		return -ENOMEM;
	stream->fd = fd;
	stream->index = n;
	stream->writable = true;
	stream->readable = true;
	stream->in.limit = UINT64_MAX;
	if (start) {
		stream->serial = start->serial;
		stream->dialed = start->dialed;
		stream->away = start->away;
		stream->replaces = start->replaces;
		stream->position = start->position;
		/* A way that lets handshakes pass and no payload is not better for being tried again. */
		if (start->replaces && start->position < atomic_load(&start->replaces->delivery.written))
			stream->delivery.silent = start->replaces->delivery.silent;
		stream->in.repairs = start->repairs;
		stream->seal = start->seal;
	}
	stream->in.handshake_bytes = bnet_socket_received(fd);
	bnet_list_init(&stream->node);
	if (conn->sender) {
		bnet_delivery_start(&stream->delivery, fd);
		rc = bnet_ledger_reserve(&stream->ledger); /* with its first rows alone it goes on, if need be */
	}
	if (rc == 0 && (n || conn->watched) && conn->epoll < 0)
		rc = open_set(conn);
	/* Everything that can fail comes first, and no event may precede the stream that it names: so it is added
	 * unarmed. */
	if (conn->epoll >= 0 && rc == 0)
		rc = watch_stream(conn, stream, EPOLL_CTL_ADD, false);
	if (rc < 0) {
		bnet_ledger_free(&stream->ledger);
		free(stream); /* the seal is still the caller's */
		return rc;
	}
	for (int i = 0; i < n && stream->in.repairs; i++)
		if (conn->streams[i]->in.awaits == stream->in.repairs) {
			conn->streams[i]->in.awaits = 0;
			atomic_store_explicit(&conn->reap, true, memory_order_relaxed);
		}
	if (!conn->sealed)
		conn->sealed = bnet_seal_text(stream->seal);
	conn->streams[n] = stream;
	atomic_store(&conn->nstreams, n + 1);
	if (conn->epoll >= 0)
		watch_stream(conn, stream, EPOLL_CTL_MOD, true);
	/* bnet_conn_fail sets the error first and looks at nstreams after: one of the two sees the other. */
	if (atomic_load(&conn->error))
		shutdown(fd, SHUT_RDWR);
	bnet_count(streams, 1);
	return 0;
}

struct bnet_stream *bnet_conn_take_stream(struct bnet_conn *conn, int index)
{
	int last = atomic_load_explicit(&conn->nstreams, memory_order_relaxed) - 1;
	struct bnet_stream *stream = conn->streams[index];

	epoll_ctl(conn->epoll, EPOLL_CTL_DEL, stream->fd, NULL);
	conn->streams[index] = conn->streams[last];
	conn->streams[index]->index = index;
	conn->streams[last] = NULL;
	atomic_store(&conn->nstreams, last);
	if (index != last)
		watch_stream(conn, conn->streams[index], EPOLL_CTL_MOD, true);
	bnet_count(streams, -1);
	return stream;
}

int bnet_conn_drop_stream(struct bnet_conn *conn, int index)
{
	struct bnet_stream *stream = bnet_conn_take_stream(conn, index);
	int fd = stream->fd;

	bnet_stream_free(conn, stream);
	return fd;
}

bool bnet_conn_try_own(struct bnet_conn *conn)
{
	return !atomic_load_explicit(&conn->owner, memory_order_relaxed) &&
	       !atomic_exchange_explicit(&conn->owner, true, memory_order_acquire);
}

bool bnet_conn_try_own_for(struct bnet_conn *conn, int tries)
{
	for (int i = 0; i < tries; i++)
		if (bnet_conn_try_own(conn))
			return true;
	return false;
}

void bnet_conn_own(struct bnet_conn *conn)
{
	const struct timespec pause = {.tv_nsec = 100000};

	/* Sleeping lets a thread of lower priority on the same processor finish its pass. */
	for (int tries = 0; !bnet_conn_try_own(conn); tries++)
		if (tries < 100)
			sched_yield();
		else
			nanosleep(&pause, NULL);
}

void bnet_conn_disown(struct bnet_conn *conn)
{
	atomic_store_explicit(&conn->owner, false, memory_order_release);
}

/* It may have joined with the first stream and got its set later. One that never came up has no stream. */
void bnet_conn_unready(struct bnet_conn *conn)
{
	if (conn->ready.flag)
		bnet_readiness_leave(&conn->ready, (int[]){conn->streams[0]->fd, conn->epoll});
}

bool bnet_stream_say(const struct bnet_stream *stream, enum bnet_wire_frame_type type)
{
	const struct bnet_wire_frame frame = {.type = type};
	uint8_t plain[BNET_WIRE_FRAME_HEADER];
	const uint8_t *bytes = plain;
	size_t size = sizeof(plain);

	if (stream->broken || (stream->out.active && stream->out.header_left < BNET_WIRE_DATA_HEADER))
		return false;
	bnet_wire_frame_encode(plain, &frame);
	if (stream->seal) {
		if (bnet_seal_frame(stream->seal, plain, size, NULL, 0) < 0)
			return false;
		bytes = bnet_seal_left(stream->seal, &size);
	}
	return send(stream->fd, bytes, size, MSG_DONTWAIT | MSG_NOSIGNAL) == (ssize_t)size;
}

/* What the receiver's kernel has got it keeps after the reset. Where a slice is under way its end says as much as the
 * frame; a reset would be taken for one that is to be repaired. */
static void break_stream(const struct bnet_conn *conn, const struct bnet_stream *stream)
{
	bool said = false;

	if (conn->sender && !atomic_load_explicit(&conn->mute, memory_order_relaxed))
		said = bnet_stream_say(stream, BNET_WIRE_FRAME_FAILED);
	if (said || !conn->sender || !conn->repairs || bnet_zerocopy_pending(&stream->zerocopy))
		bnet_socket_reset(stream->fd);
	else
		shutdown(stream->fd, SHUT_RDWR);
}

void bnet_conn_fail(struct bnet_conn *conn, int error, const char *why, ...)
{
	int none = 0;
	char text[512];
	va_list args;

	bnet_log_owe();
	if (!atomic_compare_exchange_strong(&conn->error, &none, error)) {
		bnet_log_owe_no_more();
		return;
	}
	va_start(args, why);
	vsnprintf(text, sizeof(text), why, args);
	va_end(args);
	/* After the close of a sender, the receiver's may just have come. */
	if (error == -ESHUTDOWN || conn->setup.closed)
		bnet_info(NCCL_NET, "NET/BaguaNet: %s", text);
	else if (error != -ECANCELED)
		bnet_warn("NET/BaguaNet: %s", text);
	bnet_log_owe_no_more();
	/* The peer must learn of it now, not when the communicator is torn down. A receiver resets, since an orderly
	 * end would leave a sender waiting behind a closed window. So does a sender that has lost a stream, since its
	 * receiver would wait for that stream after the orderly end of the others. A sender whose memory was given up
	 * ends in order, and bytes sent before still arrive, unless the kernel still uses that memory. */
	for (int i = 0; i < atomic_load(&conn->nstreams); i++) {
		bool orderly = conn->sender && error == -ECANCELED;

		if (orderly && !bnet_zerocopy_pending(&conn->streams[i]->zerocopy))
			shutdown(conn->streams[i]->fd, SHUT_RDWR);
		else
			break_stream(conn, conn->streams[i]);
	}
}

/* False: there may be more. */
static bool poll_some(struct bnet_conn *conn)
{
	struct epoll_event events[POLL_EVENTS];
	int n = epoll_wait(conn->epoll, events, POLL_EVENTS, 0);
	uint32_t streams = (uint32_t)atomic_load_explicit(&conn->nstreams, memory_order_acquire);

	bnet_conn_count(conn, poll_calls, 1);
	for (int i = 0; i < n; i++) {
		struct bnet_stream *stream;

		if (events[i].data.u32 >= streams)
			continue; /* it is about to join, and is armed and asked once it has */
		stream = conn->streams[events[i].data.u32];
		if (events[i].events & (EPOLLOUT | EPOLLERR | EPOLLHUP))
			stream->writable = true;
		if (events[i].events & (EPOLLIN | EPOLLRDHUP | EPOLLERR | EPOLLHUP))
			stream->readable = true;
		/* Not EPOLLERR: zerocopy notifications raise it, and errors raise EPOLLHUP as well. */
		if (events[i].events & (EPOLLRDHUP | EPOLLHUP))
			stream->hangup = true;
		if (events[i].data.u32)
			conn->quiet = 0;
	}
	return n < POLL_EVENTS;
}

/* Takes all events: those left in the set would raise no further edge of it. */
void bnet_conn_poll(struct bnet_conn *conn)
{
	while (!poll_some(conn))
		;
}
