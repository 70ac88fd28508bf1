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
#include <time.h>

#include "conn.h"
#include "counters.h"

/* One stream's share of a pass, so that a fast stream does not keep its owner from the other connections. */
#define PASS_BYTES (4u << 20)
/* A stream that may hold more than this is bounded by its send buffer. */
#define ASK_BYTES (512u << 10)

static uint64_t unclaimed(const struct bnet_conn *conn)
{
	return atomic_load_explicit(&conn->posted_bytes, memory_order_relaxed) - conn->claimed_bytes;
}

/* ---- the promise ---- */

static uint64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

/* Bytes that this stream may take now so that they arrive about as early as what its siblings carry; 0: none. A claim is
 * a promise: what a slow stream takes, no other can deliver. */
static uint64_t promise(struct bnet_stream *stream, uint64_t want)
{
	uint64_t budget = bnet_flow_budget(&stream->flow), now, rate;
	int queued = 0;

	if (budget >= ASK_BYTES)
		return want;
	if (want > budget / 4)
		want = budget / 4;
	now = now_ns();
	if (now < stream->ask_at_ns || ioctl(stream->fd, SIOCOUTQ, &queued) < 0)
		return 0;
	if (queued == 0 || (uint64_t)queued + want <= budget)
		return want ? want : 1;
	rate = atomic_load_explicit(&stream->flow.rate, memory_order_relaxed);
	if (rate)
		stream->ask_at_ns = now + ((uint64_t)queued + want - budget) * 1000000000 / rate;
	return 0;
}

static bool claim_slice(struct bnet_conn *conn, struct bnet_stream *stream, int streams)
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
		want = bnet_slice_want(unclaimed(conn), streams, (uint64_t)conn->config->min_chunksize,
				       (uint64_t)conn->config->max_chunksize);
		if (streams > 1)
			want = promise(stream, want);
		if (want == 0)
			return false;
	} while (!bnet_claim_take(&conn->claim, &view, size, want, &slice));

	conn->claimed_bytes += slice.length;
	bnet_data_encode(stream->out_header, &(struct bnet_data){
						     .message = slice.message,
						     .size = size,
						     .offset = slice.offset,
						     .length = (uint32_t)slice.length,
					     });
	stream->out_header_left = BNET_DATA_HEADER;
	stream->out_data = request->data + slice.offset;
	stream->out_left = slice.length;
	stream->out_length = slice.length;
	stream->out_request = request;
	return true;
}

static void slice_written(struct bnet_conn *conn, struct bnet_stream *stream)
{
	struct bnet_request *request = stream->out_request;
	/* An empty message has one slice of no bytes, and counts as one. */
	uint64_t counted = stream->out_length ? stream->out_length : 1;

	stream->out_request = NULL;
	bnet_count(slices_sent, 1);
	bnet_count(bytes_sent, stream->out_length);
	if (atomic_fetch_sub_explicit(&request->left, counted, memory_order_acq_rel) != counted)
		return;
	bnet_count(messages_sent, 1);
	atomic_fetch_sub_explicit(&conn->outstanding, 1, memory_order_relaxed);
	atomic_store_explicit(&request->done, true, memory_order_release);
}

/* Header and payload in one call. Bytes written, or -errno. */
static ssize_t write_slice(struct bnet_stream *stream)
{
	struct iovec iov[2];
	struct msghdr msg = {.msg_iov = iov};
	ssize_t n;

	if (stream->out_header_left)
		iov[msg.msg_iovlen++] = (struct iovec){
			stream->out_header + BNET_DATA_HEADER - stream->out_header_left, stream->out_header_left};
	if (stream->out_left)
		iov[msg.msg_iovlen++] = (struct iovec){(void *)(uintptr_t)stream->out_data, stream->out_left};
	do
		n = sendmsg(stream->fd, &msg, MSG_DONTWAIT | MSG_NOSIGNAL);
	while (n < 0 && errno == EINTR);
	bnet_count(send_calls, 1);
	return n < 0 ? -errno : n;
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

/* Writes until the stream is full or nothing is left to claim for one of so many streams. */
static bool pump(struct bnet_conn *conn, struct bnet_stream *stream, int streams)
{
	size_t written = 0;

	while (written < PASS_BYTES) {
		size_t wanted;
		ssize_t n;

		if (!stream->out_request && (streams == 0 || !claim_slice(conn, stream, streams)))
			break;
		wanted = stream->out_header_left + stream->out_left;
		n = write_slice(stream);
		if (n == -EAGAIN || n == -ENOBUFS || n == -ENOMEM) {
			bnet_count(send_again, 1);
			stream->writable = false;
			break;
		}
		if (n < 0) {
			lost(conn, (int)n);
			break;
		}
		written += (size_t)n;
		advance(stream, (size_t)n);
		if ((size_t)n < wanted) {
			stream->writable = false;
			break;
		}
		slice_written(conn, stream);
	}
	return written > 0;
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
	bool moved = false;

	/* A lone stream is asked by writing to it: that is the same one system call. */
	if (streams > 1 && any_full(conn, streams))
		bnet_conn_poll(conn);
	for (int i = 0; i < streams; i++)
		if ((i < active || conn->streams[i]->out_request) && (streams == 1 || conn->streams[i]->writable))
			moved |= pump(conn, conn->streams[i], i < active ? active : 0);
	return moved;
}
