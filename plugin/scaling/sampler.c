/* SPDX-License-Identifier: MIT
 *
 * See sampler.h.
 */
#include "scaling/sampler.h"

#include "engine/engine.h"
#include "scaling/quota.h"
#include "scaling/path.h"
#include "scaling/path_sample.h"
#include "transport/tx.h"

/* A reading takes more than a µs, so the more streams move, the less often each of them is read: of all streams
 * together so many each time, which is every 20 ms, about a hundredth of a processor. */
#define READINGS 128
/* Streams that are told to have run dry, in a tick of 5 ms: each takes a µs, so these take a fortieth of a
 * processor. */
#define MAX_NOTES 128
/* A pass takes some microseconds, and an owner that polls makes one after the other. */
#define OWN_TRIES 32
/* Readings in a row; after that whoever waits for the engine's lock gets it. */
#define IN_A_ROW 256

/* ---- connections that move ---- */

void bnet_sampler_begin(struct bnet_conn *conn)
{
	if (!conn->path)
		return;
	bnet_list_remove(&conn->of_path);
	bnet_list_add(&conn->path->moving, &conn->of_path);
}

static void end(struct bnet_conn *conn)
{
	bnet_quota_unused(conn);
	conn->setup.enough = conn->path->scaler.least; /* it gets more when it moves */
	bnet_list_remove(&conn->of_path);
	bnet_list_add(&conn->path->idle, &conn->of_path);
	if (bnet_list_empty(&conn->path->moving))
		conn->path->sampled_us = 0;
	bnet_worklist_remove(&bnet_engine.active, &conn->work);
	if (bnet_conn_is_workable(conn) || atomic_load(&conn->reap))
		bnet_engine_posted(&conn->work); /* after the last look; or a broken stream is still to be replaced */
}

/* Returns what it cost, in readings. */
static int read_conn(struct bnet_conn *conn, uint64_t now_us)
{
	uint32_t passes = atomic_load_explicit(&conn->passes, memory_order_relaxed);
	int readings = 0;

	/* A job computes for a while and then has much to send. The sample in which that begins does not tell how busy
	 * a stream is. */
	if (passes != conn->passes_sampled) {
		readings = bnet_conn_active(conn);
		bnet_quota_admit(conn, bnet_path_missing(conn));
		bnet_path_sample_conn(conn, now_us, conn->was_idle || conn->path->was_idle);
	}
	conn->was_idle = passes == conn->passes_sampled && !bnet_conn_is_workable(conn);
	conn->passes_sampled = passes;
	if (conn->was_idle)
		end(conn);
	return readings ? readings : 1;
}

/* ---- paths ---- */

/* The next connection of this sample, which counts as read from here on. NULL: all are read. */
static struct bnet_conn *next_conn(struct bnet_path *path)
{
	struct bnet_node *first = path->moving.next;
	struct bnet_conn *conn = bnet_entry(first, struct bnet_conn, of_path);

	if (first == &path->moving || conn->sample == path->samples)
		return NULL;
	conn->sample = path->samples;
	bnet_list_remove(first);
	bnet_list_add(&path->moving, first);
	return conn;
}

/* All of a path's streams, since their readings are added up. Returns their number. */
static int sample_path(struct bnet_path *path, uint64_t now_us)
{
	int readings = 0, in_a_row = 0;
	struct bnet_conn *conn;

	path->samples++;
	path->pinned = true;
	while ((conn = next_conn(path))) {
		int cost = read_conn(conn, now_us);

		readings += cost;
		in_a_row += cost;
		if (in_a_row < IN_A_ROW)
			continue;
		in_a_row = 0;
		bnet_engine_give_way();
	}
	bnet_path_judge(path, now_us);
	bnet_path_unpin(path);
	return readings;
}

/* The one that was sampled longest ago; NULL: none is due. */
static struct bnet_path *begin_next(uint64_t now_us)
{
	bnet_list_each(node, &bnet_engine.paths) {
		struct bnet_path *path = bnet_entry(node, struct bnet_path, node);

		if (path->sampled_us == now_us)
			return NULL; /* and so are all that follow */
		if (bnet_list_empty(&path->moving) || !bnet_path_begin_sample(path, now_us))
			continue;
		bnet_list_remove(node);
		bnet_list_add(&bnet_engine.paths, node);
		return path;
	}
	return NULL;
}

void bnet_sampler_read(uint64_t now_us)
{
	static int left; /* under the engine's lock; negative after a large path, which is sampled whole */
	struct bnet_path *path;

	bnet_quota_look(now_us);
	bnet_quota_tick(now_us);
	left = left < 0 ? left + READINGS : READINGS;
	while (left > 0 && (path = begin_next(now_us)))
		left -= sample_path(path, now_us);
}

/* ---- streams that have run dry ---- */

static bool is_far(const struct bnet_path *path)
{
	return path->bbr && path->min_rtt_us >= BNET_LONG_RTT_US && !bnet_list_empty(&path->moving);
}

bool bnet_sampler_any_far(void)
{
	bnet_list_each(node, &bnet_engine.paths)
		if (is_far(bnet_entry(node, struct bnet_path, node)))
			return true;
	return false;
}

/* Returns what it cost, in streams. A connection whose owner stays busy comes next time. */
static int note_dry(struct bnet_conn *conn)
{
	int cost = 1;

	if (!bnet_conn_try_own_for(conn, OWN_TRIES))
		return cost;
	cost += bnet_tx_note_dry(conn);
	bnet_conn_disown(conn);
	return cost;
}

/* The rest of the round over all that move on long paths, or as much of it as one time allows. */
void bnet_sampler_note_dry(void)
{
	static uint32_t round; /* under the engine's lock */
	int left = MAX_NOTES;

	bnet_list_each(node, &bnet_engine.paths) {
		struct bnet_path *path = bnet_entry(node, struct bnet_path, node);

		if (!is_far(path))
			continue;
		bnet_list_each(member, &path->moving) {
			struct bnet_conn *conn = bnet_entry(member, struct bnet_conn, of_path);

			if (conn->noted == round)
				continue;
			if (left <= 0)
				return;
			conn->noted = round;
			left -= note_dry(conn);
		}
	}
	round++;
}
