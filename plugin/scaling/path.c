/* SPDX-License-Identifier: MIT
 *
 * See path.h.
 */
#include "scaling/path.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "base/log.h"
#include "base/socket.h"
#include "engine/engine.h"
#include "handshake/close.h"
#include "handshake/connector.h"
#include "scaling/send_buffer.h"

/* Streams opened at a time, each in some 40 µs: those who need the engine's lock wait meanwhile. */
#define OPENED 32
#define WARN_MS 60000

/* A connection whose streams could not be opened tries again so much later, then after twice that, and so on: while it
 * tries, nothing is learnt of its path. */
#define CATCH_UP_US 1000000
#define MAX_CATCH_UP_US 64000000

/* Within a host nothing is worth remembering. */
static void recall(struct bnet_path *path, bool local)
{
	char address[BNET_ADDRESS_TEXT];

	path->local = local;
	if (local || !bnet_memory_recall(path->dev, &path->addr, &path->learned))
		return;
	bnet_scaler_resume(&path->scaler, path->learned.streams);
	bnet_info(NCCL_NET,
		  "NET/BaguaNet: %d stream%s per connection from %s to %s, as earlier (BAGUA_NET_PATH_MEMORY)",
		  path->scaler.level, path->scaler.level == 1 ? "" : "s", path->dev->name,
		  bnet_address_text(&path->addr, address));
}

/* The level is the quota's, the peer's or a variable's, and not what the path has learned. */
static bool is_bound(const struct bnet_scaler *scaler, int level)
{
	return (level == scaler->most && scaler->most < BNET_MAX_STREAMS) ||
	       (level == scaler->least && scaler->least > 1);
}

/* The level that is held, not one on trial. What the network has not limited, or a minute of little work has lowered,
 * says nothing of it: another process knows better. */
void bnet_path_keep(struct bnet_path *path)
{
	const struct bnet_scaler *scaler = &path->scaler;
	const int level = scaler->state == BNET_SCALER_HOLDING ? scaler->level : scaler->before;

	if (path->local || !path->told || !path->limited || scaler->idle || is_bound(scaler, level))
		return;
	path->learned.streams = level;
	bnet_memory_keep(path->dev, &path->addr, &path->learned);
}

static struct bnet_path *find_path(const struct bnet_device *dev, const struct sockaddr_storage *addr)
{
	bnet_list_each(node, &bnet_engine.paths) {
		struct bnet_path *path = bnet_entry(node, struct bnet_path, node);

		if (path->dev == dev &&
		    bnet_same_host((const struct sockaddr *)&path->addr, (const struct sockaddr *)addr))
			return path;
	}
	return NULL;
}

int bnet_path_join(struct bnet_conn *conn)
{
	const struct sockaddr_storage *addr = &conn->setup.peers[0];
	struct bnet_path *path = find_path(conn->dev, addr);
	int most = bnet_engine.config.nstreams ? (int)bnet_engine.config.nstreams : BNET_MAX_STREAMS;
	int least = (int)bnet_engine.config.min_nstreams;

	if (!path) {
		path = calloc(1, sizeof(*path));
		if (!path)
			return -ENOMEM;
		bnet_list_init(&path->idle);
		bnet_list_init(&path->moving);
		path->dev = conn->dev;
		path->addr = *addr;
		path->most = most;
		bnet_scaler_init(&path->scaler, least < most ? least : most, most, bnet_random());
		recall(path, conn->setup.local);
		bnet_list_add(&bnet_engine.paths, &path->node);
	}
	bnet_list_add(&path->idle, &conn->of_path);
	conn->path = path;
	conn->setup.failed_pairs = &path->failed_pairs;
	return 0;
}

static void free_unused(struct bnet_path *path)
{
	if (path->pinned || !bnet_list_empty(&path->idle) || !bnet_list_empty(&path->moving))
		return;
	bnet_questions_cancel(path, NULL);
	bnet_list_remove(&path->node);
	bnet_path_keep(path);
	free(path);
}

void bnet_path_leave(struct bnet_conn *conn)
{
	struct bnet_path *path = conn->path;

	conn->path = NULL;
	conn->setup.failed_pairs = NULL;
	bnet_list_remove(&conn->of_path);
	bnet_list_remove(&conn->setup.missing);
	if (path)
		free_unused(path);
}

void bnet_path_unpin(struct bnet_path *path)
{
	path->pinned = false;
	free_unused(path);
}

void bnet_paths_forget(void)
{
	bnet_list_each(node, &bnet_engine.paths) {
		bnet_entry(node, struct bnet_path, node)->told = 0; /* what they have learned is the parent's to keep */
		bnet_list_remove(node);
	}
}

