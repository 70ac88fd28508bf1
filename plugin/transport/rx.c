/* SPDX-License-Identifier: MIT
 *
 * See rx.h.
 */
#include "transport/rx.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>

#include "base/recorder.h"
#include "base/socket.h"
#include "common/clock.h"
#include "transport/request.h"
#include "transport/source.h"

/* A stream's budget in a pass, so that a fast stream does not keep its owner from the other connections. */
#define PASS_BYTES (4u << 20)
/* The first stream is read directly on every pass in which no other one brought anything, since small messages arrive
 * there. The others are asked through epoll: on every pass for this many after they last had something, then on every
 * eighth. */
#define QUIET_PASSES 64
#define QUIET_EVERY 8
/* Where BAGUA_NET_KEEPALIVE sets no limit: how long a receiver waits for the repair of its last stream. */
#define LONG_PATIENCE_S 120
/* A question has an answer within five seconds, or is repeated. */
#define ASKING_S 12

typedef long long line_t __attribute__((vector_size(16), aligned(1), may_alias));

/* A store after all earlier ones. x86-64 keeps the order of stores. */
static void put_byte(char *to, char value)
{
#ifndef __x86_64__
	atomic_thread_fence(memory_order_release);
#endif
	*(volatile char *)to = value;
}

/* In address order, and 16 bytes at a time where the destination is aligned: the GPU polls flags in these lines while
 * they are written, and memcpy guarantees no order. */
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

/* All streams have ended after whole frames. */
static void ended(struct bnet_conn *conn)
{
	if (conn->closed)
		bnet_conn_fail(conn, -ESHUTDOWN, "%s has closed its connection; receives that are left: %u", conn->peer,
			       bnet_conn_outstanding(conn));
	else
		bnet_source_lost(conn, -ECONNRESET, "the peer closed it");
}

/* ---- frames ---- */

static void record_slice(const struct bnet_conn *conn, const struct bnet_stream *stream)
{
	bnet_record(&(struct bnet_event){
		.kind = BNET_EVENT_SLICE,
		.begin_us = stream->in.began_us,
		.end_us = bnet_now_us(),
		.connection = conn->id,
		.stream = stream->serial,
		.message = stream->in.data.message,
		.bytes = stream->in.data.length,
	});
}

static void slice_arrived(struct bnet_conn *conn, struct bnet_stream *stream)
{
	struct bnet_incoming *in = &stream->in;
	struct bnet_request *request = in->request;

	in->state = BNET_INCOMING_HEADER;
	in->request = NULL;
	if (!request)
		return;
	bnet_conn_count(conn, slices_received, 1);
	bnet_conn_count(conn, bytes_received, in->data.length);
	if (in->began_us && bnet_recording_is_on())
		record_slice(conn, stream);
	if (bnet_reassembly_arrived(&request->reassembly, in->data.length))
		bnet_request_received(conn, request);
}

static int begin_message(struct bnet_conn *conn, struct bnet_request *request, const struct bnet_wire_data *data)
{
	if (data->size > request->capacity) {
		bnet_conn_fail(
			conn, -EMSGSIZE,
			"message %llu from %s is %llu bytes long, but the receive posted for it has room for %llu: "
			"the ranks call different collectives, sizes or types, or run with different NCCL_* settings",
			(unsigned long long)data->message, conn->peer, (unsigned long long)data->size,
			(unsigned long long)request->capacity);
		return -EMSGSIZE;
	}
	bnet_reassembly_start(&request->reassembly, data->size);
	atomic_store_explicit(&request->size, data->size, memory_order_relaxed);
	atomic_store_explicit(&request->known, true, memory_order_relaxed);
	return 0;
}

static int protocol_error(struct bnet_conn *conn, const char *what)
{
	bnet_conn_fail(conn, -EBADMSG, "%s sent %s: is it the same version of BaguaNet?", conn->peer, what);
	return -EBADMSG;
}

/* length: an aside on the frame's, or "". */
static int altered(struct bnet_conn *conn, const struct bnet_stream *stream, const char *length)
{
	bnet_count(unverified, 1);
	bnet_conn_fail(conn, -EBADMSG,
		       "what came from %s over %s (%s) %s%s: it was altered on the way, or memory there or here is faulty",
		       conn->peer, conn->dev->name, conn->dev->address, bnet_seal_kind_text(stream->seal), length);
	return -EBADMSG;
}

