/* SPDX-License-Identifier: MIT
 *
 * The sending direction: streams that can write claim slices of what is posted, oldest message first. Only the
 * connection's owner comes here.
 */
#include <errno.h>
#include <linux/sockios.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "transport/conn.h"
#include "base/counters.h"
#include "engine/engine.h"

/* One stream's share of a pass, so that a fast stream does not keep its owner from the other connections. */
#define PASS_BYTES (4u << 20)
/* A slice should take a stream so long, or else what it costs by itself is felt. */
#define LEAST_SLICE_US 128
#define FINER_UP_TO 65536
/* A stream that may hold more than this is bounded by its send buffer. */
#define ASK_BYTES (512u << 10)

static uint64_t unclaimed(const struct bnet_conn *conn)
{
	return atomic_load_explicit(&conn->posted_bytes, memory_order_relaxed) - conn->claimed_bytes;
}

static bool anything_to_claim(const struct bnet_conn *conn)
{
	uint64_t posted = atomic_load_explicit(&conn->posted, memory_order_acquire);

	return bnet_claim_look(&conn->claim, posted).message != posted;
}

/* ---- the promise ---- */

/* What an empty stream would be asked for, when streams are compared. */
#define PROBE_BYTES 16384
/* A receiver looks at the first stream more often than at the others: these have to be so much earlier. */
#define LATER_NS 50000
/* Of a stream whose rate is not known. */
#define UNKNOWN_NS 2000000
/* How long the account of what a stream holds may go without the kernel's own. */
#define ASK_NS 2000000
/* … of a stream whose rate is not known. */
#define ASK_UNKNOWN_NS 100000
/* … and how long it is good for anything. */
#define FORGET_US 1000000

/* Bytes that a stream holds, sent or not, and the peer has not acknowledged: what it held, less what it carries. */
static uint64_t held(const struct bnet_stream *stream, uint64_t rate, uint64_t now)
{
	uint64_t us = (now - stream->held_ns) / 1000, gone = us * rate / 1000000;

	return us < FORGET_US && stream->held > gone ? stream->held - gone : 0;
}

static void hold(struct bnet_stream *stream, uint64_t bytes, uint64_t now)
{
	uint64_t rate = atomic_load_explicit(&stream->flow.rate, memory_order_relaxed);

	stream->held = held(stream, rate, now) + bytes;
	/* Whole µs have been counted; what is left of one counts next time. */
	stream->held_ns = now - (now - stream->held_ns) % 1000;
}

/* The kernel's account replaces ours. */
static void ask(struct bnet_stream *stream, uint64_t now)
{
	int queued = 0;

	if (ioctl(stream->fd, SIOCOUTQ, &queued) < 0)
		return;
	stream->held = (uint64_t)queued;
	stream->held_ns = stream->asked_ns = now;
}

/* When would it have delivered a little more? One that nothing is known of is worth a try, once it has nothing left. */
static uint64_t ready_in_ns(struct bnet_stream *stream, uint64_t now)
{
	uint64_t rate = atomic_load_explicit(&stream->flow.rate, memory_order_relaxed);
	uint64_t later = stream->index ? LATER_NS : 0;

	if (stream->hangup)
		return 0; /* writing tells why */
	if (rate == 0 && stream->held && now - stream->asked_ns > ASK_UNKNOWN_NS)
		ask(stream, now);
	if (rate == 0)
		return later + (stream->held ? UNKNOWN_NS : 0);
	return later + (held(stream, rate, now) + PROBE_BYTES) * 1000000 / rate * 1000;
}

/* Bytes that this stream may take now so that they arrive about as early as what its siblings carry; 0: none. A claim
 * is a promise: what a slow stream takes, no other can deliver. */
static uint64_t promise(struct bnet_stream *stream, uint64_t want, uint64_t now)
{
	uint64_t budget = bnet_estimator_inflight_limit(&stream->flow);
	uint64_t rate = atomic_load_explicit(&stream->flow.rate, memory_order_relaxed);

	if (budget >= ASK_BYTES || stream->hangup)
		return want;
	if (want > budget / 4)
		want = budget / 4 ? budget / 4 : 1;
	if (now - stream->asked_ns > (rate ? ASK_NS : ASK_UNKNOWN_NS))
		ask(stream, now);
	return stream->held == 0 || held(stream, rate, now) + want <= budget ? want : 0;
}

/* The stream that would deliver first, of those that may claim and have room; NULL: none. */
static struct bnet_stream *earliest(struct bnet_conn *conn, int active, uint64_t refused, uint64_t now)
{
	struct bnet_stream *best = NULL;
	uint64_t best_ns = UINT64_MAX;

	for (int i = 0; i < active; i++) {
		struct bnet_stream *stream = conn->streams[i];
		uint64_t ns;

		if (!stream->writable || stream->out_request || refused >> i & 1)
			continue;
		ns = ready_in_ns(stream, now);
		if (ns < best_ns) {
			best = stream;
			best_ns = ns;
		}
	}
	return best;
}

