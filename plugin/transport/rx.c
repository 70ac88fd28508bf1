/* SPDX-License-Identifier: MIT
 *
 * See rx.h.
 */
#include "transport/rx.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "common/clock.h"
#include "base/socket.h"
#include "transport/request.h"

/* A stream's budget in a pass, so that a fast stream does not keep its owner from the other connections. */
#define PASS_BYTES (4u << 20)
/* The first stream is read directly on every pass in which no other one brought anything, since small messages arrive
 * there. The others are asked through epoll: on every pass for this many after they last had something, then on every
 * eighth. */
#define QUIET_PASSES 64
#define QUIET_EVERY 8
/* Where BAGUA_NET_KEEPALIVE sets no limit: how long a receiver waits for the repair of its last stream. */
#define LONG_PATIENCE_S 120

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

static uint32_t unparsed(const struct bnet_read_ahead *ahead)
{
	return ahead->to - ahead->from;
}

static int lost(struct bnet_conn *conn, int error, const char *how)
{
	uint32_t n = bnet_conn_outstanding(conn);

	bnet_conn_fail(conn, error,
		       "the connection from %s broke while %u receive%s outstanding: %s. The remote process has ended or "
		       "the network dropped the connection; look at the other rank's log first",
		       conn->peer, n, n == 1 ? " was" : "s were", how);
	return error;
}

/* All streams have ended after whole frames. */
static void ended(struct bnet_conn *conn)
{
	if (conn->closed)
		bnet_conn_fail(conn, -ESHUTDOWN, "%s has closed its connection; receives that are left: %u", conn->peer,
			       bnet_conn_outstanding(conn));
	else
		lost(conn, -ECONNRESET, "the peer closed it");
}

/* ---- one receive call ---- */

/* A lone frame of up to this size is left in the kernel at first; see peek. */
#define PEEK_BYTES 2048

/* Is it one frame, whole? */
static bool one_frame(const uint8_t *at, size_t size)
{
	struct bnet_wire_frame frame;

	if (size < BNET_WIRE_FRAME_HEADER)
		return false;
	bnet_wire_frame_decode(at, &frame);
	return size - BNET_WIRE_FRAME_HEADER == frame.length;
}

/* Moves what is unparsed, a part of a header at most, to the beginning. */
static void compact(struct bnet_read_ahead *ahead)
{
	if (unparsed(ahead) && ahead->from)
		memmove(ahead->bytes, ahead->bytes + ahead->from, unparsed(ahead));
	ahead->to -= ahead->from;
	ahead->from = 0;
}

/* The kernel acknowledges a short segment when a read empties the socket, and the waiting caller of a small message
 * would wait for that, too. So where a small message probably arrives alone it is only peeked at, and the next call,
 * which most often has nothing else to find, takes it out of the socket. Anything else is taken out at once. */
static ssize_t peek(struct bnet_conn *conn, struct bnet_stream *stream)
{
	struct bnet_read_ahead *ahead = &stream->in.ahead;
	ssize_t n = recv(stream->fd, ahead->bytes, BNET_READ_AHEAD, MSG_DONTWAIT | MSG_PEEK);

	if (n <= 0)
		return n;
	if (one_frame(ahead->bytes, (size_t)n)) {
		ahead->peeked = (uint32_t)n;
		return n;
	}
	bnet_conn_count(conn, receive_calls, 1);
	n = recv(stream->fd, ahead->bytes, (size_t)n, MSG_DONTWAIT);
	stream->in.taken += n > 0 ? (uint64_t)n : 0;
	return n;
}

/* Whether the next call should only look: the last one brought a lone frame, which has been parsed. In the set of many
 * receivers there may be no call after that for long. */
static bool should_peek(const struct bnet_conn *conn, const struct bnet_incoming *in)
{
	return !conn->ready.flag && in->ahead.expect_lone_frame && in->ahead.to == 0 &&
	       in->state != BNET_INCOMING_PAYLOAD && in->limit == UINT64_MAX;
}

/* A receive call and its answer. */
struct call {
	size_t direct;  /* bytes asked for in the payload's place */
	size_t asked;   /* … and in all */
	uint32_t again; /* bytes that an earlier call peeked at: they come first */
	ssize_t n;
	int error; /* of n < 0 */
};