/* Finds the request that the slice belongs to. 1: in->request names it, or is NULL for a slice to skip; 0: the message
 * is not posted yet, and the stream stalls. */
static int place_slice(struct bnet_conn *conn, struct bnet_incoming *in)
{
	const struct bnet_wire_data *data = &in->data;
	struct bnet_request *request;
	int rc;

	in->request = NULL;
	if (!in->frame && data->length > bnet_source_left_behind(in, BNET_WIRE_DATA_HEADER))
		return 1; /* it is cut off, and comes again whole */
	if (data->message >= atomic_load_explicit(&conn->posted, memory_order_acquire)) {
		in->state = BNET_INCOMING_STALLED;
		return 0;
	}
	request = bnet_request_find(conn, data->message);
	if (request) {
		if (!atomic_load_explicit(&request->known, memory_order_relaxed)) {
			rc = begin_message(conn, request, data);
			if (rc < 0)
				return rc;
		} else if (atomic_load_explicit(&request->size, memory_order_relaxed) != data->size) {
			return protocol_error(conn, "two slices that disagree about their message");
		}
		rc = bnet_reassembly_place(&request->reassembly, data->offset, data->length);
		if (rc < 0)
			return protocol_error(conn, "overlapping slices");
		if (rc > 0)
			request = NULL;
	}
	in->request = request;
	return 1;
}

/* to: NULL for one that is skipped. */
static void begin_payload(struct bnet_incoming *in, void *to, uint64_t length, uint32_t header)
{
	in->to = to;
	in->length = in->left = length;
	in->began_us = bnet_recording_is_on() ? bnet_now_us() : 0;
	in->state = BNET_INCOMING_PAYLOAD;
	in->ahead.from += header;
}

/* A frame that carries no slice. This version acts on no other type. -errno: the connection has failed. */
static int heed(struct bnet_conn *conn, const struct bnet_wire_frame *frame)
{
	if (frame->type == BNET_WIRE_FRAME_FAILED)
		return bnet_source_lost(conn, -ECONNRESET, "the sender has given it up");
	if (frame->type == BNET_WIRE_FRAME_CLOSE)
		conn->closed = true;
	return 0;
}

static char *place_of(const struct bnet_incoming *in)
{
	return in->request ? in->request->data + in->data.offset : NULL;
}

/* Parses the next frame's header in the read-ahead. 1: a payload follows; 0: more bytes are needed, or the stream
 * stalls. */
static int next_frame(struct bnet_conn *conn, struct bnet_stream *stream)
{
	struct bnet_incoming *in = &stream->in;
	const uint8_t *at = in->ahead.bytes + in->ahead.from;
	struct bnet_wire_frame frame;
	uint8_t *to = NULL;
	int rc;

	in->state = BNET_INCOMING_HEADER;
	if (bnet_source_unparsed(&in->ahead) < BNET_WIRE_FRAME_HEADER)
		return 0;
	in->used = true;
	bnet_wire_frame_decode(at, &frame);
	if (stream->seal || frame.type != BNET_WIRE_FRAME_DATA) {
		rc = stream->seal ? bnet_seal_collect(stream->seal, at, &to) : heed(conn, &frame);
		if (stream->seal && rc == -EBADMSG)
			return altered(conn, stream, ", with a length that no frame has");
		if (stream->seal && rc < 0)
			return bnet_source_lost(conn, rc, "there is no memory for a frame");
		if (rc < 0)
			return rc;
		/* The length is 32 bits wide, so a skip ends. */
		in->request = NULL;
		begin_payload(in, to, frame.length, BNET_WIRE_FRAME_HEADER);
		return 1;
	}
	if (bnet_source_unparsed(&in->ahead) < BNET_WIRE_DATA_HEADER)
		return 0;
	if (bnet_wire_data_decode(at, &in->data) < 0)
		return protocol_error(conn, "a slice that lies outside its message");
	rc = place_slice(conn, in);
	if (rc > 0)
		begin_payload(in, place_of(in), in->data.length, BNET_WIRE_DATA_HEADER);
	return rc;
}

/* The part of the payload that the read-ahead holds. */
static void copy_payload(struct bnet_incoming *in)
{
	uint32_t n = bnet_source_unparsed(&in->ahead) < in->left ? bnet_source_unparsed(&in->ahead)
								 : (uint32_t)in->left;

	if (in->to)
		copy_in_order((char *)in->to + (in->length - in->left), (const char *)in->ahead.bytes + in->ahead.from,
			      n);
	in->ahead.from += n;
	in->left -= n;
}

