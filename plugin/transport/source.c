/* SPDX-License-Identifier: MIT
 *
 * See source.h.
 */
#include "transport/source.h"

#include <errno.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "base/socket.h"

int bnet_source_lost(struct bnet_conn *conn, int error, const char *how)
{
	uint32_t n = bnet_conn_outstanding(conn);

	bnet_conn_fail(conn, error,
		       "the connection from %s broke while %u receive%s outstanding: %s. The remote process has ended or "
		       "the network dropped the connection; look at the other rank's log first",
		       conn->peer, n, n == 1 ? " was" : "s were", how);
	return error;
}

uint64_t bnet_source_left_behind(const struct bnet_incoming *in, uint32_t size)
{
	if (in->limit == UINT64_MAX)
		return UINT64_MAX;
	return bnet_source_unparsed(&in->ahead) - size + (in->limit - in->taken) - in->ahead.peeked;
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
	if (bnet_source_unparsed(ahead) && ahead->from)
		memmove(ahead->bytes, ahead->bytes + ahead->from, bnet_source_unparsed(ahead));
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
 * small one goes to the read-ahead as well and is copied in order, which the kernel does not guarantee. Peeked bytes
 * are overwritten with themselves. Nothing beyond the stream's limit, where it has one. */
static void fetch(struct bnet_conn *conn, struct bnet_stream *stream, struct call *call)
{
	struct bnet_incoming *in = &stream->in;
	uint32_t at = in->ahead.to - in->ahead.peeked;
	uint64_t most = in->limit - in->taken;
	struct iovec iov[2] = {{.iov_len = 0}, {in->ahead.bytes + at, BNET_READ_AHEAD - at}};

	call->direct = in->to && in->left > BNET_READ_AHEAD ? in->left : 0;
	call->direct = call->direct < most ? call->direct : most;
	if (iov[1].iov_len > most - call->direct)
		iov[1].iov_len = most - call->direct;
	call->again = in->ahead.peeked;
	call->asked = call->direct + iov[1].iov_len;
	if (call->direct) {
		iov[0] = (struct iovec){in->to + (in->length - in->left), call->direct};
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
	return in->state == BNET_INCOMING_PAYLOAD || bnet_source_unparsed(&in->ahead);
}

static int end_stream(struct bnet_conn *conn, struct bnet_stream *stream)
{
	bool inside = is_inside(&stream->in);

	stream->in.state = BNET_INCOMING_ENDED;
	conn->gone = true;
	atomic_store_explicit(&conn->reap, true, memory_order_relaxed);
	return inside ? bnet_source_lost(conn, -ECONNRESET, "it was closed in the middle of a message") : 0;
}

/* The stream has no more to read. Was it reset, or did its sender end it? One that was reset reads as closed once its
 * error was reported. Behind an end in order the kernel reports no error of what came later, and still has it. */
static bool was_reset(const struct bnet_stream *stream)
{
	return bnet_socket_is_closed(stream->fd) && bnet_socket_error(stream->fd) == 0;
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
	if (conn->repairs && stream->in.limit == UINT64_MAX && bnet_socket_has_ended(stream->fd, -error)) {
		/* The kernel names the last ICMP error, as of ARP, instead of ETIMEDOUT where it has one. */
		stream->timed_out = error != ECONNRESET && error != EPIPE && error != ECONNABORTED;
		stream->broken = true;
		return 0;
	}
	if (!conn->repairs && !matters(stream))
		return end_stream(conn, stream);
	return bnet_source_lost(conn, -error, strerror(error));
}

/* n new bytes: first those in the payload's place, then the read-ahead's. */
static void take_in(struct bnet_incoming *in, size_t n, size_t direct)
{
	struct bnet_read_ahead *ahead = &in->ahead;

	ahead->expect_lone_frame = n <= PEEK_BYTES && in->state != BNET_INCOMING_PAYLOAD &&
				   bnet_source_unparsed(ahead) == 0 && one_frame(ahead->bytes + ahead->to, n);
	if (direct > n)
		direct = n;
	in->left -= direct;
	ahead->to += (uint32_t)(n - direct);
}

ssize_t bnet_source_receive(struct bnet_conn *conn, struct bnet_stream *stream, bool *drained)
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
		if (conn->repairs && was_reset(stream))
			return break_stream(conn, stream, ECONNRESET);
		return end_stream(conn, stream);
	case OUTCOME_BYTES:
		break;
	}
	take_in(in, (size_t)call.n - call.again, call.direct);
	return call.n - (ssize_t)call.again;
}

/* ---- a stream that another one takes the place of ---- */

static bool is_of_serial(const struct bnet_stream *stream, uint32_t serial)
{
	return stream->serial == serial;
}

/* One that has come in its place, whether or not another one is awaited in its own place already. */
static bool is_in_place_of(const struct bnet_stream *stream, uint32_t serial)
{
	return stream->serial != serial && (stream->in.repairs == serial || stream->in.awaits == serial);
}

static struct bnet_stream *find(const struct bnet_conn *conn, uint32_t serial,
				bool (*is)(const struct bnet_stream *stream, uint32_t serial))
{
	int streams = atomic_load_explicit(&conn->nstreams, memory_order_acquire);

	for (int i = 0; i < streams; i++)
		if (is(conn->streams[i], serial))
			return conn->streams[i];
	return NULL;
}

/* Nothing more is taken out of its socket than what is there now. A slice that is cut off by that is taken back: it
 * comes again. */
static void end_with_what_is_there(struct bnet_conn *conn, struct bnet_stream *stream)
{
	struct bnet_incoming *in = &stream->in;
	int there = 0;

	if (in->state != BNET_INCOMING_ENDED && ioctl(stream->fd, FIONREAD, &there) < 0)
		there = 0;
	in->limit = in->taken + (uint64_t)there;
	in->awaits = stream->serial;
	if (in->limit == in->taken && in->state == BNET_INCOMING_HEADER && !in->frame &&
	    !bnet_source_unparsed(&in->ahead))
		end_at_limit(conn, in);
	stream->readable = true;
	stream->broken = false;
	if (in->state != BNET_INCOMING_PAYLOAD || in->left <= bnet_source_left_behind(in, 0) || !in->request)
		return;
	bnet_reassembly_take_back(&in->request->reassembly, in->data.offset, in->data.length);
	in->request = NULL;
	in->to = NULL;
}

int bnet_source_replace(struct bnet_conn *conn, struct bnet_stream_start *start)
{
	const uint32_t serial = start->repairs;
	struct bnet_stream *old = find(conn, serial, is_of_serial), *unused = find(conn, serial, is_in_place_of);

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