/* Reads into the payload's place, if a payload is under way, and into the read-ahead behind its bytes. The rest of a
 * small one goes to the read-ahead as well and is copied in order, which the kernel does not guarantee. Peeked bytes are
 * overwritten with themselves. Nothing beyond the stream's limit, where it has one. */
static void fetch(struct bnet_conn *conn, struct bnet_stream *stream, struct call *call)
{
	struct bnet_incoming *in = &stream->in;
	uint32_t at = in->ahead.to - in->ahead.peeked;
	uint64_t most = in->limit - in->taken;
	struct iovec iov[2] = {{.iov_len = 0}, {in->ahead.bytes + at, BNET_READ_AHEAD - at}};

	call->direct = in->request && in->left > BNET_READ_AHEAD ? in->left : 0;
	call->direct = call->direct < most ? call->direct : most;
	if (iov[1].iov_len > most - call->direct)
		iov[1].iov_len = most - call->direct;
	call->again = in->ahead.peeked;
	call->asked = call->direct + iov[1].iov_len;
	if (call->direct) {
		iov[0] = (struct iovec){in->request->data + in->data.offset + (in->data.length - in->left),
					call->direct};
		call->n = readv(stream->fd, iov, 2);
	} else if (should_peek(conn, in)) {
		call->n = peek(conn, stream);
		call->error = call->n < 0 ? errno : 0;
		return;
	} else {
		call->n = recv(stream->fd, iov[1].iov_base, iov[1].iov_len, MSG_DONTWAIT);
	}
	call->error = call->n < 0 ? errno : 0;
	in->taken += call->n > 0 ? (uint64_t)call->n : 0;
}

enum outcome {
	OUTCOME_NOTHING, /* no new byte */
	OUTCOME_BYTES,
	OUTCOME_END, /* the peer closed the stream */
	OUTCOME_BROKEN,
};

static enum outcome outcome_of(const struct call *call)
{
	if ((call->n < 0 && call->error == EAGAIN) || (call->again && call->n == (ssize_t)call->again))
		return OUTCOME_NOTHING;
	if (call->n < 0)
		return OUTCOME_BROKEN;
	return call->n == 0 ? OUTCOME_END : OUTCOME_BYTES;
}

/* Less than asked for means empty, unless the end comes next: no edge would announce it again. */
static bool emptied(const struct call *call, bool hangup)
{
	return call->n < (ssize_t)call->asked && (call->n <= 0 || !hangup);
}

/* The peer may give up a stream that it never used; nothing is lost then. */
static bool matters(const struct bnet_stream *stream)
{
	return stream->in.used || stream->index == 0 || bnet_socket_received(stream->fd) > stream->in.handshake_bytes;
}

static bool is_inside(const struct bnet_incoming *in)
{
	return in->state == BNET_INCOMING_PAYLOAD || unparsed(&in->ahead);
}

static int end_stream(struct bnet_conn *conn, struct bnet_stream *stream)
{
	bool inside = is_inside(&stream->in);

	stream->in.state = BNET_INCOMING_ENDED;
	conn->gone = true;
	atomic_store_explicit(&conn->reap, true, memory_order_relaxed);
	return inside ? lost(conn, -ECONNRESET, "it was closed in the middle of a message") : 0;
}

/* What follows comes on the stream that has taken its place. */
static void end_at_limit(struct bnet_conn *conn, struct bnet_incoming *in)
{
	in->state = BNET_INCOMING_ENDED;
	in->ahead.from = in->ahead.to;
	atomic_store_explicit(&conn->reap, true, memory_order_relaxed);
}

static int break_stream(struct bnet_conn *conn, struct bnet_stream *stream, int error)
{
	if (conn->repairs && stream->in.limit == UINT64_MAX) {
		stream->broken = true;
		return 0;
	}
	if (!conn->repairs && !matters(stream))
		return end_stream(conn, stream);
	return lost(conn, -error, strerror(error));
}

/* n new bytes: first those in the payload's place, then the read-ahead's. */
static void take_in(struct bnet_incoming *in, size_t n, size_t direct)
{
	struct bnet_read_ahead *ahead = &in->ahead;

	ahead->expect_lone_frame = n <= PEEK_BYTES && in->state != BNET_INCOMING_PAYLOAD && unparsed(ahead) == 0 &&
				   one_frame(ahead->bytes + ahead->to, n);
	if (direct > n)
		direct = n;
	in->left -= direct;
	ahead->to += (uint32_t)(n - direct);
}

