/* SPDX-License-Identifier: MIT
 *
 * See scheduler.h.
 */
#include "transport/scheduler.h"

#include <linux/sockios.h>
#include <sys/ioctl.h>

#include "transport/admission.h"
#include "transport/slice.h"

/* A slice should occupy its stream for this long, so that its fixed cost does not show. */
#define MIN_SLICE_US 128
/* A larger BAGUA_NET_MIN_CHUNKSIZE than this, the default, is taken literally. */
#define FINER_UP_TO 65536

static uint64_t rate_of(const struct bnet_stream *stream)
{
	return atomic_load_explicit(&stream->estimator.rate, memory_order_relaxed);
}

static void measure(struct bnet_stream *stream, uint64_t now)
{
	int queued = 0;

	if (ioctl(stream->fd, SIOCOUTQ, &queued) == 0)
		bnet_inflight_measured(&stream->inflight, (uint64_t)queued, now);
}

uint64_t bnet_scheduler_unclaimed(const struct bnet_conn *conn)
{
	return atomic_load_explicit(&conn->posted_bytes, memory_order_relaxed) - conn->claimed_bytes;
}

static uint64_t completes_in(struct bnet_stream *stream, uint64_t now)
{
	uint64_t rate = rate_of(stream);

	if (stream->hangup)
		return 0; /* the write will return the error */
	if (rate == 0 && stream->inflight.bytes && bnet_inflight_is_stale(&stream->inflight, rate, now))
		measure(stream, now);
	return bnet_admission_completes_in(&stream->inflight, rate, stream->index == 0, now);
}

struct bnet_stream *bnet_scheduler_pick(struct bnet_conn *conn, int active, uint64_t refused, uint64_t now)
{
	struct bnet_stream *best = NULL;
	uint64_t best_ns = UINT64_MAX;

	for (int i = 0; i < active; i++) {
		struct bnet_stream *stream = conn->streams[i];
		uint64_t ns;

		if (!stream->writable || stream->broken || stream->replaces || stream->out.active || refused >> i & 1)
			continue;
		ns = completes_in(stream, now);
		if (ns < best_ns) {
			best = stream;
			best_ns = ns;
		}
	}
	return best;
}

/* Slices are no smaller than configured, except where the posted bytes would not reach all streams and the stream is
 * slow: the message then arrives so much earlier that it outweighs the fixed cost of more slices. */
static uint64_t least_slice(const struct bnet_conn *conn, const struct bnet_stream *stream, uint64_t size, int streams)
{
	const uint64_t configured = (uint64_t)conn->config->min_chunksize;
	const uint64_t rate = rate_of(stream);

	if (rate == 0 || configured > FINER_UP_TO)
		return configured;
	/* The end of a message is cut like its beginning. */
	if (size < bnet_scheduler_unclaimed(conn))
		size = bnet_scheduler_unclaimed(conn);
	return bnet_slice_least(size, streams, rate * MIN_SLICE_US / 1000000, configured);
}

static uint64_t admitted(struct bnet_stream *stream, uint64_t want, uint64_t now)
{
	uint64_t limit = bnet_estimator_inflight_limit(&stream->estimator);
	uint64_t rate = rate_of(stream);

	if (limit >= BNET_ADMISSION_UNBOUNDED || stream->hangup)
		return want;
	want = bnet_admission_slice(limit, want);
	if (bnet_inflight_is_stale(&stream->inflight, rate, now))
		measure(stream, now);
	return bnet_admission_allows(&stream->inflight, limit, rate, want, now) ? want : 0;
}

uint64_t bnet_scheduler_slice(const struct bnet_conn *conn, struct bnet_stream *stream, int streams, uint64_t size,
			      uint64_t now)
{
	uint64_t want = bnet_slice_want(bnet_scheduler_unclaimed(conn), streams,
					least_slice(conn, stream, size, streams),
					(uint64_t)conn->config->max_chunksize);

	return now ? admitted(stream, want, now) : want;
}

void bnet_scheduler_written(struct bnet_stream *stream, uint64_t bytes, uint64_t now)
{
	bnet_inflight_written(&stream->inflight, rate_of(stream), bytes, now);
}