void bnet_path_stream_joined(struct bnet_conn *conn, struct bnet_stream *stream)
{
	struct bnet_reading reading;

	conn->setup.catch_up_after_us = 0;
	stream->bbr = bnet_socket_uses_bbr(stream->fd);
	conn->path->bbr |= stream->bbr;
	if (!bnet_estimator_read(stream->fd, &reading))
		return;
	if (!conn->path->told && conn->path->learned.rate)
		bnet_estimator_begin(&stream->estimator, conn->path->learned.rate);
	bnet_estimator_update(&stream->estimator, &reading, bnet_now_us(), false);
	bnet_send_buffer_fit(conn, stream);
}

/* ---- how many streams ---- */

static void limit(struct bnet_scaler *scaler, int most)
{
	bnet_scaler_bound(scaler, scaler->least < most ? scaler->least : most, most);
}

/* The peer takes `most` streams of this connection, and so all connections of the path are limited. */
static void allow(struct bnet_conn *conn, int most)
{
	struct bnet_path *path = conn->path;

	conn->setup.most = most < 1 ? 1 : most;
	if (path->most > conn->setup.most)
		path->most = conn->setup.most;
	if (path->scaler.most > path->most)
		limit(&path->scaler, path->most);
}

void bnet_path_limit(struct bnet_path *path, int quota)
{
	const int before = path->scaler.level, least = path->scaler.least;
	int most = quota < path->most ? quota : path->most;

	if (most < least)
		most = least;
	if (most == path->scaler.most)
		return;
	limit(&path->scaler, most);
	if (path->scaler.level == before)
		return;
	bnet_info(NCCL_NET,
		  "NET/BaguaNet: %d stream%s per connection from %s, %d before: many connections share a quota",
		  path->scaler.level, path->scaler.level == 1 ? "" : "s", path->dev->name, before);
	if (path->told)
		path->told = path->scaler.level;
	bnet_path_widen(path);
}

/* Every NIC of both ends needs a stream. */
static void spread(struct bnet_conn *conn)
{
	struct bnet_scaler *scaler = &conn->path->scaler;
	int least = bnet_candidate_min_streams(conn);

	if (least > scaler->most)
		least = scaler->most;
	if (least > scaler->least)
		bnet_scaler_bound(scaler, least, scaler->most);
}

int bnet_path_most(const struct bnet_conn *conn)
{
	const int least = conn->path->scaler.least, share = conn->setup.share > least ? conn->setup.share : least;

	return conn->setup.share && share < conn->setup.most ? share : conn->setup.most;
}

static int level_of(const struct bnet_conn *conn)
{
	const int level = conn->path->scaler.level, most = bnet_path_most(conn);

	return level < most ? level : most;
}

int bnet_path_missing(const struct bnet_conn *conn)
{
	return level_of(conn) - conn->setup.wanted;
}

static int wanted_streams(const struct bnet_conn *conn)
{
	return level_of(conn) < conn->setup.enough ? level_of(conn) : conn->setup.enough;
}

/* Streams above the level are inactive; missing ones, up to `enough`, are opened round-robin with those of other
 * connections. */
static void widen(struct bnet_conn *conn, int enough)
{
	conn->setup.enough = enough;
	atomic_store_explicit(&conn->level, level_of(conn), memory_order_relaxed);
	if (conn->setup.wanted < wanted_streams(conn) && bnet_list_empty(&conn->setup.missing))
		bnet_list_add(&bnet_engine.missing, &conn->setup.missing);
}

static void widen_all(struct bnet_node *conns, int enough)
{
	bnet_list_each(node, conns) {
		struct bnet_conn *conn = bnet_entry(node, struct bnet_conn, of_path);

		if (conn->setup.ready)
			widen(conn, enough);
	}
}

void bnet_path_share(struct bnet_conn *conn, int share)
{
	conn->setup.share = share;
	if (conn->setup.ready && level_of(conn) != atomic_load_explicit(&conn->level, memory_order_relaxed))
		widen(conn, conn->setup.enough);
}

void bnet_path_widen(struct bnet_path *path)
{
	widen_all(&path->moving, path->scaler.level);
	widen_all(&path->idle, path->scaler.least);
}

static void out_of_descriptors(struct bnet_conn *conn)
{
	uint64_t now = bnet_now_ms();

	if (now >= bnet_engine.descriptors_warn_at_ms) {
		bnet_warn_visibly("NET/BaguaNet: %d instead of %d streams to %s: half of the limit of open files is used. "
				  "Raise it (ulimit -n). Other connections may have fewer as well",
				  conn->setup.wanted, wanted_streams(conn), conn->peer);
		bnet_engine.descriptors_warn_at_ms = now + WARN_MS;
	}
	conn->setup.enough = conn->setup.wanted; /* until some are free: catch_up() */
	conn->setup.catch_up_after_us = 0;       /* nothing was tried */
}

