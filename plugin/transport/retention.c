/* SPDX-License-Identifier: MIT
 *
 * See retention.h.
 */
#include "transport/retention.h"

#include <errno.h>
#include <linux/sockios.h>
#include <string.h>
#include <sys/ioctl.h>

#include "common/clock.h"
#include "transport/request.h"

/* Held slices are copied when for this time nothing was acknowledged and nothing is left to write: their caller may
 * wait for them, and the peer's kernel may delay an acknowledgement by 40 ms. It is less than a message of that size
 * takes to the peer and an answer back, and so much that a stream of messages is not copied. */
#define COPY_SHORT_US 3
#define COPY_LONG_US 15
#define SHORT_BYTES (32u << 10)
/* All copies of a connection. A kernel holds as much of a long path's bytes. */
#define MOST_COPIED (16u << 20)
/* Slices in a stream's ledger. More of them wait for acknowledgements. */
#define MOST_ROWS 1024

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

void bnet_retention_release(struct bnet_conn *conn, struct bnet_stream *stream)
{
	struct bnet_ledger *ledger = &stream->ledger;
	uint64_t acked = ledger->count ? acknowledged(conn, stream) : 0;

	while (ledger->count && bnet_ledger_at(ledger, 0)->end <= acked &&
	       !is_pinned(stream, bnet_ledger_at(ledger, 0)))
		release_one(conn, ledger);
}

bool bnet_retention_make_room(struct bnet_conn *conn, struct bnet_stream *stream)
{
	struct bnet_ledger *ledger = &stream->ledger;

	if (bnet_ledger_is_full(ledger))
		bnet_retention_release(conn, stream);
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

/* ---- slices that were written ---- */

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

void bnet_retention_keep(struct bnet_conn *conn, struct bnet_stream *stream)
{
	struct bnet_sent_slice slice = outgoing(stream);

	slice.end = conn->repairs ? atomic_load_explicit(&stream->delivery.written, memory_order_relaxed) : 0;
	bnet_ledger_add(&stream->ledger, &slice);
}

/* ---- nothing can be written ---- */

static bool any_held(const struct bnet_conn *conn, int streams)
{
	for (int i = 0; i < streams; i++)
		if (conn->streams[i]->ledger.held && !conn->streams[i]->broken)
			return true;
	return false;
}

/* Of streams that hold requests, and of all where copies are about to find no room: those that were acknowledged are
 * still there on a stream that holds none. True: something was released. */
static bool release_all(struct bnet_conn *conn, int streams)
{
	const bool crowded = conn->copies.bytes > MOST_COPIED / 2;
	bool released = false;

	for (int i = 0; i < streams; i++) {
		struct bnet_stream *stream = conn->streams[i];
		uint32_t before = stream->ledger.count;

		if (stream->broken || !(crowded ? stream->ledger.count : stream->ledger.held))
			continue;
		bnet_retention_release(conn, stream);
		released |= stream->ledger.count < before;
	}
	return released;
}

bool bnet_retention_wait(struct bnet_conn *conn, int streams)
{
	bool released;
	uint64_t now;

	if (!any_held(conn, streams))
		return false;
	released = release_all(conn, streams);
	now = bnet_now_us();
	if (released || conn->idle == 0)
		conn->idle_us = now;
	else if (now - conn->idle_us >= COPY_SHORT_US && bnet_conn_all_is_claimed(conn))
		for (int i = 0; i < streams; i++)
			if (conn->streams[i]->ledger.held && !conn->streams[i]->broken)
				copy_held(conn, conn->streams[i], now - conn->idle_us);
	return true;
}

/* ---- a stream that broke ---- */

int bnet_retention_bury(struct bnet_conn *conn, struct bnet_stream *stream)
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

void bnet_retention_settle(struct bnet_conn *conn, struct bnet_stream *stream)
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