/* Slices are no smaller than configured, except where what is posted would not reach all streams then, and they are
 * slow: all of it arrives so much earlier that it makes up for what a slice costs. */
static uint64_t least_slice(const struct bnet_conn *conn, const struct bnet_stream *stream, uint64_t size, int streams)
{
	const uint64_t configured = (uint64_t)conn->config->min_chunksize;
	const uint64_t rate = atomic_load_explicit(&stream->flow.rate, memory_order_relaxed);

	/* Whoever asks for larger slices than by default gets them. */
	if (rate == 0 || configured > FINER_UP_TO)
		return configured;
	/* Of a message, the end is cut like its beginning. */
	if (size < unclaimed(conn))
		size = unclaimed(conn);
	return bnet_slice_least(size, streams, rate * LEAST_SLICE_US / 1000000, configured);
}

/* now: 0 for a lone stream, which has nobody to promise anything to. */
static bool claim_slice(struct bnet_conn *conn, struct bnet_stream *stream, int streams, uint64_t now)
{
	uint64_t posted = atomic_load_explicit(&conn->posted, memory_order_acquire);
	struct bnet_claim_view view;
	struct bnet_request *request;
	struct bnet_slice slice;
	uint64_t want, size;

	do {
		view = bnet_claim_look(&conn->claim, posted);
		if (view.message == posted)
			return false;
		request = &conn->ring[view.message % BNET_RING];
		size = atomic_load_explicit(&request->size, memory_order_relaxed);
		want = bnet_slice_want(unclaimed(conn), streams, least_slice(conn, stream, size, streams),
				       (uint64_t)conn->config->max_chunksize);
		if (now)
			want = promise(stream, want, now);
		if (want == 0)
			return false;
	} while (!bnet_claim_take(&conn->claim, &view, size, want, &slice));

	conn->claimed_bytes += slice.length;
	bnet_wire_data_encode(stream->out_header, &(struct bnet_wire_data){
						     .message = slice.message,
						     .size = size,
						     .offset = slice.offset,
						     .length = (uint32_t)slice.length,
					     });
	stream->out_header_left = BNET_WIRE_DATA_HEADER;
	stream->out_data = request->data + slice.offset;
	stream->out_left = slice.length;
	stream->out_length = slice.length;
	stream->out_later = 0;
	stream->out_request = request;
	return true;
}

void bnet_request_sent(struct bnet_conn *conn, struct bnet_request *request, uint64_t bytes)
{
	if (atomic_fetch_sub_explicit(&request->left, bytes, memory_order_acq_rel) != bytes)
		return;
	bnet_count(messages_sent, 1);
	atomic_fetch_sub_explicit(&conn->outstanding, 1, memory_order_relaxed);
	atomic_store_explicit(&request->done, true, memory_order_release);
}

static void slice_written(struct bnet_conn *conn, struct bnet_stream *stream)
{
	struct bnet_request *request = stream->out_request;
	/* An empty message has one slice of no bytes, and counts as one. */
	uint64_t counted = stream->out_length ? stream->out_length - stream->out_later : 1;

	stream->out_request = NULL;
	bnet_count(slices_sent, 1);
	bnet_count(bytes_sent, stream->out_length);
	if (counted)
		bnet_request_sent(conn, request, counted);
}

/* Up to this, a payload is put behind its header first: the kernel takes longer to gather two parts. */
#define JOIN_BYTES 2048

static ssize_t send_joined(const struct bnet_stream *stream)
{
	uint8_t frame[BNET_WIRE_DATA_HEADER + JOIN_BYTES];

	memcpy(frame, stream->out_header, BNET_WIRE_DATA_HEADER);
	if (stream->out_left)
		memcpy(frame + BNET_WIRE_DATA_HEADER, stream->out_data, stream->out_left);
	return send(stream->fd, frame, BNET_WIRE_DATA_HEADER + stream->out_left, MSG_DONTWAIT | MSG_NOSIGNAL);
}

static ssize_t send_parts(struct bnet_stream *stream)
{
	struct iovec iov[2];
	struct msghdr msg = {.msg_iov = iov};

	if (stream->out_header_left)
		iov[msg.msg_iovlen++] = (struct iovec){
			stream->out_header + BNET_WIRE_DATA_HEADER - stream->out_header_left, stream->out_header_left};
	if (stream->out_left)
		iov[msg.msg_iovlen++] = (struct iovec){(void *)(uintptr_t)stream->out_data, stream->out_left};
	return sendmsg(stream->fd, &msg, MSG_DONTWAIT | MSG_NOSIGNAL);
}

