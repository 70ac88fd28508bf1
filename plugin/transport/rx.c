/* SPDX-License-Identifier: MIT
 *
 * The receiving direction: each stream is a sequence of frames; a slice goes where its header says, straight from the
 * kernel except for what the read-ahead caught. Only the connection's owner comes here.
 */
#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "transport/conn.h"
#include "base/counters.h"
#include "base/socket.h"

/* One stream's share of a pass, so that a fast stream does not keep its owner from the other connections. */
#define PASS_BYTES (4u << 20)
/* The first stream is asked directly on every pass: small messages come there. The others are asked through epoll, on
 * every pass for this many after they last had something, then on every eighth. */
#define QUIET_PASSES 64
#define QUIET_EVERY 8

typedef long long line_t __attribute__((vector_size(16), aligned(1), may_alias));

/* After everything that was written before. x86-64 keeps stores in order by itself. */
static void put_byte(char *to, char value)
{
#ifndef __x86_64__
	atomic_thread_fence(memory_order_release);
#endif
	*(volatile char *)to = value;
}

/* In address order and never less than 16 aligned bytes at a time within the part that is: the GPU polls flags in these
 * lines while they are written, and memcpy promises no order. */
static void copy_in_order(char *to, const char *from, size_t size)
{
	size_t head = -(uintptr_t)to & 15;

	for (; size && head; size--, head--)
		put_byte(to++, *from++);
	for (; size >= 16; size -= 16, to += 16, from += 16)
		*(volatile line_t *)(void *)to = *(const line_t *)(const void *)from;
	for (; size; size--)
		put_byte(to++, *from++);
}

static uint32_t ahead(const struct bnet_stream *stream)
{
	return stream->ahead_to - stream->ahead_from;
}


static int lost(struct bnet_conn *conn, int error, const char *how)
{
	uint32_t n = atomic_load(&conn->outstanding);

	bnet_conn_fail(conn, error,
		       "the connection from %s broke while %u receive%s outstanding: %s. The remote process has ended or "
		       "the network dropped the connection; look at the other rank's log first",
		       conn->peer, n, n == 1 ? " was" : "s were", how);
	return error;
}

/* Frames up to this are left in the kernel at first; see look. */
#define LOOK_BYTES 2048

/* Is it one frame, whole? */
static bool one_frame(const uint8_t *at, size_t size)
{
	struct bnet_wire_frame frame;

	if (size < BNET_WIRE_FRAME_HEADER)
		return false;
	bnet_wire_frame_decode(at, &frame);
	return size - BNET_WIRE_FRAME_HEADER == frame.length;
}

/* The kernel acknowledges a short segment while a socket is read empty, and whoever waits for a small message waits for
 * that, too. So where one is likely to come alone it is only looked at, and the next call, which most often has nothing
 * else to find, takes it out. Anything else is taken out at once. */
static ssize_t look(struct bnet_stream *stream)
{
	ssize_t n = recv(stream->fd, stream->ahead, BNET_AHEAD, MSG_DONTWAIT | MSG_PEEK);

	if (n <= 0)
		return n;
	if (one_frame(stream->ahead, (size_t)n)) {
		stream->seen = (uint32_t)n;
		return n;
	}
	bnet_count(receive_calls, 1);
	return recv(stream->fd, stream->ahead, (size_t)n, MSG_DONTWAIT);
}

/* To the beginning of the read-ahead; all but a part of a header has been used. */
static void compact(struct bnet_stream *stream)
{
	if (ahead(stream) && stream->ahead_from)
		memmove(stream->ahead, stream->ahead + stream->ahead_from, ahead(stream));
	stream->ahead_to -= stream->ahead_from;
	stream->ahead_from = 0;
}

/* Into the payload's place, if there is a payload, and into the read-ahead behind what it holds; over what has been
 * seen, which comes again. Bytes, new or not; asked: how many there was room for. */
static ssize_t fetch(struct bnet_stream *stream, size_t direct, size_t *asked)
{
	uint32_t at = stream->ahead_to - stream->seen;
	struct iovec iov[2];
	int parts = 0;

	if (direct)
		iov[parts++] = (struct iovec){stream->in_request->data + stream->in_data.offset +
						      (stream->in_data.length - stream->in_left),
					      direct};
	iov[parts++] = (struct iovec){stream->ahead + at, BNET_AHEAD - at};
	*asked = direct + BNET_AHEAD - at;
	if (parts == 2)
		return readv(stream->fd, iov, parts);
	if (stream->alone && stream->ahead_to == 0 && !stream->in_payload)
		return look(stream);
	return recv(stream->fd, iov[0].iov_base, iov[0].iov_len, MSG_DONTWAIT);
}