/* ---- encrypted streams ---- */

/* The frame is complete. */
static int open_frame(struct bnet_conn *conn, struct bnet_stream *stream)
{
	struct bnet_incoming *in = &stream->in;
	int rc = bnet_seal_open(stream->seal, &in->frame, &in->frame_size);

	in->state = BNET_INCOMING_HEADER;
	if (rc == 0)
		return 0;
	in->frame = NULL;
	if (rc != -EBADMSG)
		return bnet_source_lost(conn, rc, "this process ends, or is out of memory");
	return altered(conn, stream, "");
}

/* Copies a verified slice into its message, in address order. 1: done; 0: the message is not posted yet. */
static int take_frame(struct bnet_conn *conn, struct bnet_stream *stream)
{
	struct bnet_incoming *in = &stream->in;
	struct bnet_wire_frame frame;
	int rc;

	bnet_wire_frame_decode(in->frame, &frame);
	in->state = BNET_INCOMING_HEADER;
	if (frame.type != BNET_WIRE_FRAME_DATA) {
		in->frame = NULL;
		return heed(conn, &frame) < 0 ? -ECONNRESET : 1;
	}
	if (in->frame_size < BNET_WIRE_DATA_HEADER || bnet_wire_data_decode(in->frame, &in->data) < 0)
		return protocol_error(conn, "a slice that lies outside its message");
	rc = place_slice(conn, in);
	if (rc <= 0)
		return rc;
	if (in->request)
		copy_in_order(place_of(in), (const char *)in->frame + BNET_WIRE_DATA_HEADER, in->data.length);
	in->frame = NULL;
	slice_arrived(conn, stream);
	return 1;
}

/* ---- a pass ---- */

/* Parses what the read-ahead holds up to the next point where more bytes are needed. True: a slice was completed. */
static bool parse(struct bnet_conn *conn, struct bnet_stream *stream, bool *more)
{
	struct bnet_incoming *in = &stream->in;

	*more = false;
	if (in->frame)
		return take_frame(conn, stream) > 0;
	if (in->state != BNET_INCOMING_PAYLOAD) {
		int rc = next_frame(conn, stream);

		*more = rc == 0 && in->state == BNET_INCOMING_HEADER;
		if (rc <= 0)
			return false;
	}
	copy_payload(in);
	*more = in->left > 0;
	if (*more)
		return false;
	if (stream->seal)
		return open_frame(conn, stream) == 0 && take_frame(conn, stream) > 0;
	slice_arrived(conn, stream);
	return true;
}

/* Reads until the stream is empty, has ended, stalls, or has used its budget. */
static bool pump(struct bnet_conn *conn, struct bnet_stream *stream)
{
	bool drained = false;
	size_t got = 0;

	while (got < PASS_BYTES && stream->in.state != BNET_INCOMING_ENDED && !stream->broken) {
		bool more;
		ssize_t n;

		if (parse(conn, stream, &more)) {
			got++;
			continue;
		}
		if (!more || drained)
			break;
		n = bnet_source_receive(conn, stream, &drained);
		if (n <= 0)
			break;
		got += (size_t)n;
	}
	/* A stream that used its budget stays readable: fetched bytes may be unparsed. */
	stream->readable = !drained || got >= PASS_BYTES;
	return got > 0;
}

bool bnet_rx_has_stalled(const struct bnet_conn *conn)
{
	int streams = atomic_load_explicit(&conn->nstreams, memory_order_acquire);

	for (int i = 0; i < streams; i++)
		if (conn->streams[i]->in.state == BNET_INCOMING_STALLED)
			return true;
	return false;
}

static bool has_something(const struct bnet_stream *stream)
{
	return !stream->broken && (stream->readable || stream->in.state == BNET_INCOMING_STALLED);
}

/* Seconds for which a receiver that can only wait for repair waits for it. */
static uint64_t patience_s(const struct bnet_conn *conn)
{
	return conn->config->keepalive ? (uint64_t)conn->config->keepalive : LONG_PATIENCE_S;
}

/* When the last packet of its sender's host came, where the kernel's probes have ended the streams: it has waited
 * already. It is late enough to ask that host a few times. A reset that nobody has looked at, since nothing was posted,
 * says nothing of that host. */
