/* SPDX-License-Identifier: MIT
 *
 * See send_buffer.h.
 */
#include "scaling/send_buffer.h"

#include "base/socket.h"

/* A lone stream on a short path, with messages of so many bytes, has a larger buffer: ping-pong of 512 KiB and 1 MiB
 * then takes 0.64 to 0.77 of the time, and streams of 1 and 4 MiB carry 1.07 to 1.24 times as much. Streams of 64 and
 * 256 KiB would carry 0.5 to 1.1 times as much (docs/dev/history.md). */
#define LARGE_BYTES (512 * 1024)

/* Where both sizes are mixed, those that were seen last count, and a mean in between changes nothing. */
void bnet_send_buffer_weigh(struct bnet_conn *conn)
{
	struct bnet_sizes *sizes = &conn->sizes;
	const uint64_t posted = atomic_load_explicit(&conn->posted, memory_order_relaxed);
	const uint64_t bytes = atomic_load_explicit(&conn->posted_bytes, memory_order_relaxed);
	const uint64_t messages = posted - sizes->posted, sum = bytes - sizes->bytes;

	if (messages == 0)
		return;
	sizes->large = sum / messages >= (sizes->large ? LARGE_BYTES / 2 : LARGE_BYTES);
	sizes->posted = posted;
	sizes->bytes = bytes;
}

/* As much of it as the kernel grants. */
static int64_t large_sndbuf(void)
{
	const int64_t most = bnet_sndbuf_most();

	return most < LARGE_BYTES ? most : LARGE_BYTES;
}

void bnet_send_buffer_fit(struct bnet_conn *conn, struct bnet_stream *stream)
{
	const bool large = conn->sizes.large && bnet_conn_active(conn) == 1;
	uint64_t rate = stream->estimator.peak;
	int64_t want;

	if (conn->config->sndbuf)
		return;
	/* Before anything was measured the link's nominal speed stands in. */
	if (rate == 0)
		rate = (uint64_t)conn->dev->speed_mbps * 125000;
	want = bnet_sndbuf_for_path(stream->estimator.last.min_rtt_us, rate, bnet_sndbuf_most(), bnet_sndbuf_tuned());
	if (large && want && want < large_sndbuf())
		want = large_sndbuf();
	want = bnet_sndbuf_change(stream->estimator.sndbuf, want, bnet_sndbuf_most());
	if (want == stream->estimator.sndbuf)
		return;
	stream->estimator.sndbuf = want;
	bnet_socket_set_sndbuf(stream->fd, want);
}