/* One receive call, where the read-ahead is empty or holds the beginning of a header. New bytes, 0 for nothing now or
 * the end, or -errno. drained: the socket held less than it was asked for. */
static ssize_t receive(struct bnet_conn *conn, struct bnet_stream *stream, bool *drained)
{
	struct bnet_incoming *in = &stream->in;
	struct call call;

	if (in->taken == in->limit) {
		end_at_limit(conn, in);
		return 0;
	}
	if (!in->ahead.peeked)
		compact(&in->ahead);
	do
		fetch(conn, stream, &call);
	while (call.error == EINTR);
	bnet_conn_count(conn, receive_calls, 1);
	*drained = emptied(&call, stream->hangup);
	if (call.again)
		in->ahead.peeked = 0;

	switch (outcome_of(&call)) {
	case OUTCOME_NOTHING:
		bnet_conn_count(conn, receive_again, 1);
		return 0;
	case OUTCOME_BROKEN:
		return break_stream(conn, stream, call.error);
	case OUTCOME_END:
		/* One that was reset reads as closed once its error was reported. */
		if (conn->repairs && bnet_socket_is_closed(stream->fd))
			return break_stream(conn, stream, ECONNRESET);
		return end_stream(conn, stream);
	case OUTCOME_BYTES:
		break;
	}
	take_in(in, (size_t)call.n - call.again, call.direct);
	return call.n - (ssize_t)call.again;
}

/* ---- frames ---- */

