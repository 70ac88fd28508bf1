/* SPDX-License-Identifier: MIT
 *
 * See tx.h.
 */
#include "transport/tx.h"

#include <errno.h>
#include <linux/sockios.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "common/clock.h"
#include "base/log.h"
#include "transport/request.h"
#include "transport/scheduler.h"
#include "transport/zerocopy.h"

/* A stream's budget in a pass, so that a fast stream does not keep its owner from the other connections. */
#define PASS_BYTES (4u << 20)

static bool anything_to_claim(const struct bnet_conn *conn)
{
	uint64_t posted = atomic_load_explicit(&conn->posted, memory_order_acquire);

	return conn->returned.request || bnet_claim_look(&conn->claim, posted).message != posted;
}

static void begin_slice(struct bnet_conn *conn, struct bnet_stream *stream, struct bnet_request *request,
			const struct bnet_wire_data *data)
{
	conn->claimed_bytes += data->length;
	bnet_wire_data_encode(stream->out.header, data);
	stream->out.header_left = BNET_WIRE_DATA_HEADER;
	stream->out.data = request->data + data->offset;
	stream->out.left = data->length;
	stream->out.length = data->length;
	stream->out.pinned = 0;
	stream->out.request = request;
	stream->message = data->message;
}

static bool claim_returned(struct bnet_conn *conn, struct bnet_stream *stream, int streams, uint64_t now)
{
	const struct bnet_returned back = conn->returned;
	const struct bnet_wire_data data = {
		.message = back.message,
		.size = atomic_load_explicit(&back.request->size, memory_order_relaxed),
		.offset = back.offset,
		.length = (uint32_t)back.length,
	};

	if (stream->message > back.message || bnet_scheduler_slice(conn, stream, streams, data.size, now) == 0)
		return false;
	conn->returned.request = NULL;
	begin_slice(conn, stream, back.request, &data);
	return true;
}

/* Claims a slice for the stream and prepares its header. now: 0 for a lone stream. */
static bool claim_slice(struct bnet_conn *conn, struct bnet_stream *stream, int streams, uint64_t now)
{
	uint64_t posted = atomic_load_explicit(&conn->posted, memory_order_acquire);
	struct bnet_claim_view view;
	struct bnet_request *request;
	struct bnet_slice slice;
	uint64_t want, size;

	if (conn->returned.request)
		return claim_returned(conn, stream, streams, now);
	do {
		view = bnet_claim_look(&conn->claim, posted);
		if (view.message == posted)
			return false;
		request = &conn->ring[view.message % BNET_RING];
		size = atomic_load_explicit(&request->size, memory_order_relaxed);
		want = bnet_scheduler_slice(conn, stream, streams, size, now);
		if (want == 0)
			return false;
	} while (!bnet_claim_take(&conn->claim, &view, size, want, &slice));

	begin_slice(conn, stream, request,
		    &(struct bnet_wire_data){
			    .message = slice.message,
			    .size = size,
			    .offset = slice.offset,
			    .length = (uint32_t)slice.length,
		    });
	return true;
}

static void slice_written(struct bnet_conn *conn, struct bnet_stream *stream)
{
	struct bnet_request *request = stream->out.request;
	/* An empty message has one slice of no bytes, and counts as one. */
	uint64_t counted = stream->out.length ? stream->out.length - stream->out.pinned : 1;

	stream->out.request = NULL;
	bnet_conn_count(conn, slices_sent, 1);
	bnet_conn_count(conn, bytes_sent, stream->out.length);
	if (counted)
		bnet_request_sent(conn, request, counted);
}

/* Up to this size a payload is copied behind its header: the kernel takes longer to gather two parts. */
#define JOIN_BYTES 2048

static ssize_t send_joined(const struct bnet_stream *stream)
{
	uint8_t frame[BNET_WIRE_DATA_HEADER + JOIN_BYTES];

	memcpy(frame, stream->out.header, BNET_WIRE_DATA_HEADER);
	if (stream->out.left)
		memcpy(frame + BNET_WIRE_DATA_HEADER, stream->out.data, stream->out.left);
	return send(stream->fd, frame, BNET_WIRE_DATA_HEADER + stream->out.left, MSG_DONTWAIT | MSG_NOSIGNAL);
}

static ssize_t send_parts(struct bnet_stream *stream)
{
	struct iovec iov[2];
	struct msghdr msg = {.msg_iov = iov};

	if (stream->out.header_left)
		iov[msg.msg_iovlen++] =
			(struct iovec){stream->out.header + BNET_WIRE_DATA_HEADER - stream->out.header_left,
				       stream->out.header_left};
	if (stream->out.left)
		iov[msg.msg_iovlen++] = (struct iovec){(void *)(uintptr_t)stream->out.data, stream->out.left};
	return sendmsg(stream->fd, &msg, MSG_DONTWAIT | MSG_NOSIGNAL);
}