/* One receive call, where the read-ahead is empty or holds the beginning of a header. New bytes, 0 for nothing now or
 * the end, or -errno. drained: the socket held less than it was asked for. */
static ssize_t receive(struct bnet_conn *conn, struct bnet_stream *stream, bool *drained)
{
	size_t direct = stream->in_request ? stream->in_left : 0, asked;
	uint32_t seen = stream->seen;
	ssize_t n;

	if (!seen)
		compact(stream);
	do
		n = fetch(stream, direct, &asked);
	while (n < 0 && errno == EINTR);
	bnet_count(receive_calls, 1);
	/* Less than asked for means empty, unless the end is what comes next: no edge would announce it again. */
	*drained = n < (ssize_t)asked && (n <= 0 || !stream->hangup);
	if (seen)
		stream->seen = 0;
	if ((n < 0 && errno == EAGAIN) || (seen && n == (ssize_t)seen)) {
		bnet_count(receive_again, 1);
		return 0;
	}
	/* A stream that the peer gave up before it used it takes nothing along. */
	if (n < 0 && (stream->used || stream->index == 0 || bnet_socket_received(stream->fd) > stream->greeted))
		return lost(conn, -errno, strerror(errno));
	if (n <= 0) {
		stream->ended = true;
		if (stream->index)
			atomic_store_explicit(&conn->reap, true, memory_order_relaxed);
		if (stream->in_payload || ahead(stream))
			return lost(conn, -ECONNRESET, "it was closed in the middle of a message");
		return 0;
	}
	n -= seen;
	stream->alone = n <= LOOK_BYTES && !stream->in_payload && ahead(stream) == 0 &&
			one_frame(stream->ahead + stream->ahead_to, (size_t)n);
	if (direct > (size_t)n)
		direct = (size_t)n;
	stream->in_left -= direct;
	stream->ahead_to += (uint32_t)((size_t)n - direct);
	return n;
}

static void slice_arrived(struct bnet_conn *conn, struct bnet_stream *stream)
{
	struct bnet_request *request = stream->in_request;

	stream->in_payload = false;
	stream->in_request = NULL;
	if (!request)
		return;
	bnet_count(slices_received, 1);
	bnet_count(bytes_received, stream->in_data.length);
	if (!bnet_reassembly_arrived(&request->map, stream->in_data.length))
		return;
	bnet_count(messages_received, 1);
	atomic_fetch_sub_explicit(&conn->outstanding, 1, memory_order_relaxed);
	atomic_store_explicit(&request->done, true, memory_order_release);
}

static int begin_message(struct bnet_conn *conn, struct bnet_request *request, const struct bnet_wire_data *data)
{
	if (data->size > request->capacity) {
		bnet_conn_fail(conn, -EMSGSIZE,
			       "message %llu from %s is %llu bytes long, but the receive posted for it has room for %llu: "
			       "the ranks call different collectives, sizes or types, or run with different NCCL_* settings",
			       (unsigned long long)data->message, conn->peer, (unsigned long long)data->size,
			       (unsigned long long)request->capacity);
		return -EMSGSIZE;
	}
	bnet_reassembly_start(&request->map, data->size);
	atomic_store_explicit(&request->size, data->size, memory_order_relaxed);
	atomic_store_explicit(&request->known, true, memory_order_relaxed);
	return 0;
}

static int protocol_error(struct bnet_conn *conn, const char *what)
{
	bnet_conn_fail(conn, -EBADMSG, "%s sent %s: is it the same version of BaguaNet?", conn->peer, what);
	return -EBADMSG;
}

/* Decides where the slice in in_data goes. 1: in_request says where, or nowhere; 0: its message is not posted yet. */
static int place_slice(struct bnet_conn *conn, struct bnet_stream *stream)
{
	const struct bnet_wire_data *data = &stream->in_data;
	struct bnet_request *request;
	int rc;

	if (data->message >= atomic_load_explicit(&conn->posted, memory_order_acquire)) {
		stream->stalled = true;
		return 0;
	}
	request = bnet_conn_find(conn, data->message);
	if (request) {
		if (!atomic_load_explicit(&request->known, memory_order_relaxed)) {
			rc = begin_message(conn, request, data);
			if (rc < 0)
				return rc;
		} else if (atomic_load_explicit(&request->size, memory_order_relaxed) != data->size) {
			return protocol_error(conn, "two slices that disagree about their message");
		}
		rc = bnet_reassembly_place(&request->map, data->offset, data->length);
		if (rc < 0)
			return protocol_error(conn, "overlapping slices");
		if (rc > 0)
			request = NULL;
	}
	stream->in_request = request;
	return 1;
}