static void slice_arrived(struct bnet_conn *conn, struct bnet_incoming *in)
{
	struct bnet_request *request = in->request;

	in->state = BNET_INCOMING_HEADER;
	in->request = NULL;
	if (!request)
		return;
	bnet_conn_count(conn, slices_received, 1);
	bnet_conn_count(conn, bytes_received, in->data.length);
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

/* Bytes behind the read-ahead's next `size` that the stream brings. */
static uint64_t left_behind(const struct bnet_incoming *in, uint32_t size)
{
	if (in->limit == UINT64_MAX)
		return UINT64_MAX;
	return unparsed(&in->ahead) - size + (in->limit - in->taken) - in->ahead.peeked;
}

/* Finds the request that the slice belongs to. 1: in->request names it, or is NULL for a slice to skip; 0: the message
 * is not posted yet, and the stream stalls. */
static int place_slice(struct bnet_conn *conn, struct bnet_incoming *in)
{
	const struct bnet_wire_data *data = &in->data;
	struct bnet_request *request;
	int rc;

	in->request = NULL;
	if (data->length > left_behind(in, BNET_WIRE_DATA_HEADER))
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

static void begin_payload(struct bnet_incoming *in, uint64_t length, uint32_t header)
{
	in->left = length;
	in->state = BNET_INCOMING_PAYLOAD;
	in->ahead.from += header;
}

/* Parses the next frame's header in the read-ahead. 1: a payload follows; 0: more bytes are needed, or the stream
 * stalls. */
static int next_frame(struct bnet_conn *conn, struct bnet_incoming *in)
{
	const uint8_t *at = in->ahead.bytes + in->ahead.from;
	struct bnet_wire_frame frame;
	int rc;

	in->state = BNET_INCOMING_HEADER;
	if (unparsed(&in->ahead) < BNET_WIRE_FRAME_HEADER)
		return 0;
	in->used = true;
	bnet_wire_frame_decode(at, &frame);
	if (frame.type != BNET_WIRE_FRAME_DATA) {
		if (frame.type == BNET_WIRE_FRAME_FAILED)
			return lost(conn, -ECONNRESET, "the sender has given it up");
		if (frame.type == BNET_WIRE_FRAME_CLOSE)
			conn->closed = true;
		/* This version acts on no other type. The length is 32 bits wide, so the skip ends. */
		in->request = NULL;
		begin_payload(in, frame.length, BNET_WIRE_FRAME_HEADER);
		return 1;
	}
	if (unparsed(&in->ahead) < BNET_WIRE_DATA_HEADER)
		return 0;
	if (bnet_wire_data_decode(at, &in->data) < 0)
		return protocol_error(conn, "a slice that lies outside its message");
	rc = place_slice(conn, in);
	if (rc > 0)
		begin_payload(in, in->data.length, BNET_WIRE_DATA_HEADER);
	return rc;
}

/* The part of the payload that the read-ahead holds. */
static void copy_payload(struct bnet_incoming *in)
{
	uint32_t n = unparsed(&in->ahead) < in->left ? unparsed(&in->ahead) : (uint32_t)in->left;
	uint64_t done = in->data.length - in->left;

	if (in->request)
		copy_in_order(in->request->data + in->data.offset + done,
			      (const char *)in->ahead.bytes + in->ahead.from, n);
	in->ahead.from += n;
	in->left -= n;
}

/* ---- a pass ---- */

/* Parses what the read-ahead holds up to the next point where more bytes are needed. True: a slice was completed. */
static bool parse(struct bnet_conn *conn, struct bnet_incoming *in, bool *more)
{
	if (in->state != BNET_INCOMING_PAYLOAD) {
		int rc = next_frame(conn, in);

		*more = rc == 0 && in->state == BNET_INCOMING_HEADER;
		if (rc <= 0)
			return false;
	}
	copy_payload(in);
	*more = in->left > 0;
	if (*more)
		return false;
	slice_arrived(conn, in);
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

		if (parse(conn, &stream->in, &more)) {
			got++;
			continue;
		}
		if (!more || drained)
			break;
		n = receive(conn, stream, &drained);
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

static void wait_for_repair(struct bnet_conn *conn)
{
	/* The control thread may put it off at any time. */
	uint64_t since = atomic_load_explicit(&conn->alone_us, memory_order_acquire);
	uint64_t now = bnet_now_us(), patience = patience_s(conn);
	char how[128];

	if (since == 0)
		atomic_store_explicit(&conn->alone_us, since = now, memory_order_relaxed);
	if (now < since + patience * 1000000)
		return;
	snprintf(how, sizeof(how), "it was reset, and nothing was heard of its sender for %llu s (BAGUA_NET_KEEPALIVE)",
		 (unsigned long long)patience);
	lost(conn, -ETIMEDOUT, how);
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
	/* In the set of many receivers it has been asked. A worker may sleep after this pass, and the event that woke it
	 * is not reported again. */
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
		if (has_something(conn->streams[i]) || conn->streams[i]->in.state == BNET_INCOMING_ENDED)
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

/* ---- a stream that another one takes the place of ---- */

static struct bnet_stream *find(const struct bnet_conn *conn, uint32_t serial, bool repaired)
{
	int streams = atomic_load_explicit(&conn->nstreams, memory_order_acquire);

	for (int i = 0; i < streams; i++) {
		struct bnet_stream *stream = conn->streams[i];

		if ((repaired ? stream->in.repairs : stream->serial) == serial)
			return stream;
	}
	return NULL;
}

/* Nothing more is taken out of its socket than what is there now. A slice that is cut off by that is taken back: it comes
 * again. */
static void end_with_what_is_there(struct bnet_conn *conn, struct bnet_stream *stream)
{
	struct bnet_incoming *in = &stream->in;
	int there = 0;

	if (in->state != BNET_INCOMING_ENDED && ioctl(stream->fd, FIONREAD, &there) < 0)
		there = 0;
	in->limit = in->taken + (uint64_t)there;
	in->awaits = stream->serial;
	if (in->limit == in->taken && in->state == BNET_INCOMING_HEADER && !unparsed(&in->ahead))
		end_at_limit(conn, in);
	stream->readable = true;
	stream->broken = false;
	if (in->state != BNET_INCOMING_PAYLOAD || in->left <= left_behind(in, 0) || !in->request)
		return;
	bnet_reassembly_take_back(&in->request->reassembly, in->data.offset, in->data.length);
	in->request = NULL;
}

int bnet_rx_replace(struct bnet_conn *conn, struct bnet_stream_start *start)
{
	const uint32_t serial = start->repairs;
	struct bnet_stream *old = find(conn, serial, false), *unused = find(conn, serial, true);

	/* A try that was given up may be read after the one that was not. */
	if (unused && unused->serial > start->serial)
		return -ESTALE;
	if (old && old->in.limit == UINT64_MAX)
		end_with_what_is_there(conn, old);
	if (old)
		start->position = old->in.limit;
	else if (unused)
		start->position = unused->position;
	/* Its sender has not had the answer. */
	if (unused) {
		unused->in.awaits = serial;
		unused->in.repairs = 0;
		unused->in.limit = unused->in.taken;
		unused->broken = false;
		unused->readable = true;
	}
	atomic_store_explicit(&conn->alone_us, 0, memory_order_relaxed);
	return 0;
}