/* Header and payload in one call. Bytes written, or -errno. */
static ssize_t write_with_copy(struct bnet_conn *conn, struct bnet_stream *stream)
{
	bool small = stream->out.header_left == BNET_WIRE_DATA_HEADER && stream->out.left <= JOIN_BYTES;
	ssize_t n;

	do
		n = small ? send_joined(stream) : send_parts(stream);
	while (n < 0 && errno == EINTR);
	bnet_conn_count(conn, send_calls, 1);
	return n < 0 ? -errno : n;
}

/* The next slice reuses the header's memory, so the header is copied, in a separate call. */
static ssize_t write_without_copy(struct bnet_conn *conn, struct bnet_stream *stream)
{
	size_t header = stream->out.header_left;
	ssize_t n = 0;

	if (header) {
		n = send(stream->fd, stream->out.header + BNET_WIRE_DATA_HEADER - header, header,
			 MSG_DONTWAIT | MSG_NOSIGNAL | MSG_MORE);
		bnet_conn_count(conn, send_calls, 1);
		if (n < (ssize_t)header)
			return n < 0 ? -errno : n;
	}
	n = bnet_zerocopy_send(conn, stream);
	/* The next call returns the error again. */
	return n < 0 && header ? (ssize_t)header : n + (ssize_t)header;
}

static ssize_t write_slice(struct bnet_conn *conn, struct bnet_stream *stream)
{
	uint64_t since = bnet_zerocopy_clock(conn, stream);
	bool without_copy = bnet_zerocopy_wants(conn, stream);
	ssize_t n = without_copy ? write_without_copy(conn, stream) : write_with_copy(conn, stream);

	if (n > 0)
		bnet_zerocopy_cost(conn, without_copy, (uint64_t)n, since);
	return n;
}

static void advance(struct bnet_stream *stream, size_t n)
{
	size_t header = n < stream->out.header_left ? n : stream->out.header_left;

	stream->out.header_left -= header;
	stream->out.data += n - header;
	stream->out.left -= n - header;
}

static void lost(struct bnet_conn *conn, int error)
{
	bnet_conn_fail(conn, error,
		       "the connection to %s broke: %s (sends that were outstanding: %u). The remote process has ended or "
		       "the network dropped the connection; look at the other rank's log first",
		       conn->peer, strerror(-error), bnet_conn_outstanding(conn));
}

static bool can_take(const struct bnet_conn *conn, uint64_t message)
{
	int streams = atomic_load_explicit(&conn->nstreams, memory_order_acquire);

	for (int i = 0; i < streams; i++)
		if (!conn->streams[i]->broken && conn->streams[i]->message <= message)
			return true;
	return false;
}

static bool is_end(int error)
{
	return error == ECONNRESET || error == EPIPE || error == ETIMEDOUT || error == ECONNABORTED ||
	       error == EHOSTUNREACH || error == ENETUNREACH || error == ENETDOWN;
}

/* The stream is broken. True: that costs nothing, since everything before its slice has arrived, it has taken no byte of
 * that slice, and another stream can take it. */
static bool return_slice(struct bnet_conn *conn, struct bnet_stream *stream, int error)
{
	struct bnet_outgoing *out = &stream->out;
	struct bnet_wire_data data;

	if (!is_end(error) || atomic_load(&conn->error) || conn->returned.request ||
	    out->header_left < BNET_WIRE_DATA_HEADER || bnet_zerocopy_pending(&stream->zerocopy) ||
	    bnet_delivery_missing(&stream->delivery, stream->fd) > 0)
		return false;
	bnet_wire_data_decode(out->header, &data);
	stream->broken = true;
	if (!can_take(conn, data.message))
		return false;
	conn->returned = (struct bnet_returned){
		.request = out->request,
		.message = data.message,
		.offset = data.offset,
		.length = data.length,
		.error = error,
	};
	conn->claimed_bytes -= data.length;
	out->request = NULL;
	atomic_store_explicit(&conn->reap, true, memory_order_relaxed);
	bnet_info(NCCL_NET, "NET/BaguaNet: an idle stream to %s was reset: %s. Nothing is lost, the others go on",
		  conn->peer, strerror(error));
	return true;
}

static bool is_full(ssize_t result)
{
	return result == -EAGAIN || result == -ENOBUFS || result == -ENOMEM;
}

