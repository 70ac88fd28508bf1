/* SPDX-License-Identifier: MIT
 *
 * See path_sample.h.
 */
#include "scaling/path_sample.h"

#include <string.h>

#include "common/clock.h"
#include "base/log.h"
#include "engine/engine.h"
#include "handshake/meter.h"
#include "scaling/send_buffer.h"

/* Readings further apart than this are no steady work. */
#define MAX_GAP_US 100000
#define MAX_GAP_RTTS 4
#define MAX_GAP_SAMPLES 2
/* A sample shorter than a round trip would see bursts, but no sample takes longer than this. */
#define MAX_SAMPLE_US 200000
/* ---- what is read ---- */

/* rate: of the stream, bytes/s. */
static void add_stream(struct bnet_path *path, const struct bnet_estimator_step *step, uint64_t rate,
		       enum bnet_work work)
{
	const bool contended = bnet_now_ms() < bnet_engine.contended_until_ms, lone = path->scaler.level == 1;

	bnet_tally_add_stream(&path->of[work], step, work, lone, contended);
	path->streams++;
	path->busy += (uint32_t)step->busy;
	path->rates += rate;
	if (step->rtt_us > path->sample.rtt_us)
		path->sample.rtt_us = step->rtt_us;
	if (step->rtt_us > step->min_rtt_us)
		path->queues_us += step->rtt_us - step->min_rtt_us;
	if (step->min_rtt_us <= BNET_MAX_RTT_US &&
	    (step->min_rtt_us < path->sample.min_rtt_us || path->sample.min_rtt_us == 0))
		path->sample.min_rtt_us = step->min_rtt_us;
}

static uint64_t most_gap(const struct bnet_path *path, const struct bnet_reading *reading)
{
	uint64_t gap = (uint64_t)reading->rtt_us * MAX_GAP_RTTS, samples = path->interval_us * MAX_GAP_SAMPLES;

	gap = gap > samples ? gap : samples;
	return gap > MAX_GAP_US ? gap : MAX_GAP_US;
}

static void count_acked(struct bnet_conn *conn, uint64_t acked)
{
	struct bnet_path *path = conn->path;

	path->sample.acked += acked;
	if (acked <= path->most_acked)
		return;
	path->most_acked = acked;
	path->asker = conn->id;
}

void bnet_path_sample_conn(struct bnet_conn *conn, uint64_t now_us, bool was_idle)
{
	enum bnet_work work = bnet_conn_has_work(conn) ? BNET_WORK_BULK : BNET_WORK_SMALL;
	/* What the quota keeps below the others says nothing of the levels that they try. */
	const bool judged = bnet_path_most(conn) >= conn->path->scaler.most;
	bool counts = false;
	int active = bnet_conn_active(conn);
	uint64_t acked = 0;

	if (atomic_load(&conn->error))
		return;
	bnet_send_buffer_weigh(conn);
	for (int i = 0; i < active; i++) {
		struct bnet_stream *stream = conn->streams[i];
		struct bnet_estimator_step step;
		struct bnet_reading reading;

		if (!bnet_estimator_read(stream->fd, &reading))
			continue;
		step = bnet_estimator_update(&stream->estimator, &reading, now_us, was_idle);
		bnet_send_buffer_fit(conn, stream);
		if (!judged || step.elapsed_us == 0 || step.elapsed_us > most_gap(conn->path, &reading))
			continue;
		acked += step.acked;
		if (step.paused)
			continue;
		counts = true;
		conn->path->sample.elapsed_us = step.elapsed_us;
		add_stream(conn->path, &step, atomic_load_explicit(&stream->estimator.rate, memory_order_relaxed),
			   work);
	}
	if (counts)
		count_acked(conn, acked);
	conn->path->sample.opening |= bnet_conn_is_opening(conn);
	bnet_path_fit(conn, now_us);
}

/* ---- what the network carries ---- */

static void take_answer(struct bnet_path *path, const struct bnet_answer *answer)
{
	struct bnet_window_report report = {
		.mark = {.connection = answer->connection, .moved_us = answer->moved_us, .received = answer->received},
		.rtt_us = answer->rtt_us,
	};

	bnet_scaler_tell(&path->scaler, &report);
}

void bnet_path_answered(const struct bnet_answer *answer)
{
	answer->path->asking = false;
	take_answer(answer->path, answer);
}

/* What this end's device has sent since the last sample, while a window is compared with another one. */
static void look_at_device(struct bnet_path *path, uint64_t now_us)
{
	const uint64_t before = path->device_sent, at_us = path->device_at_us;
	struct bnet_meter_look look;

	path->device_at_us = 0;
	if (!path->scaler.window.asks && !path->scaler.window.marked)
		return;
	look = bnet_meter_look(path->dev, now_us);
	path->device_sent = look.traffic.sent;
	path->device_at_us = look.traffic.sent ? look.at_us : 0;
	if (!at_us || path->device_sent < before)
		return;
	path->sample.device_sent = path->device_sent - before;
	path->sample.device_us = look.at_us - at_us;
}

