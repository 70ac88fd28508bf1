/* SPDX-License-Identifier: MIT
 *
 * See path.h.
 */
#include "scaling/path.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/socket.h"
#include "engine/engine.h"
#include "handshake/close.h"
#include "handshake/connector.h"

/* Readings further apart than this are no steady work. */
#define MOST_GAP_US 100000
#define MOST_GAP_RTTS 4
/* A sample shorter than a round trip would see bursts, but no sample takes longer than this. */
#define MOST_SAMPLE_US 200000

static struct bnet_path *find_path(const struct bnet_device *dev, const struct sockaddr_storage *addr)
{
	bnet_list_each(node, &bnet_engine.paths) {
		struct bnet_path *path = bnet_entry(node, struct bnet_path, node);

		if (path->dev == dev && bnet_same_host(&path->addr, addr))
			return path;
	}
	return NULL;
}

int bnet_path_join(struct bnet_conn *conn)
{
	const struct sockaddr_storage *addr = &conn->setup.peers[0].addr;
	struct bnet_path *path = find_path(conn->dev, addr);
	int most = bnet_engine.config.nstreams ? (int)bnet_engine.config.nstreams : BNET_MAX_STREAMS;
	int least = (int)bnet_engine.config.min_nstreams;

	if (!path) {
		path = calloc(1, sizeof(*path));
		if (!path)
			return -ENOMEM;
		path->dev = conn->dev;
		path->addr = *addr;
		bnet_scaler_init(&path->scaler, least < most ? least : most, most);
		bnet_list_add(&bnet_engine.paths, &path->node);
	}
	path->users++;
	conn->path = path;
	conn->setup.resting = &path->resting;
	return 0;
}

void bnet_path_leave(struct bnet_conn *conn)
{
	struct bnet_path *path = conn->path;

	conn->path = NULL;
	conn->setup.resting = NULL;
	if (!path || --path->users)
		return;
	bnet_list_remove(&path->node);
	free(path);
}

/* ---- send buffers ---- */

static void fit(struct bnet_conn *conn, struct bnet_stream *stream)
{
	uint64_t rate = stream->estimator.peak;
	int64_t want;

	if (conn->config->sndbuf)
		return;
	/* Before anything was measured the link's nominal speed stands in. */
	if (rate == 0)
		rate = (uint64_t)conn->dev->speed_mbps * 125000;
	want = bnet_sndbuf_for_path(stream->estimator.last.min_rtt_us, rate);
	if (want == stream->estimator.sndbuf)
		return;
	stream->estimator.sndbuf = want;
	bnet_socket_set_sndbuf(stream->fd, want);
}

void bnet_path_stream_joined(struct bnet_conn *conn, struct bnet_stream *stream)
{
	struct bnet_reading reading;

	if (!bnet_estimator_read(stream->fd, &reading))
		return;
	bnet_estimator_update(&stream->estimator, &reading, bnet_now_us(), false);
	fit(conn, stream);
}

/* ---- how many streams ---- */

/* The peer takes `most` streams of this connection, and so all connections of the path are limited. */
static void allow(struct bnet_conn *conn, int most)
{
	struct bnet_scaler *scaler = &conn->path->scaler;

	conn->setup.most = most < 1 ? 1 : most;
	if (scaler->most > conn->setup.most)
		scaler->most = conn->setup.most;
	if (scaler->least > scaler->most)
		scaler->least = scaler->most;
	if (scaler->level > scaler->most)
		bnet_scaler_set(scaler, scaler->most);
}

/* Every NIC of both ends needs a stream. */
static void spread(struct bnet_conn *conn)
{
	struct bnet_scaler *scaler = &conn->path->scaler;
	int least = bnet_candidate_min_streams(conn);

	if (least > scaler->most)
		least = scaler->most;
	if (least <= scaler->least)
		return;
	scaler->least = least;
	if (scaler->level < least)
		bnet_scaler_set(scaler, least);
}

/* Opens missing streams; those above the level rest. */
static void widen(struct bnet_conn *conn)
{
	int level = conn->path->scaler.level;

	if (level > conn->setup.most)
		level = conn->setup.most;
	atomic_store_explicit(&conn->level, level, memory_order_relaxed);
	for (; conn->setup.wanted < level; conn->setup.wanted++) {
		if (!bnet_descriptors_left()) {
			bnet_warn("NET/BaguaNet: %d instead of %d streams to %s: half of the limit of open files is used. "
				  "Raise it (ulimit -n)",
				  conn->setup.wanted, level, conn->peer);
			conn->setup.most = conn->setup.wanted;
			return;
		}
		bnet_connector_start(conn, conn->setup.wanted);
	}
}

void bnet_path_widen(struct bnet_path *path)
{
	bnet_list_each(node, &bnet_engine.conns) {
		struct bnet_conn *conn = bnet_entry(node, struct bnet_conn, node);

		if (conn->path == path && conn->setup.ready)
			widen(conn);
	}
}

void bnet_path_ready(struct bnet_conn *conn, int most)
{
	allow(conn, most);
	spread(conn);
	bnet_path_widen(conn->path);
}

/* Streams that are no longer used are closed: the next ones that are tried get other ports, and with luck another way
 * through the network. The peer must have acknowledged their bytes first: it may read them much later, and the kernel
 * forgets a closed socket whose peer keeps its window shut. */
static bool is_idle(const struct bnet_stream *stream)
{
	return !stream->out.request && !bnet_zerocopy_pending(&stream->zerocopy) &&
	       (stream->hangup || bnet_socket_all_acknowledged(stream->fd));
}