/* Writes the rest of the stream's slice. Bytes written; fewer than the rest clear `writable`. */
static size_t write_on(struct bnet_conn *conn, struct bnet_stream *stream)
{
	size_t wanted = stream->out.header_left + stream->out.left;
	ssize_t n = write_slice(conn, stream);

	if (is_full(n)) {
		bnet_conn_count(conn, send_again, 1);
		stream->writable = false;
		return 0;
	}
	if (n < 0) {
		stream->writable = false;
		if (!return_slice(conn, stream, -(int)n))
			lost(conn, (int)n);
		return 0;
	}
	bnet_delivery_add(&stream->delivery, (uint64_t)n);
	stream->landed = false;
	advance(stream, (size_t)n);
	if ((size_t)n < wanted)
		stream->writable = false;
	else
		slice_written(conn, stream);
	return (size_t)n;
}

/* Whether a lone stream has room is found by writing: that takes the same single system call. */
static bool pump(struct bnet_conn *conn, struct bnet_stream *stream)
{
	size_t written = 0;

	stream->writable = true;
	while (stream->writable && written < PASS_BYTES && (stream->out.request || claim_slice(conn, stream, 1, 0)))
		written += write_on(conn, stream);
	return written > 0;
}

/* Slice by slice, each to the stream that completes it first. */
static size_t distribute(struct bnet_conn *conn, int active)
{
	size_t written = 0;
	uint64_t refused = 0;

	while (written < PASS_BYTES && anything_to_claim(conn)) {
		uint64_t now = bnet_now_ns();
		struct bnet_stream *stream = bnet_scheduler_pick(conn, active, refused, now);
		size_t n;

		if (!stream)
			break;
		if (!claim_slice(conn, stream, active, active > 1 ? now : 0)) {
			refused |= UINT64_C(1) << stream->index;
			continue;
		}
		n = write_on(conn, stream);
		bnet_scheduler_written(stream, n, now);
		written += n;
	}
	/* A sender at its in-flight limit writes nothing and would miss its peer's death: the next pass polls. */
	conn->held_back = refused != 0;
	return written;
}

static bool may_be_dry(const struct bnet_stream *stream)
{
	return stream->bbr && !stream->landed && !stream->out.request && !stream->hangup &&
	       atomic_load_explicit(&stream->estimator.min_rtt_us, memory_order_relaxed) >= BNET_LONG_RTT_US;
}

/* By a send of no bytes, during which the kernel checks whether the stream is dry. */
static void note_dry(struct bnet_conn *conn, struct bnet_stream *stream)
{
	int queued = 0;

	if (ioctl(stream->fd, SIOCOUTQ, &queued) == 0 && queued == 0)
		stream->landed = true;
	else if (send(stream->fd, "", 0, MSG_DONTWAIT | MSG_NOSIGNAL) < 0 && errno != EINTR && !is_full(-errno))
		lost(conn, -errno); /* the socket reports an error only once */
}

int bnet_tx_note_dry(struct bnet_conn *conn)
{
	int streams = atomic_load_explicit(&conn->nstreams, memory_order_acquire), looked = 0;

	for (int i = 0; i < streams && !atomic_load_explicit(&conn->error, memory_order_relaxed); i++) {
		if (!may_be_dry(conn->streams[i]))
			continue;
		note_dry(conn, conn->streams[i]);
		looked++;
	}
	return looked;
}

static bool any_full(const struct bnet_conn *conn, int streams)
{
	for (int i = 0; i < streams; i++)
		if (!conn->streams[i]->writable && !conn->streams[i]->broken)
			return true;
	return false;
}

bool bnet_tx_progress(struct bnet_conn *conn)
{
	int streams = atomic_load_explicit(&conn->nstreams, memory_order_acquire);
	int active = bnet_conn_active(conn);
	size_t written = 0;

	for (int i = 0; i < streams; i++)
		if (bnet_zerocopy_pending(&conn->streams[i]->zerocopy))
			bnet_zerocopy_reap(conn, conn->streams[i]);
	if (conn->returned.request) {
		if (!can_take(conn, conn->returned.message)) {
			lost(conn, -conn->returned.error);
			return false;
		}
		active = streams; /* those above the level may be the only ones that can take it */
	}
	if (streams == 1)
		return pump(conn, conn->streams[0]);
	if (conn->held_back || any_full(conn, streams))
		bnet_conn_poll(conn);
	for (int i = 0; i < streams; i++)
		if (conn->streams[i]->out.request && conn->streams[i]->writable)
			written += write_on(conn, conn->streams[i]);
	written += distribute(conn, active);
	return written > 0;
}
