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
#include "base/socket.h"
#include "transport/request.h"
#include "transport/scheduler.h"
#include "transport/zerocopy.h"

/* A stream's budget in a pass, so that a fast stream does not keep its owner from the other connections. */
#define PASS_BYTES (4u << 20)

/* Held slices are copied when for this time nothing was acknowledged and nothing is left to write: their caller may wait for
 * them, and the peer's kernel may delay an acknowledgement by 40 ms. It is less than a message of that size takes to the
 * peer and an answer back, and so much that a stream of messages is not copied. */
#define COPY_SHORT_US 3
#define COPY_LONG_US 15
#define SHORT_BYTES (32u << 10)
/* All copies of a connection. A kernel holds as much of a long path's bytes. */
#define MOST_COPIED (16u << 20)
/* Slices in a stream's ledger. More of them wait for acknowledgements. */
#define MOST_ROWS 1024
/* Passes in a row after which the sockets are asked whether they have ended: slices that wait for acknowledgements need
 * no write that would tell. */
#define IDLE_PASSES 64

/* ---- what was written and is not acknowledged ---- */

/* Bytes of the stream that the peer's kernel has. */
static uint64_t acknowledged(const struct bnet_conn *conn, const struct bnet_stream *stream)
{
	uint64_t written = atomic_load_explicit(&stream->delivery.written, memory_order_relaxed);
	int queued = 0;

	if (!conn->repairs || ioctl(stream->fd, SIOCOUTQ, &queued) < 0)
		return UINT64_MAX;
	return written > (uint64_t)queued ? written - (uint64_t)queued : 0;
}

static bool is_pinned(const struct bnet_stream *stream, const struct bnet_sent_slice *slice)
{
	return slice->pinned && (int32_t)(stream->zerocopy.notified - slice->calls) < 0;
}

/* An empty message has one slice of no bytes, and counts as one. */
static void credit(struct bnet_conn *conn, struct bnet_request *request, uint64_t length)
{
	if (request)
		bnet_request_sent(conn, request, length ? length : 1);
}

/* The oldest slice of the ledger has arrived. */
static void release_one(struct bnet_conn *conn, struct bnet_ledger *ledger)
{
	const struct bnet_sent_slice slice = bnet_ledger_take(ledger);

	ledger->released = slice.end;
	if (slice.copy)
		bnet_copy_put(&conn->copies, slice.copy, slice.data.length);
	credit(conn, slice.request, slice.data.length);
}

static void release(struct bnet_conn *conn, struct bnet_stream *stream)
{
	struct bnet_ledger *ledger = &stream->ledger;
	uint64_t acked = ledger->count ? acknowledged(conn, stream) : 0;

	while (ledger->count && bnet_ledger_at(ledger, 0)->end <= acked &&
	       !is_pinned(stream, bnet_ledger_at(ledger, 0)))
		release_one(conn, ledger);
}

/* Room for one more slice. */
static bool make_room(struct bnet_conn *conn, struct bnet_stream *stream)
{
	struct bnet_ledger *ledger = &stream->ledger;

	if (bnet_ledger_is_full(ledger))
		release(conn, stream);
	return ledger->count < MOST_ROWS && bnet_ledger_reserve(ledger) == 0;
}

/* The request need not wait any longer. */
static void copy_slice(struct bnet_conn *conn, struct bnet_ledger *ledger, struct bnet_sent_slice *slice)
{
	struct bnet_request *request = slice->request;
	void *copy = bnet_copy_get(&conn->copies, slice->data.length);

	if (!copy)
		return;
	slice->bytes = memcpy((char *)copy + BNET_WIRE_DATA_HEADER, slice->bytes, slice->data.length);
	slice->copy = copy;
	slice->request = NULL;
	ledger->held--;
	credit(conn, request, slice->data.length);
}

