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
#include "base/recorder.h"
#include "base/socket.h"
#include "transport/request.h"
#include "transport/retention.h"
#include "transport/scheduler.h"
#include "transport/zerocopy.h"

/* A stream's budget in a pass, so that a fast stream does not keep its owner from the other connections. */
#define PASS_BYTES (4u << 20)

/* Passes in a row after which the sockets are asked whether they have ended: slices that wait for acknowledgements need
 * no write that would tell. */
#define IDLE_PASSES 64

/* ---- claiming ---- */

static void begin_slice(struct bnet_stream *stream, const struct bnet_sent_slice *slice)
{
	bnet_wire_data_encode(stream->out.header, &slice->data);
	stream->out.active = true;
	stream->out.header_left = BNET_WIRE_DATA_HEADER;
	stream->out.data = slice->bytes;
	stream->out.left = stream->out.length = slice->data.length;
	stream->out.pinned = false;
	stream->out.request = slice->request;
	stream->out.copy = slice->copy;
	stream->out.began_us = bnet_recording_is_on() ? bnet_now_us() : 0;
	stream->message = slice->data.message;
}

/* Claims a slice for the stream and prepares its header. now: 0 for a lone stream. */
static bool claim_slice(struct bnet_conn *conn, struct bnet_stream *stream, int streams, uint64_t now)
{
	struct bnet_sent_slice sent = {.copy = NULL};
	struct bnet_slice slice;
	uint64_t want, size;

	if (bnet_conn_all_is_claimed(conn) || !bnet_retention_make_room(conn, stream))
		return false;
	sent.request = &conn->ring[bnet_claim_messages(&conn->claim) % BNET_RING];
	size = atomic_load_explicit(&sent.request->size, memory_order_relaxed);
	want = bnet_scheduler_slice(conn, stream, streams, size, now);
	if (want == 0)
		return false;
	if (stream->seal && want > BNET_SEAL_SLICE)
		want = BNET_SEAL_SLICE;
	slice = bnet_claim_take(&conn->claim, size, want);
	conn->claimed_bytes += slice.length;
	sent.bytes = sent.request->data + slice.offset;
	sent.data = (struct bnet_wire_data){
		.message = slice.message,
		.size = size,
		.offset = slice.offset,
		.length = (uint32_t)slice.length,
	};
	begin_slice(stream, &sent);
	return true;
}

/* The next slice of the stream that this one has taken the place of. */
static bool claim_again(struct bnet_conn *conn, struct bnet_stream *stream)
{
	struct bnet_sent_slice slice;

	if (!stream->replaces || !bnet_retention_make_room(conn, stream))
		return false;
	if (stream->replaces->ledger.count == 0) {
		bnet_stream_free(conn, stream->replaces);
		stream->replaces = NULL;
		conn->buried--;
		atomic_fetch_sub_explicit(&conn->outstanding, 1, memory_order_release);
		return false;
	}
	slice = bnet_ledger_take(&stream->replaces->ledger);
	begin_slice(stream, &slice);
	bnet_conn_count(conn, slices_repeated, 1);
	return true;
}

static void record_slice(const struct bnet_conn *conn, const struct bnet_stream *stream)
{
	bnet_record(&(struct bnet_event){
		.kind = BNET_EVENT_SLICE,
		.begin_us = stream->out.began_us,
		.end_us = bnet_now_us(),
		.connection = conn->id,
		.sender = 1,
		.stream = stream->serial,
		.message = stream->message,
		.bytes = stream->out.length,
	});
}

static void slice_written(struct bnet_conn *conn, struct bnet_stream *stream)
{
	struct bnet_outgoing *out = &stream->out;
	struct bnet_request *done = out->copy || !(conn->repairs || out->pinned) ? out->request : NULL;

	if (done)
		out->request = NULL;
	if (conn->repairs || out->pinned)
		bnet_retention_keep(conn, stream);
	out->active = false;
	bnet_conn_count(conn, slices_sent, 1);
	bnet_conn_count(conn, bytes_sent, out->length);
	if (out->began_us && bnet_recording_is_on())
		record_slice(conn, stream);
	if (done)
		bnet_request_sent(conn, done, out->length ? out->length : 1);
}

/* ---- writing ---- */

/* Header and payload as one piece: up to BNET_SMALL_COPY bytes the kernel takes longer to gather two. The copy is kept
 * until it is acknowledged, so that the request need not wait for that. */