static void narrow(struct bnet_conn *conn)
{
	int level = atomic_load_explicit(&conn->level, memory_order_relaxed);

	if (conn->nstreams <= level || conn->setup.connecting || !bnet_conn_try_own(conn))
		return;
	for (int last = conn->nstreams - 1; last >= level && is_idle(conn->streams[last]); last--)
		bnet_drain_socket(bnet_conn_drop_stream(conn, last), true);
	bnet_conn_disown(conn);
}

static void add_stream(struct bnet_path *path, const struct bnet_estimator_step *step, enum bnet_work work)
{
	const bool contended = bnet_now_ms() < bnet_engine.contended_until_ms, lone = path->scaler.level == 1;

	bnet_tally_add_stream(&path->of[work], step, work, lone, contended);
	if (step->rtt_us > path->sample.rtt_us)
		path->sample.rtt_us = step->rtt_us;
}

static uint64_t most_gap(const struct bnet_reading *reading)
{
	uint64_t gap = (uint64_t)reading->rtt_us * MOST_GAP_RTTS;

	return gap > MOST_GAP_US ? gap : MOST_GAP_US;
}

/* Rested: the connection was idle when its streams were last due to be read. */
static void sample_conn(struct bnet_conn *conn, uint64_t now_us, bool rested)
{
	enum bnet_work work = bnet_conn_has_work(conn) ? BNET_WORK_BULK : BNET_WORK_SMALL;
	bool counts = false;
	int active = bnet_conn_active(conn);
	uint64_t acked = 0;

	for (int i = 0; i < active; i++) {
		struct bnet_stream *stream = conn->streams[i];
		struct bnet_estimator_step step;
		struct bnet_reading reading;

		if (!bnet_estimator_read(stream->fd, &reading))
			continue;
		step = bnet_estimator_update(&stream->estimator, &reading, now_us, rested);
		fit(conn, stream);
		if (step.elapsed_us == 0 || step.elapsed_us > most_gap(&reading))
			continue;
		acked += step.acked;
		if (step.paused)
			continue;
		counts = true;
		conn->path->sample.elapsed_us = step.elapsed_us;
		add_stream(conn->path, &step, work);
	}
	if (counts)
		conn->path->sample.acked += acked;
	conn->path->sample.opening |= conn->setup.connecting > 0;
	/* Not of an idle connection: its receiver is idle as well and would not see their end. */
	narrow(conn);
	/* Streams that could not be opened, or were closed, are tried again when more are wanted. */
	if (conn->setup.connecting == 0)
		conn->setup.wanted = conn->nstreams;
}

static void judge(struct bnet_path *path, uint64_t now_us)
{
	struct bnet_scaler_sample *sample = &path->sample;
	int before = path->scaler.level;
	char address[BNET_ADDRESS_TEXT];

	sample->now_us = now_us;
	bnet_scaler_conclude(sample, path->of, path->scaler.level == 1);
	if (!path->due || path->of[sample->work].count == 0 || !bnet_scaler_step(&path->scaler, sample))
		return;
	bnet_info(NCCL_NET, "NET/BaguaNet: %d stream%s per connection from %s to %s, %d before: %llu MB/s then",
		  path->scaler.level, path->scaler.level == 1 ? "" : "s", path->dev->name,
		  bnet_address_text(&path->addr, address), before, (unsigned long long)path->scaler.base / 1000000);
	bnet_path_widen(path);
}

/* Frees a receiver's streams that the peer has closed. */
static void reap(struct bnet_conn *conn)
{
	if (!bnet_conn_try_own(conn))
		return;
	atomic_store_explicit(&conn->reap, false, memory_order_relaxed);
	for (int i = conn->nstreams - 1; i > 0; i--)
		if (conn->streams[i]->in.state == BNET_INCOMING_ENDED)
			bnet_socket_close(bnet_conn_drop_stream(conn, i));
	bnet_conn_disown(conn);
}

/* A new sample, if the last one is a round trip ago. */
static void begin_sample(struct bnet_path *path, uint64_t now_us)
{
	uint64_t rtt = path->sample.rtt_us < MOST_SAMPLE_US ? path->sample.rtt_us : MOST_SAMPLE_US;

	path->due = now_us - path->sampled_us >= rtt;
	if (!path->due)
		return;
	path->rested = bnet_engine.dozed_us > path->sampled_us;
	path->sampled_us = now_us;
	memset(&path->sample, 0, sizeof(path->sample));
	memset(path->of, 0, sizeof(path->of));
}

void bnet_paths_sample(uint64_t now_us)
{
	bnet_list_each(node, &bnet_engine.paths)
		begin_sample(bnet_entry(node, struct bnet_path, node), now_us);
	bnet_list_each(node, &bnet_engine.conns) {
		struct bnet_conn *conn = bnet_entry(node, struct bnet_conn, node);
		uint32_t passes = atomic_load_explicit(&conn->passes, memory_order_relaxed);

		if (atomic_load_explicit(&conn->reap, memory_order_relaxed))
			reap(conn);
		if (!conn->path || !conn->path->due || !conn->setup.ready)
			continue;
		/* A job computes for a while and then has much to send. The sample in which that begins does not tell
		 * how busy a stream is. */
		if (passes != conn->passes_sampled)
			sample_conn(conn, now_us, conn->rested || conn->path->rested);
		conn->rested = passes == conn->passes_sampled && !bnet_conn_has_work(conn);
		conn->passes_sampled = passes;
	}
	bnet_list_each(node, &bnet_engine.paths)
		judge(bnet_entry(node, struct bnet_path, node), now_us);
}