static uint64_t last_heard_us(const struct bnet_conn *conn, uint64_t now)
{
	const uint64_t patience = patience_s(conn), asking = patience < ASKING_S ? patience : ASKING_S;
	uint64_t unheard_us = (patience - asking) * 1000000;
	bool told = false;

	for (int i = 0; i < conn->nstreams; i++) {
		const struct bnet_stream *stream = conn->streams[i];
		uint64_t us;

		if (stream->broken && !stream->timed_out)
			continue;
		us = bnet_socket_unheard_ms(stream->fd) * UINT64_C(1000);
		unheard_us = us < unheard_us ? us : unheard_us;
		told = true;
	}
	return told ? now - unheard_us : now;
}

static void wait_for_repair(struct bnet_conn *conn)
{
	/* The control thread may put it off at any time. */
	uint64_t since = atomic_load_explicit(&conn->alone_us, memory_order_acquire);
	uint64_t now = bnet_now_us(), patience = patience_s(conn);
	char how[128];

	if (since == 0)
		atomic_store_explicit(&conn->alone_us, since = last_heard_us(conn, now), memory_order_relaxed);
	if (now < since + patience * 1000000)
		return;
	snprintf(how, sizeof(how), "its streams have ended, and nothing has come from its sender for %llu s%s",
		 (unsigned long long)patience, conn->config->keepalive ? " (BAGUA_NET_KEEPALIVE)" : "");
	bnet_source_lost(conn, -ETIMEDOUT, how);
}

/* Nothing has come. Can no outstanding receive complete any more? A stream carries messages in order, so a stalled one
 * holds nothing for an earlier receive: what is missing was on a stream that has ended, or is on one that is broken. */
static void look_for_end(struct bnet_conn *conn, int streams)
{
	bool broken = false;

	for (int i = 0; i < streams; i++) {
		enum bnet_incoming_state state = conn->streams[i]->in.state;

		broken |= conn->streams[i]->broken || conn->streams[i]->in.awaits;
		if (!conn->streams[i]->broken && state != BNET_INCOMING_ENDED && state != BNET_INCOMING_STALLED) {
			atomic_store_explicit(&conn->alone_us, 0, memory_order_relaxed);
			return;
		}
	}
	/* A stream that has joined since may carry what is missing. */
	if (atomic_load_explicit(&conn->nstreams, memory_order_acquire) != streams)
		return;
	if (broken && !conn->closed)
		wait_for_repair(conn);
	else if (conn->gone || broken) /* a reset behind the sender's CLOSE is the end */
		ended(conn);
}

static bool pump_others(struct bnet_conn *conn, int streams)
{
	bool moved = false;

	conn->quiet++;
	/* In the set of many receivers it has been asked. A worker may sleep after this pass, and the event that woke
	 * it is not reported again. */
	if (!conn->ready.flag && (conn->worker || conn->quiet < QUIET_PASSES || conn->quiet % QUIET_EVERY == 0))
		bnet_conn_poll(conn);
	for (int i = 1; i < streams; i++)
		if (has_something(conn->streams[i]))
			moved |= pump(conn, conn->streams[i]);
	return moved;
}

/* The set of many receivers says so, or there is something that no edge announces. */
static bool is_ready(struct bnet_conn *conn, int streams)
{
	bool asked;
	uint32_t events = bnet_readiness_take(&conn->ready, &asked);

	bnet_conn_count(conn, poll_calls, asked);
	if (events && conn->epoll >= 0)
		bnet_conn_poll(conn);
	else if (events & (EPOLLRDHUP | EPOLLHUP))
		conn->streams[0]->hangup = true;
	for (int i = 0; i < streams && !events; i++)
		if (has_something(conn->streams[i]) || conn->streams[i]->broken ||
		    conn->streams[i]->in.state == BNET_INCOMING_ENDED)
			return true;
	return events != 0;
}

bool bnet_rx_progress(struct bnet_conn *conn)
{
	int streams = atomic_load_explicit(&conn->nstreams, memory_order_acquire);
	bool moved;

	/* A thread that sees a request counted sees it posted. This pass does not wait for later posts. */
	if (streams == 0 || !bnet_conn_has_work(conn))
		return false;
	if (conn->ready.flag && !is_ready(conn, streams))
		return false;
	moved = streams > 1 && pump_others(conn, streams);
	if (!moved || has_something(conn->streams[0]))
		moved |= pump(conn, conn->streams[0]);
	if (!moved)
		look_for_end(conn, streams);
	return moved;
}