static const struct bnet_conn *find_in(const struct bnet_node *conns, uint64_t id)
{
	bnet_list_each(node, conns) {
		const struct bnet_conn *conn = bnet_entry(node, struct bnet_conn, of_path);

		if (conn->id == id && conn->setup.ready && !atomic_load(&conn->error))
			return conn;
	}
	return NULL;
}

/* Two answers about one connection give a rate, though it may be idle by now. */
static const struct bnet_conn *find_asker(const struct bnet_path *path)
{
	const uint64_t last = path->scaler.window.marked ? path->scaler.window.from.connection : 0;
	const uint64_t id = last ? last : path->asker;
	const struct bnet_conn *conn = find_in(&path->moving, id);

	return conn ? conn : find_in(&path->idle, id);
}

/* Asks the peer what the scaler wants to know. */
static void ask(struct bnet_path *path)
{
	const struct bnet_conn *conn = find_asker(path);
	const struct bnet_answer nothing = {.path = path};

	path->asking = conn && bnet_question_ask(conn, path, path->sample.rtt_us, path->sample.min_rtt_us) == 0;
	if (!path->asking)
		take_answer(path, &nothing);
}

/* False: no stream of the path has moved steadily. */
static bool conclude(struct bnet_path *path, uint64_t now_us)
{
	struct bnet_sample *sample = &path->sample;

	sample->now_us = now_us;
	look_at_device(path, now_us);
	bnet_scaler_conclude(sample, path->of, path->scaler.level == 1);
	if (path->of[sample->work].count == 0)
		return false;
	sample->queue_us = (uint32_t)(path->queues_us / path->streams);
	sample->busy = (uint32_t)(path->busy / path->streams);
	sample->minute = bnet_wall_us() / 60000000;
	path->min_rtt_us = sample->min_rtt_us;
	if (sample->limited) {
		path->limited = true;
		path->learned.rate = path->rates / path->streams;
	}
	return true;
}

static bool step(struct bnet_path *path)
{
	const bool changed = bnet_scaler_step(&path->scaler, &path->sample);

	if (path->scaler.window.asks && !path->asking)
		ask(path);
	return changed;
}

/* A level that was kept, not each that is tried: a job of weeks has a hundred thousand trials. */
static void tell_level(struct bnet_path *path)
{
	const int level = path->scaler.level, before = path->told;
	char address[BNET_ADDRESS_TEXT];

	if (path->scaler.state != BNET_SCALER_HOLDING || level == before)
		return;
	path->told = level;
	bnet_path_keep(path);
	bnet_info(NCCL_NET, "NET/BaguaNet: %d stream%s per connection from %s to %s, %d before: %llu MB/s then", level,
		  level == 1 ? "" : "s", path->dev->name, bnet_address_text(&path->addr, address), before,
		  (unsigned long long)path->scaler.base.own / 1000000);
}

static void trace_level(const struct bnet_path *path, int before)
{
	char address[BNET_ADDRESS_TEXT];

	bnet_trace("NET/BaguaNet: a trial, or its end: %d streams per connection from %s to %s, %d before",
		   path->scaler.level, path->dev->name, bnet_address_text(&path->addr, address), before);
}

void bnet_path_judge(struct bnet_path *path, uint64_t now_us)
{
	const int before = path->scaler.level;
	bool changed;

	if (!conclude(path, now_us))
		return;
	changed = step(path);
	if (path->told == 0)
		path->told = before;
	tell_level(path);
	if (!changed)
		return;
	trace_level(path, before);
	bnet_path_widen(path);
}

bool bnet_path_begin_sample(struct bnet_path *path, uint64_t now_us)
{
	uint64_t rtt = path->sample.rtt_us < MAX_SAMPLE_US ? path->sample.rtt_us : MAX_SAMPLE_US;

	if (now_us - path->sampled_us < rtt)
		return false;
	path->was_idle = bnet_engine.idle_until_us > path->sampled_us;
	path->interval_us = path->sampled_us ? now_us - path->sampled_us : 0;
	path->sampled_us = now_us;
	memset(&path->sample, 0, sizeof(path->sample));
	memset(path->of, 0, sizeof(path->of));
	path->queues_us = path->busy = path->rates = path->streams = path->most_acked = 0;
	/* A part of the time since the last sample was spent with fewer streams. */
	path->sample.opening = path->opened;
	path->opened = false;
	return true;
}