/* Reads the next frame's header out of the read-ahead. 1: a payload follows; 0: more bytes or another receive are
 * needed first. */
static int next_frame(struct bnet_conn *conn, struct bnet_stream *stream)
{
	const uint8_t *at = stream->ahead + stream->ahead_from;
	struct bnet_wire_frame frame;
	int rc;

	stream->stalled = false;
	if (ahead(stream) < BNET_WIRE_FRAME_HEADER)
		return 0;
	stream->used = true;
	bnet_wire_frame_decode(at, &frame);
	if (frame.type != BNET_WIRE_FRAME_DATA) {
		/* Nothing that this version acts on. The length is 32 bits wide, so the skip ends. */
		stream->in_request = NULL;
		stream->in_left = frame.length;
		stream->in_payload = true;
		stream->ahead_from += BNET_WIRE_FRAME_HEADER;
		return 1;
	}
	if (ahead(stream) < BNET_WIRE_DATA_HEADER)
		return 0;
	if (bnet_wire_data_decode(at, &stream->in_data) < 0)
		return protocol_error(conn, "a slice that lies outside its message");
	rc = place_slice(conn, stream);
	if (rc <= 0)
		return rc;
	stream->in_left = stream->in_data.length;
	stream->in_payload = true;
	stream->ahead_from += BNET_WIRE_DATA_HEADER;
	return 1;
}

static void take_ahead(struct bnet_stream *stream)
{
	uint32_t n = ahead(stream) < stream->in_left ? ahead(stream) : (uint32_t)stream->in_left;
	uint64_t done = stream->in_data.length - stream->in_left;

	if (stream->in_request)
		copy_in_order(stream->in_request->data + stream->in_data.offset + done,
			      (const char *)stream->ahead + stream->ahead_from, n);
	stream->ahead_from += n;
	stream->in_left -= n;
}

/* Reads until the stream is empty, waits for a receive that is not posted, or has had its share. */
static bool pump(struct bnet_conn *conn, struct bnet_stream *stream)
{
	bool drained = false;
	size_t got = 0;

	while (got < PASS_BYTES) {
		ssize_t n;

		if (stream->in_payload) {
			take_ahead(stream);
			if (stream->in_left == 0) {
				slice_arrived(conn, stream);
				got++;
				continue;
			}
		} else {
			int rc = next_frame(conn, stream);

			if (rc > 0)
				continue;
			if (rc < 0 || stream->stalled)
				break;
		}
		if (drained || stream->ended)
			break;
		n = receive(conn, stream, &drained);
		if (n <= 0)
			break;
		got += (size_t)n;
	}
	/* Who has had its share comes again: what was fetched may not have been looked at. */
	stream->readable = !drained || got >= PASS_BYTES;
	return got > 0;
}

bool bnet_rx_waiting(const struct bnet_conn *conn)
{
	int streams = atomic_load_explicit(&conn->nstreams, memory_order_acquire);

	for (int i = 0; i < streams; i++)
		if (conn->streams[i]->stalled)
			return true;
	return false;
}

/* Can what is outstanding still come? A stream carries messages in order, so one that waits for a later receive holds
 * nothing for an earlier one. */
static bool exhausted(const struct bnet_conn *conn, int streams)
{
	int ended = 0;

	for (int i = 0; i < streams; i++) {
		if (!conn->streams[i]->ended && !conn->streams[i]->stalled)
			return false;
		ended += conn->streams[i]->ended;
	}
	return ended > 0;
}

bool bnet_rx_progress(struct bnet_conn *conn)
{
	int streams = atomic_load_explicit(&conn->nstreams, memory_order_acquire);
	bool moved = false;

	/* Whoever sees a request counted sees it posted. What is posted after this is not waited for by this pass. */
	if (streams == 0 || !bnet_conn_has_work(conn))
		return false;
	moved = pump(conn, conn->streams[0]);
	if (streams > 1) {
		conn->quiet++;
		/* A worker may sleep after this pass, and was woken by an event that is not told twice. */
		if (conn->worker || conn->quiet < QUIET_PASSES || conn->quiet % QUIET_EVERY == 0)
			bnet_conn_poll(conn);
		for (int i = 1; i < streams; i++)
			if (conn->streams[i]->readable || conn->streams[i]->stalled)
				moved |= pump(conn, conn->streams[i]);
	}
	if (!moved && exhausted(conn, streams))
		lost(conn, -ECONNRESET, "the peer closed it");
	return moved;
}
