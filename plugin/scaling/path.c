/* SPDX-License-Identifier: MIT
 *
 * Reading streams and opening more; see path.h. The control thread, or under the engine's lock.
 */
#include "scaling/path.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/counters.h"
#include "engine/engine.h"
#include "base/log.h"
#include "base/socket.h"

/* What lies further apart was no steady work. */
#define MOST_GAP_US 100000
#define MOST_GAP_RTTS 4
/* A sample that is shorter than a round trip sees bursts. Beyond this it is taken nevertheless. */
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
		bnet_scaler_init(&path->demand, least < most ? least : most, most);
		bnet_list_add(&bnet_engine.paths, &path->node);
	}
	path->users++;
	conn->path = path;
	return 0;
}

void bnet_path_leave(struct bnet_conn *conn)
{
	struct bnet_path *path = conn->path;

	conn->path = NULL;
	if (!path || --path->users)
		return;
	bnet_list_remove(&path->node);
	free(path);
}

/* ---- send buffers ---- */

static void fit(struct bnet_conn *conn, struct bnet_stream *stream)
{
	uint64_t rate = stream->flow.peak;
	int64_t want;

	if (conn->config->sndbuf)
		return;
	/* Before anything was measured the link's nominal speed stands in. */
	if (rate == 0)
		rate = (uint64_t)conn->dev->speed_mbps * 125000;
	want = bnet_sndbuf_for_path(stream->flow.last.min_rtt_us, rate,
				    bnet_now_ms() < bnet_engine.contended_until_ms);
	if (want == stream->flow.sndbuf)
		return;
	stream->flow.sndbuf = want;
	bnet_socket_set_sndbuf(stream->fd, want);
}

void bnet_path_stream_joined(struct bnet_conn *conn, struct bnet_stream *stream)
{
	struct bnet_reading reading;

	if (!bnet_estimator_read(stream->fd, &reading))
		return;
	bnet_estimator_update(&stream->flow, &reading, bnet_now_us(), false);
	fit(conn, stream);
}

/* ---- how many streams ---- */

void bnet_path_allow(struct bnet_conn *conn, int most)
{
	struct bnet_scaler *demand = &conn->path->demand;

	conn->setup.most = most < 1 ? 1 : most;
	if (demand->most > conn->setup.most)
		demand->most = conn->setup.most;
	if (demand->least > demand->most)
		demand->least = demand->most;
	if (demand->level > demand->most)
		bnet_scaler_set(demand, demand->most);
}