bool bnet_paths_open(void)
{
	for (int i = 0; i < OPENED && !bnet_list_empty(&bnet_engine.missing); i++) {
		struct bnet_conn *conn = bnet_entry(bnet_engine.missing.next, struct bnet_conn, setup.missing);

		bnet_list_remove(&conn->setup.missing);
		if (conn->setup.wanted >= wanted_streams(conn) || atomic_load(&conn->error))
			continue;
		if (!bnet_descriptors_left()) {
			out_of_descriptors(conn);
			continue;
		}
		bnet_connector_start(conn, conn->setup.wanted, conn->setup.wanted >= conn->path->scaler.least);
		conn->setup.wanted++;
		conn->path->opened = true;
		bnet_list_add(&bnet_engine.missing, &conn->setup.missing);
	}
	return !bnet_list_empty(&bnet_engine.missing);
}

void bnet_path_ready(struct bnet_conn *conn, int most)
{
	int before = conn->path->scaler.level;

	allow(conn, most);
	spread(conn);
	if (conn->path->scaler.level == before)
		widen(conn, conn->path->scaler.least);
	else
		bnet_path_widen(conn->path);
}

int bnet_path_recalled(const struct bnet_conn *conn)
{
	const struct bnet_path *path = conn->path;

	return path->told || !path->learned.streams ? 0 : path->scaler.level - path->scaler.least;
}

void bnet_path_open_recalled(struct bnet_conn *conn)
{
	widen(conn, conn->path->scaler.level);
}

/* The peer must have acknowledged a stream's bytes before the stream is closed: it may read them much later, and the
 * kernel forgets a closed socket whose peer keeps its window shut. A stream that has ended without that is not idle but
 * lost (control/undelivered.h). */
static bool is_idle(const struct bnet_stream *stream)
{
	return !stream->broken && !bnet_socket_is_closed(stream->fd) && !stream->out.active && !stream->replaces &&
	       !stream->ledger.held && !bnet_zerocopy_pending(&stream->zerocopy) &&
	       bnet_delivery_missing(&stream->delivery, stream->fd) == 0;
}

/* Streams that are no longer used are closed: the next ones that are tried get other ports, and with luck another way
 * through the network. While fewer are on trial the others stay open, since others in their place could be slower. */
static void narrow(struct bnet_conn *conn)
{
	const int most = bnet_path_most(conn), of_path = bnet_scaler_held(&conn->path->scaler);
	const int held = of_path < most ? of_path : most;

	if (conn->nstreams <= held || bnet_conn_is_opening(conn) || !bnet_conn_try_own(conn))
		return;
	/* Streams that are broken go first (control/active.c): those above the level may be the only ones that are
	 * not. */
	for (int last = conn->nstreams - 1; last >= held && !conn->reap && is_idle(conn->streams[last]); last--)
		bnet_drain_socket(bnet_conn_drop_stream(conn, last), true);
	bnet_conn_disown(conn);
}

static uint64_t doubled(uint64_t after_us)
{
	if (after_us == 0)
		return CATCH_UP_US;
	return after_us < MAX_CATCH_UP_US ? after_us * 2 : after_us;
}

/* A connection that was idle when the level rose gets its streams once it moves; not during a trial, whose window would
 * begin again. */
static void catch_up(struct bnet_conn *conn, uint64_t now_us)
{
	const struct bnet_scaler *scaler = &conn->path->scaler;
	struct bnet_setup *setup = &conn->setup;
	const uint64_t after_us = setup->catch_up_after_us ? setup->catch_up_after_us : CATCH_UP_US;

	if (scaler->state != BNET_SCALER_HOLDING || bnet_path_missing(conn) <= 0 || conn->company.waits ||
	    now_us - setup->caught_up_us < after_us)
		return;
	setup->caught_up_us = now_us;
	setup->catch_up_after_us = doubled(setup->catch_up_after_us);
	widen(conn, scaler->level);
}

/* Not of an idle connection: its receiver is idle as well and would not see the end of streams. */
void bnet_path_fit(struct bnet_conn *conn, uint64_t now_us)
{
	narrow(conn);
	/* Streams that could not be opened, or were closed, are tried again when more are wanted. */
	if (!bnet_conn_is_opening(conn))
		conn->setup.wanted = conn->nstreams;
	catch_up(conn, now_us);
}