/* Header and payload in one call. Bytes written, or -errno. */
static ssize_t copy_slice(struct bnet_stream *stream)
{
	bool small = stream->out_header_left == BNET_WIRE_DATA_HEADER && stream->out_left <= JOIN_BYTES;
	ssize_t n;

	do
		n = small ? send_joined(stream) : send_parts(stream);
	while (n < 0 && errno == EINTR);
	bnet_count(send_calls, 1);
	return n < 0 ? -errno : n;
}

/* The header is in memory that the next slice uses again: it is copied, in a call of its own. */
static ssize_t share_slice(struct bnet_conn *conn, struct bnet_stream *stream)
{
	size_t header = stream->out_header_left;
	ssize_t n = 0;

	if (header) {
		n = send(stream->fd, stream->out_header + BNET_WIRE_DATA_HEADER - header, header,
			 MSG_DONTWAIT | MSG_NOSIGNAL | MSG_MORE);
		bnet_count(send_calls, 1);
		if (n < (ssize_t)header)
			return n < 0 ? -errno : n;
	}
	n = bnet_zerocopy_send(conn, stream);
	/* Why it did not go, the next call tells again. */
	return n < 0 && header ? (ssize_t)header : n + (ssize_t)header;
}

static ssize_t write_slice(struct bnet_conn *conn, struct bnet_stream *stream)
{
	uint64_t since = bnet_zerocopy_clock(conn, stream);
	bool share = bnet_zerocopy_wants(conn, stream);
	ssize_t n = share ? share_slice(conn, stream) : copy_slice(stream);

	if (n > 0)
		bnet_zerocopy_cost(conn, share, (uint64_t)n, since);
	return n;
}

static void advance(struct bnet_stream *stream, size_t n)
{
	size_t header = n < stream->out_header_left ? n : stream->out_header_left;

	stream->out_header_left -= header;
	stream->out_data += n - header;
	stream->out_left -= n - header;
}

static void lost(struct bnet_conn *conn, int error)
{
	bnet_conn_fail(conn, error,
		       "the connection to %s broke while %u sends were outstanding: %s. The remote process has ended or "
		       "the network dropped the connection; look at the other rank's log first",
		       conn->peer, atomic_load(&conn->outstanding), strerror(-error));
}

/* Writes what the stream has begun; bytes written. Without room for all of it the stream is not writable any more. */
static size_t write_on(struct bnet_conn *conn, struct bnet_stream *stream)
{
	size_t wanted = stream->out_header_left + stream->out_left;
	ssize_t n = write_slice(conn, stream);

	if (n == -EAGAIN || n == -ENOBUFS || n == -ENOMEM) {
		bnet_count(send_again, 1);
		stream->writable = false;
		return 0;
	}
	if (n < 0) {
		stream->writable = false;
		lost(conn, (int)n);
		return 0;
	}
	advance(stream, (size_t)n);
	if ((size_t)n < wanted)
		stream->writable = false;
	else
		slice_written(conn, stream);
	return (size_t)n;
}

/* A lone stream is asked by writing to it: that is the same one system call. */
static bool pump(struct bnet_conn *conn, struct bnet_stream *stream)
{
	size_t written = 0;

	stream->writable = true;
	while (stream->writable && written < PASS_BYTES && (stream->out_request || claim_slice(conn, stream, 1, 0)))
		written += write_on(conn, stream);
	return written > 0;
}

/* Slice by slice to whichever stream delivers it first. */
static size_t share(struct bnet_conn *conn, int active)
{
	size_t written = 0;
	uint64_t refused = 0;

	while (written < PASS_BYTES && anything_to_claim(conn)) {
		uint64_t now = bnet_now_ns();
		struct bnet_stream *stream = earliest(conn, active, refused, now);
		size_t n;

		if (!stream)
			break;
		if (!claim_slice(conn, stream, active, active > 1 ? now : 0)) {
			refused |= UINT64_C(1) << stream->index;
			continue;
		}
		n = write_on(conn, stream);
		hold(stream, n, now);
		written += n;
	}
	/* Who writes nothing does not learn by writing that the peer is gone. */
	conn->held_back = refused != 0;
	return written;
}

static bool any_full(const struct bnet_conn *conn, int streams)
{
	for (int i = 0; i < streams; i++)
		if (!conn->streams[i]->writable)
			return true;
	return false;
}

bool bnet_tx_progress(struct bnet_conn *conn)
{
	int streams = atomic_load_explicit(&conn->nstreams, memory_order_acquire);
	int active = bnet_conn_active(conn);
	size_t written = 0;

	for (int i = 0; i < streams; i++)
		if (bnet_zerocopy_pending(&conn->streams[i]->zero))
			bnet_zerocopy_reap(conn, conn->streams[i]);
	if (streams == 1)
		return pump(conn, conn->streams[0]);
	if (conn->held_back || any_full(conn, streams))
		bnet_conn_poll(conn);
	for (int i = 0; i < streams; i++)
		if (conn->streams[i]->out_request && conn->streams[i]->writable)
			written += write_on(conn, conn->streams[i]);
	written += share(conn, active);
	return written > 0;
}