static void widen(struct bnet_conn *conn)
{
	int level = conn->path->demand.level;

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

void bnet_path_spread(struct bnet_conn *conn)
{
	struct bnet_scaler *demand = &conn->path->demand;
	int least = bnet_candidate_min_streams(conn);

	if (least > demand->most)
		least = demand->most;
	if (least <= demand->least)
		return;
	demand->least = least;
	if (demand->level < least)
		bnet_scaler_set(demand, least);
}

/* Streams that are not used any more are closed: the next ones to be tried get other ports, and with luck another path.
 * Not before the peer has what they carry: it may read it much later, and the kernel forgets a closed socket whose peer
 * makes it wait. */
static bool is_idle(const struct bnet_stream *stream)
{
	return !stream->out_request && !bnet_zerocopy_pending(&stream->zero) &&
	       (stream->hangup || bnet_socket_all_acknowledged(stream->fd));
}

static void narrow(struct bnet_conn *conn)
{
	int level = atomic_load_explicit(&conn->level, memory_order_relaxed);

	if (conn->nstreams <= level || conn->setup.dialing || !bnet_conn_try_own(conn))
		return;
	for (int last = conn->nstreams - 1; last >= level && is_idle(conn->streams[last]); last--)
		bnet_drain_socket(bnet_conn_drop_stream(conn, last), true);
	bnet_conn_disown(conn);
}

static void add_flow(struct bnet_path *path, const struct bnet_reading *reading, const struct bnet_estimator_step *step,
		     bool waiting)
{
	/* Contended: a late processor may be what makes round trips longer. */
	const bool contended = bnet_now_ms() < bnet_engine.contended_until_ms, lone = path->demand.level == 1;
	const bool busy = step->busy || (step->often_busy && lone && !contended);

	path->of[waiting].flows++;
	/* Where nothing waits behind what the kernel took, its evenness says nothing, and a round trip it takes anyway. */
	path->of[waiting].limited += waiting ? step->limited : busy && step->queued;
	path->of[waiting].queued += step->queued;
	if (reading->rtt_us > path->sample.rtt_us)
		path->sample.rtt_us = reading->rtt_us;
}

static uint64_t most_gap(const struct bnet_reading *reading)
{
	uint64_t gap = (uint64_t)reading->rtt_us * MOST_GAP_RTTS;

	return gap > MOST_GAP_US ? gap : MOST_GAP_US;
}

/* Rested: there was nothing to do when the streams should have been read before this. */
static void sample_conn(struct bnet_conn *conn, uint64_t now_us, bool rested)
{
	bool waiting = bnet_conn_has_work(conn), counts = false;
	int active = bnet_conn_active(conn);
	uint64_t acked = 0;

	for (int i = 0; i < active; i++) {
		struct bnet_stream *stream = conn->streams[i];
		struct bnet_estimator_step step;
		struct bnet_reading reading;

		if (!bnet_estimator_read(stream->fd, &reading))
			continue;
		step = bnet_estimator_update(&stream->flow, &reading, now_us, rested);
		fit(conn, stream);
		if (step.elapsed_us == 0 || step.elapsed_us > most_gap(&reading))
			continue;
		acked += step.acked;
		if (step.paused)
			continue;
		counts = true;
		conn->path->sample.elapsed_us = step.elapsed_us;
		add_flow(conn->path, &reading, &step, waiting);
	}
	if (counts)
		conn->path->sample.acked += acked;
	conn->path->sample.opening |= conn->setup.dialing > 0;
	/* Not of a connection at rest: its receiver, which is at rest as well, would not see their end. */
	narrow(conn);
	/* What could not be opened, or was closed, is tried again when more are wanted. */
	if (conn->setup.dialing == 0)
		conn->setup.wanted = conn->nstreams;
}

static void judge(struct bnet_path *path, uint64_t now_us)
{
	struct bnet_scaler_sample *sample = &path->sample;
	int before = path->demand.level;
	uint32_t flows;
	char address[BNET_ADDRESS_TEXT];

	sample->now_us = now_us;
	/* Who has little to say does not outvote who has more than the streams take. */
	sample->waiting = path->of[1].flows > 0;
	flows = path->of[sample->waiting].flows;
	/* A lone stream has to be sure; of several, flows that share a bottleneck differ. */
	sample->limited = path->of[sample->waiting].limited * 4 >= flows * (path->demand.level == 1 ? 3 : 1);
	sample->queued = path->of[sample->waiting].queued * 2 >= flows;
	if (!path->due || flows == 0 || !bnet_scaler_step(&path->demand, sample))
		return;
	bnet_info(NCCL_NET, "NET/BaguaNet: %d stream%s per connection from %s to %s, %d before: %llu MB/s then",
		  path->demand.level, path->demand.level == 1 ? "" : "s", path->dev->name,
		  bnet_address_text(&path->addr, address), before, (unsigned long long)path->demand.base / 1000000);
	bnet_path_widen(path);
}

/* A receiver's streams that the peer has closed. */
static void reap(struct bnet_conn *conn)
{
	if (!bnet_conn_try_own(conn))
		return;
	atomic_store_explicit(&conn->reap, false, memory_order_relaxed);
	for (int i = conn->nstreams - 1; i > 0; i--)
		if (conn->streams[i]->ended)
			bnet_socket_close(bnet_conn_drop_stream(conn, i));
	bnet_conn_disown(conn);
}

/* A new sample, where the last one is a round trip ago. */
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
		/* A job computes for a while and then has much to send. How busy a stream is in that, the sample in
		 * which it begins does not tell. */
		if (passes != conn->passes_sampled)
			sample_conn(conn, now_us, conn->rested || conn->path->rested);
		conn->rested = passes == conn->passes_sampled && !bnet_conn_has_work(conn);
		conn->passes_sampled = passes;
	}
	bnet_list_each(node, &bnet_engine.paths)
		judge(bnet_entry(node, struct bnet_path, node), now_us);
}