static void copy_held(struct bnet_conn *conn, struct bnet_stream *stream, uint64_t idle_us)
{
	for (uint32_t i = 0; i < stream->ledger.count && stream->ledger.held; i++) {
		struct bnet_sent_slice *slice = bnet_ledger_at(&stream->ledger, i);

		if (conn->copies.bytes + slice->data.length > MOST_COPIED)
			return;
		if (idle_us < (slice->data.length > SHORT_BYTES ? COPY_LONG_US : COPY_SHORT_US))
			continue;
		if (slice->request && !is_pinned(stream, slice))
			copy_slice(conn, &stream->ledger, slice);
	}
}

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
	stream->message = slice->data.message;
}

/* Claims a slice for the stream and prepares its header. now: 0 for a lone stream. */
static bool claim_slice(struct bnet_conn *conn, struct bnet_stream *stream, int streams, uint64_t now)
{
	uint64_t posted = atomic_load_explicit(&conn->posted, memory_order_acquire);
	struct bnet_sent_slice sent = {.copy = NULL};
	struct bnet_claim_view view;
	struct bnet_slice slice;
	uint64_t want, size;

	do {
		view = bnet_claim_look(&conn->claim, posted);
		if (view.message == posted || !make_room(conn, stream))
			return false;
		sent.request = &conn->ring[view.message % BNET_RING];
		size = atomic_load_explicit(&sent.request->size, memory_order_relaxed);
		want = bnet_scheduler_slice(conn, stream, streams, size, now);
		if (want == 0)
			return false;
	} while (!bnet_claim_take(&conn->claim, &view, size, want, &slice));

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

	if (!stream->replaces || !make_room(conn, stream))
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

static struct bnet_sent_slice outgoing(const struct bnet_stream *stream)
{
	struct bnet_sent_slice slice = {
		.bytes = stream->out.copy ? (char *)stream->out.copy + BNET_WIRE_DATA_HEADER
					  : stream->out.data - (stream->out.length - stream->out.left),
		.request = stream->out.request,
		.copy = stream->out.copy,
		.end = BNET_UNWRITTEN,
		.calls = stream->zerocopy.made,
		.pinned = stream->out.pinned,
	};

	bnet_wire_data_decode(stream->out.header, &slice.data);
	return slice;
}

static void slice_written(struct bnet_conn *conn, struct bnet_stream *stream)
{
	struct bnet_outgoing *out = &stream->out;
	struct bnet_request *done = out->copy || !(conn->repairs || out->pinned) ? out->request : NULL;

	if (done)
		out->request = NULL;
	if (conn->repairs || out->pinned) {
		struct bnet_sent_slice slice = outgoing(stream);

		slice.end = conn->repairs ? atomic_load_explicit(&stream->delivery.written, memory_order_relaxed) : 0;
		bnet_ledger_add(&stream->ledger, &slice);
	}
	out->active = false;
	bnet_conn_count(conn, slices_sent, 1);
	bnet_conn_count(conn, bytes_sent, out->length);
	credit(conn, done, out->length);
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

static ssize_t write_slice(struct bnet_conn *conn, struct bnet_stream *stream)
{
	uint64_t since = bnet_zerocopy_clock(conn, stream);
	bool without_copy = !stream->out.copy && bnet_zerocopy_wants(conn, stream);
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

static bool is_end(int error)
{
	return error == -ECONNRESET || error == -EPIPE || error == -ETIMEDOUT || error == -ECONNABORTED ||
	       error == -EHOSTUNREACH || error == -ENETUNREACH || error == -ENETDOWN;
}

void bnet_tx_break(struct bnet_conn *conn, struct bnet_stream *stream, int error)
{
	if (!conn->repairs || !is_end(error)) {
		lost(conn, error);
		return;
	}
	stream->broken = true;
	stream->writable = false;
	conn->error_of = error;
	atomic_store_explicit(&conn->reap, true, memory_order_relaxed);
}

int bnet_tx_bury(struct bnet_conn *conn, struct bnet_stream *stream)
{
	struct bnet_stream *replaces = stream->replaces;
	struct bnet_sent_slice slice;

	if (stream->out.active) {
		if (bnet_ledger_reserve(&stream->ledger) < 0)
			return -ENOMEM;
		slice = outgoing(stream);
		bnet_ledger_add(&stream->ledger, &slice);
		stream->out.active = false;
	}
	while (replaces && replaces->ledger.count) {
		if (bnet_ledger_reserve(&stream->ledger) < 0)
			return -ENOMEM;
		slice = bnet_ledger_take(&replaces->ledger);
		slice.end = BNET_UNWRITTEN;
		bnet_ledger_add(&stream->ledger, &slice);
	}
	if (replaces)
		bnet_stream_free(conn, replaces);
	else {
		atomic_fetch_add_explicit(&conn->outstanding, 1, memory_order_release);
		conn->buried++;
	}
	stream->replaces = NULL;
	return 0;
}

/* The receiver has said how much of the broken stream has arrived. */
static void settle(struct bnet_conn *conn, struct bnet_stream *stream)
{
	struct bnet_stream *old = stream->replaces;
	uint64_t written = atomic_load_explicit(&old->delivery.written, memory_order_relaxed);

	stream->settled = true;
	if (stream->position > written) {
		bnet_conn_fail(conn, -EBADMSG, "%s says that it has more of a broken stream than was sent", conn->peer);
		return;
	}
	if (stream->position < old->ledger.released) {
		bnet_conn_fail(conn, -EBADMSG,
			       "a stream to %s was reset, and %llu of the %llu bytes that were acknowledged on it have not "
			       "arrived: something on the way ends TCP connections (a proxy, a service mesh). With "
			       "BAGUA_NET_REPAIR=0 each such reset ends the connection",
			       conn->peer, (unsigned long long)(old->ledger.released - stream->position),
			       (unsigned long long)old->ledger.released);
		return;
	}
	while (old->ledger.count && bnet_ledger_at(&old->ledger, 0)->end <= stream->position)
		release_one(conn, &old->ledger);
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
		bnet_tx_break(conn, stream, (int)n);
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

static bool any_held(const struct bnet_conn *conn, int streams)
{
	for (int i = 0; i < streams; i++)
		if (conn->streams[i]->ledger.held && !conn->streams[i]->broken)
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

/* True: something was. */
static bool release_all(struct bnet_conn *conn, int streams)
{
	bool released = false;

	for (int i = 0; i < streams; i++) {
		struct bnet_stream *stream = conn->streams[i];
		uint32_t before = stream->ledger.count;

		if (stream->broken || !stream->ledger.held)
			continue;
		release(conn, stream);
		released |= stream->ledger.count < before;
	}
	return released;
}

/* Nothing can be written, and slices are held. */
static void wait_for_acknowledgements(struct bnet_conn *conn, int streams)
{
	const bool released = release_all(conn, streams);
	const uint64_t now = bnet_now_us();

	if (released || conn->idle == 0)
		conn->idle_us = now;
	else if (now - conn->idle_us >= COPY_SHORT_US && bnet_conn_all_is_claimed(conn))
		for (int i = 0; i < streams; i++)
			if (conn->streams[i]->ledger.held && !conn->streams[i]->broken)
				copy_held(conn, conn->streams[i], now - conn->idle_us);
	if (++conn->idle % IDLE_PASSES == 0)
		look_for_ends(conn, streams);
}

static void take_notice(struct bnet_conn *conn, struct bnet_stream *stream)
{
	if (bnet_zerocopy_pending(&stream->zerocopy))
		bnet_zerocopy_reap(conn, stream);
	if (stream->replaces && !stream->settled)
		settle(conn, stream);
	if (stream->ledger.held && !conn->repairs)
		release(conn, stream); /* with repairs, where nothing is to be written */
}

bool bnet_tx_owes(struct bnet_conn *conn)
{
	int streams = atomic_load_explicit(&conn->nstreams, memory_order_acquire);
	bool owes = conn->buried > 0;

	for (int i = 0; i < streams; i++) {
		struct bnet_stream *stream = conn->streams[i];

		if (!stream->broken && stream->ledger.count)
			release(conn, stream);
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
	else if (conn->repairs && any_held(conn, streams))
		wait_for_acknowledgements(conn, streams);
	return written > 0;
}