static ssize_t send_joined(struct bnet_conn *conn, struct bnet_stream *stream)
{
	uint8_t once[BNET_WIRE_DATA_HEADER + BNET_SMALL_COPY], *frame = stream->out.copy;

	if (!frame && conn->repairs)
		frame = stream->out.copy = bnet_copy_get(&conn->copies, stream->out.length);
	if (!frame)
		frame = once;
	memcpy(frame, stream->out.header, BNET_WIRE_DATA_HEADER);
	if (stream->out.left && stream->out.request)
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
	bool small = stream->out.header_left == BNET_WIRE_DATA_HEADER && stream->out.left <= BNET_SMALL_COPY;
	ssize_t n;

	do
		n = small ? send_joined(conn, stream) : send_parts(stream);
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

/* Encrypts the slice, if that has not been done, into the buffer from which it is written. A small one is copied, as in
 * send_joined, so that its request need not wait for the acknowledgement. */
static int seal_slice(struct bnet_conn *conn, struct bnet_stream *stream)
{
	struct bnet_outgoing *out = &stream->out;
	int rc;

	if (out->header_left == 0)
		return 0;
	if (!out->copy && conn->repairs && out->length <= BNET_SMALL_COPY) {
		out->copy = bnet_copy_get(&conn->copies, out->length);
		if (out->copy && out->length)
			memcpy((char *)out->copy + BNET_WIRE_DATA_HEADER, out->data, out->length);
	}
	rc = bnet_seal_frame(stream->seal, out->header, BNET_WIRE_DATA_HEADER, out->data, out->length);
	if (rc == 0)
		out->header_left = 0;
	return rc;
}

static ssize_t write_sealed(struct bnet_conn *conn, struct bnet_stream *stream)
{
	int rc = seal_slice(conn, stream);
	const uint8_t *bytes;
	size_t size;
	ssize_t n;

	if (rc < 0) {
		bnet_conn_fail(conn, rc, "cannot encrypt, or check, what goes to %s: %s", conn->peer,
			       rc == -ENOMEM ? "no memory" : "libcrypto fails, or this process ends");
		return -ECANCELED;
	}
	bytes = bnet_seal_left(stream->seal, &size);
	do
		n = send(stream->fd, bytes, size, MSG_DONTWAIT | MSG_NOSIGNAL);
	while (n < 0 && errno == EINTR);
	bnet_conn_count(conn, send_calls, 1);
	return n < 0 ? -errno : n;
}

static ssize_t write_slice(struct bnet_conn *conn, struct bnet_stream *stream)
{
	uint64_t since = bnet_zerocopy_clock(conn, stream);
	bool without_copy = !stream->out.copy && bnet_zerocopy_wants(conn, stream);
	ssize_t n = without_copy ? write_without_copy(conn, stream) : write_with_copy(conn, stream);

	if (n > 0)
		bnet_zerocopy_cost(conn, without_copy, (uint64_t)n, since);
	return n;
}

/* n more bytes are written. True: the slice is. */
static bool advance(struct bnet_stream *stream, size_t n)
{
	size_t header = n < stream->out.header_left ? n : stream->out.header_left, left;

	if (stream->seal) {
		bnet_seal_written(stream->seal, n);
		bnet_seal_left(stream->seal, &left);
		return left == 0;
	}
	stream->out.header_left -= header;
	stream->out.data += n - header;
	stream->out.left -= n - header;
	return stream->out.header_left + stream->out.left == 0;
}

static void lost(struct bnet_conn *conn, int error)
{
	bnet_conn_fail(conn, error,
		       "the connection to %s broke: %s (sends that were outstanding: %u). The remote process has ended or "
		       "the network dropped the connection; look at the other rank's log first",
		       conn->peer, strerror(-error), bnet_conn_outstanding(conn));
}

void bnet_tx_break(struct bnet_conn *conn, struct bnet_stream *stream, int error)
{
	if (!conn->repairs || !bnet_socket_has_ended(stream->fd, error)) {
		lost(conn, error);
		return;
	}
	stream->broken = true;
	stream->writable = false;
	conn->error_of = error;
	atomic_store_explicit(&conn->reap, true, memory_order_relaxed);
}

void bnet_tx_break_closed(struct bnet_conn *conn)
{
	for (int i = 0; i < conn->nstreams; i++)
		if (!conn->streams[i]->broken && bnet_socket_is_closed(conn->streams[i]->fd))
			bnet_tx_break(conn, conn->streams[i], -ECONNRESET);
}

static bool is_full(ssize_t result)
{
	return result == -EAGAIN || result == -ENOBUFS || result == -ENOMEM;
}

/* Writes the rest of the stream's slice. Bytes written; fewer than the rest clear `writable`. */
static size_t write_on(struct bnet_conn *conn, struct bnet_stream *stream)
{
	ssize_t n = stream->seal ? write_sealed(conn, stream) : write_slice(conn, stream);

	if (is_full(n)) {
		bnet_conn_count(conn, send_again, 1);
		stream->writable = false;
		return 0;
	}
	if (n < 0) {
		stream->writable = false;
		bnet_tx_break(conn, stream, (int)n);
		return 0;
	}
	bnet_delivery_add(&stream->delivery, (uint64_t)n);
	stream->landed = false;
	if (advance(stream, (size_t)n))
		slice_written(conn, stream);
	else
		stream->writable = false;
	return (size_t)n;
}

/* What has to be sent again, as far as there is room. */
static size_t repeat(struct bnet_conn *conn, struct bnet_stream *stream)
{
	size_t written = 0;

	while (stream->writable && written < PASS_BYTES && (stream->out.active || claim_again(conn, stream)))
		written += write_on(conn, stream);
	return written;
}

/* Whether a lone stream has room is found by writing: that takes the same single system call. */
static bool pump(struct bnet_conn *conn, struct bnet_stream *stream)
{
	size_t written;

	if (stream->broken)
		return false;
	stream->writable = true;
	written = repeat(conn, stream);
	while (stream->writable && written < PASS_BYTES && !stream->replaces &&
	       (stream->out.active || claim_slice(conn, stream, 1, 0)))
		written += write_on(conn, stream);
	return written > 0;
}

/* Slice by slice, each to the stream that completes it first. */
static size_t distribute(struct bnet_conn *conn, int active)
{
	size_t written = 0;
	uint64_t refused = 0;

	while (written < PASS_BYTES && !bnet_conn_all_is_claimed(conn)) {
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
	return stream->bbr && !stream->landed && !stream->out.active && !stream->hangup && !stream->broken &&
	       atomic_load_explicit(&stream->estimator.min_rtt_us, memory_order_relaxed) >= BNET_LONG_RTT_US;
}

/* By a send of no bytes, during which the kernel checks whether the stream is dry. */
static void note_dry(struct bnet_conn *conn, struct bnet_stream *stream)
{
	int queued = 0;

	if (ioctl(stream->fd, SIOCOUTQ, &queued) == 0 && queued == 0)
		stream->landed = true;
	else if (send(stream->fd, "", 0, MSG_DONTWAIT | MSG_NOSIGNAL) < 0 && errno != EINTR && !is_full(-errno))
		bnet_tx_break(conn, stream, -errno); /* the socket reports an error only once */
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

/* A slice that is held needs no write, which would tell that its stream has ended. */
static void look_for_ends(struct bnet_conn *conn, int streams)
{
	if (conn->epoll >= 0)
		bnet_conn_poll(conn);
	for (int i = 0; i < streams; i++) {
		struct bnet_stream *stream = conn->streams[i];
		int error = streams == 1 || stream->hangup ? bnet_socket_error(stream->fd) : 0;

		if (stream->broken || !(error || stream->hangup || (streams == 1 && bnet_socket_is_closed(stream->fd))))
			continue;
		bnet_tx_break(conn, stream, error ? error : -EPIPE);
	}
}

static void take_notice(struct bnet_conn *conn, struct bnet_stream *stream)
{
	if (bnet_zerocopy_pending(&stream->zerocopy))
		bnet_zerocopy_reap(conn, stream);
	if (stream->replaces && !stream->settled)
		bnet_retention_settle(conn, stream);
	if (stream->ledger.held && !conn->repairs)
		bnet_retention_release(conn, stream); /* with repairs, where nothing is to be written */
}

bool bnet_tx_owes(struct bnet_conn *conn)
{
	int streams = atomic_load_explicit(&conn->nstreams, memory_order_acquire);
	bool owes = conn->buried > 0;

	for (int i = 0; i < streams; i++) {
		struct bnet_stream *stream = conn->streams[i];

		if (!stream->broken && stream->ledger.count)
			bnet_retention_release(conn, stream);
		owes |= stream->ledger.count || stream->out.active;
	}
	return owes && conn->repairs;
}

bool bnet_tx_progress(struct bnet_conn *conn)
{
	int streams = atomic_load_explicit(&conn->nstreams, memory_order_acquire);
	int active = bnet_conn_active(conn);
	size_t written = 0;

	for (int i = 0; i < streams; i++)
		if (!conn->streams[i]->broken)
			take_notice(conn, conn->streams[i]);
	if (atomic_load_explicit(&conn->error, memory_order_relaxed))
		return false;
	if (streams == 1) {
		written = pump(conn, conn->streams[0]);
	} else {
		if (conn->held_back || any_full(conn, streams))
			bnet_conn_poll(conn);
		for (int i = 0; i < streams; i++) {
			struct bnet_stream *stream = conn->streams[i];

			if (stream->replaces)
				written += repeat(conn, stream);
			else if (stream->out.active && stream->writable)
				written += write_on(conn, stream);
		}
		written += distribute(conn, active);
	}
	if (written)
		conn->idle = 0;
	else if (conn->repairs && bnet_retention_wait(conn, streams) && ++conn->idle % IDLE_PASSES == 0)
		look_for_ends(conn, streams);
	return written > 0;
}
