/* SPDX-License-Identifier: MIT
 *
 * The connections of a path share one scaler: limits of a new connection apply to the existing ones at once, as does
 * the quota's share. What a path does with its streams is in test_path_streams.c, and what it asks the peer in
 * test_path_marks.c.
 */
#include <errno.h>
#include <netinet/in.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "bagua_net.h"
#include "common/clock.h"
#include "base/socket.h"
#include "device/presence.h"
#include "engine/engine.h"
#include "oneself.h"
#include "scaling/path.h"
#include "scaling/path_sample.h"
#include "scaling/quota.h"
#include "scaling/sampler.h"

#define DEADLINE_S 250
#define MANY 6
#define FEW 2
#define OTHERS 15 /* processes */
#define ALL 8     /* connections of an all-to-all */
#define TURNS 100
#define TICK_US 20000

static struct bnet_client client;

/* Sets this process's maximum of streams for later connections, as if the peer were a process with that setting. */
static void limit_streams(int streams)
{
	bnet_engine_lock();
	bnet_engine.config.nstreams = streams;
	bnet_engine_unlock();
}

static void use_streams(int streams)
{
	bnet_engine_lock();
	bnet_list_each(node, &bnet_engine.paths) {
		struct bnet_path *path = bnet_entry(node, struct bnet_path, node);

		bnet_scaler_init(&path->scaler, streams, MANY, 1);
		bnet_path_widen(path);
	}
	bnet_engine_unlock();
}

/* Under the lock. */
static int level_now(const void *comm)
{
	return ((const struct bnet_conn *)comm)->level;
}

static int level_of(const void *comm)
{
	int level;

	bnet_engine_lock();
	level = level_now(comm);
	bnet_engine_unlock();
	return level;
}

/* The second connection's listener allows fewer streams than the first connection uses. */
static void a_lower_maximum_applies_to_all(void)
{
	struct oneself first, second;

	first = connect_to_oneself(&client);
	use_streams(MANY);
	check_int(level_of(first.send), MANY);
	limit_streams(FEW);
	second = connect_to_oneself(&client);
	check_int(level_of(second.send), FEW);
	check_int(level_of(first.send), FEW);
	close_to_oneself(&client, first);
	close_to_oneself(&client, second);
}

/* Sets the level of all paths, as a trial that was kept does. Under the lock: without it the scaler may change them at
 * once. */
static void set_levels(int streams)
{
	bnet_list_each(node, &bnet_engine.paths) {
		struct bnet_path *path = bnet_entry(node, struct bnet_path, node);

		bnet_scaler_init(&path->scaler, 1, MANY, 1);
		bnet_scaler_set(&path->scaler, streams);
		bnet_path_widen(path);
	}
}

static void keep_streams(int streams)
{
	bnet_engine_lock();
	set_levels(streams);
	bnet_engine_unlock();
}

/* Streams of a connection that nobody uses are not opened before somebody does. */
static void an_idle_connection_opens_no_streams(void)
{
	struct oneself ends;
	struct bnet_conn *conn;

	limit_streams(0);
	ends = connect_to_oneself(&client);
	conn = ends.send;
	bnet_engine_lock();
	set_levels(MANY);
	while (bnet_paths_open())
		;
	check_int(conn->setup.wanted, 1);
	check_int(conn->level, MANY);
	bnet_path_sample_conn(conn, bnet_now_us(), false); /* it has moved */
	while (bnet_paths_open())
		;
	check_int(conn->setup.wanted, MANY);
	bnet_engine_unlock();
	close_to_oneself(&client, ends);
}

/* Nor does one that has failed: a person would read of a connection that is still being made. */
static void a_connection_that_has_failed_opens_no_streams(void)
{
	struct oneself ends = connect_to_oneself(&client);
	struct bnet_conn *conn = ends.send;

	bnet_engine_lock();
	set_levels(MANY);
	bnet_path_sample_conn(conn, bnet_now_us(), false);
	check(!bnet_list_empty(&conn->setup.missing));
	bnet_conn_fail(conn, -ECONNRESET, "as told");
	check(!bnet_paths_open());
	check_int(conn->setup.wanted, 1);
	conn->setup.caught_up_us = 0;
	bnet_path_sample_conn(conn, bnet_now_us(), false);
	check(bnet_list_empty(&conn->setup.missing));
	bnet_engine_unlock();
	close_to_oneself(&client, ends);
}

/* Where a firewall lets no more through, a path would do nothing but try, and learn nothing meanwhile. */
static void tries_that_fail_become_rare(void)
{
	struct oneself ends = connect_to_oneself(&client);
	struct bnet_conn *conn = ends.send;
	uint64_t now_us = bnet_now_us();

	bnet_engine_lock();
	set_levels(MANY);
	for (uint64_t after_us = 1000000; after_us <= 64000000; after_us *= 2) {
		bnet_path_sample_conn(conn, now_us, false);
		check(!bnet_list_empty(&conn->setup.missing));
		bnet_list_remove(&conn->setup.missing); /* none could be opened */
		bnet_path_sample_conn(conn, now_us + after_us - 1, false);
		check(bnet_list_empty(&conn->setup.missing));
		now_us += after_us;
	}
	check(conn->setup.catch_up_after_us == 64000000);
	bnet_path_stream_joined(conn, conn->streams[0]);
	check(conn->setup.catch_up_after_us == 0);
	bnet_engine_unlock();
	close_to_oneself(&client, ends);
}

/* The quota's share bounds the level, not below the least number, and not above what both ends allow. */
static void a_share_bounds_the_level(void)
{
	struct oneself ends = connect_to_oneself(&client);
	struct bnet_conn *conn = ends.send;

	bnet_engine_lock();
	set_levels(MANY);
	bnet_path_limit(conn->path, FEW);
	check_int(conn->level, FEW);
	check_int(conn->path->scaler.level, FEW);
	bnet_path_limit(conn->path, 1000);
	check_int(conn->path->scaler.most, conn->path->most);
	check(conn->path->most >= MANY);
	conn->path->scaler.least = FEW;
	bnet_path_limit(conn->path, 1);
	check_int(conn->path->scaler.most, FEW);
	check_int(conn->path->scaler.least, FEW);
	bnet_engine_unlock();
	close_to_oneself(&client, ends);
}

/* As if the time had come. */
static void pass_quota_tick(void)
{
	static uint64_t later_us;

	bnet_quota_tick(bnet_now_us() + (later_us += 1000000));
}

/* The quota is divided among the processes of this host that use the device, whatever the launcher tells. Other tests'
 * processes may use it, too. */
static void the_quota_s_share_bounds_the_level(void)
{
	struct oneself ends = connect_to_oneself(&client);
	struct bnet_conn *conn = ends.send;
	struct bnet_scaler *scaler = &conn->path->scaler;
	const int told = bnet_engine.local_ranks;
	int others[OTHERS];

	bnet_engine_lock();
	set_levels(MANY);
	bnet_engine.local_ranks = BNET_QUOTA / FEW;
	pass_quota_tick();
	bnet_engine.local_ranks = told;
	check(scaler->most > BNET_QUOTA / (1 + OTHERS));
	check(bnet_presence_count(conn->dev) >= 1); /* this process */
	for (int i = 0; i < OTHERS; i++)
		others[i] = bnet_presence_announce(conn->dev);
	pass_quota_tick();
	check(scaler->most <= BNET_QUOTA / (1 + OTHERS));
	check(scaler->level <= scaler->most);
	for (int i = 0; i < OTHERS; i++)
		bnet_socket_close(others[i]);
	bnet_engine_unlock();
	close_to_oneself(&client, ends);
}

/* ---- connections in use share the quota ---- */

/* An all-to-all's connections and one of a ring, in a process that shares its device with others. */
struct job {
	struct oneself all[ALL], ring;
	int others[OTHERS];
};

static void begin_job(struct job *job)
{
	for (int i = 0; i < OTHERS; i++)
		job->others[i] = -1;
	for (int i = 0; i < ALL; i++)
		job->all[i] = connect_to_oneself(&client);
	job->ring = connect_to_oneself(&client);
}

static void send_to_all(const struct job *job)
{
	for (int i = 0; i < ALL; i++)
		send_to_oneself(&client, job->all[i]);
}

/* … until all streams of that connection are open, whatever the scaler tries. */
static void send_until_wide(const struct job *job, const struct bnet_conn *conn)
{
	while (conn->nstreams < MANY) {
		keep_streams(MANY);
		send_to_all(job);
	}
}

/* They are counted at once. */
static void begin_others(struct job *job)
{
	bnet_engine_lock();
	for (int i = 0; i < OTHERS; i++)
		job->others[i] = bnet_presence_announce(((struct bnet_conn *)job->ring.send)->dev);
	pass_quota_tick();
	bnet_engine_unlock();
}

/* They count until all is acknowledged. One that ends then is on its path for a moment longer than in the list. */
static void await_closed(void)
{
	bool closed = false;

	while (!closed) {
		bnet_engine_lock();
		closed = bnet_list_empty(&bnet_engine.closed) && bnet_list_empty(&bnet_engine.paths);
		bnet_engine_unlock();
		sched_yield();
	}
}

static void end_job(struct job *job)
{
	for (int i = 0; i < OTHERS; i++)
		bnet_socket_close(job->others[i]);
	for (int i = 0; i < ALL; i++)
		close_to_oneself(&client, job->all[i]);
	close_to_oneself(&client, job->ring);
	await_closed();
}

/* As if the time had come. */
static void look_once(void)
{
	static uint64_t later_us;

	bnet_quota_look(bnet_now_us() + (later_us += 300));
}

/* In which nothing was in use; the first look still finds what was. */
static void pass_minute(void)
{
	look_once();
	look_once();
	for (int i = 0; i < 60; i++)
		pass_quota_tick();
}

/* So many looks see each kind of work, and those at which it changes see both. */
static void alternate(const struct job *job, int looks)
{
	for (int look = 0; look < 2 * looks; look++) {
		if (look < looks || look == looks)
			send_to_all(job);
		if (look >= looks || look == 0)
			send_to_oneself(&client, job->ring);
		look_once();
	}
}

static int early_streams_of(void *comm)
{
	return ((struct bnet_conn *)comm)->company.early;
}

/* While the other connections are idle, that of the ring has the quota to itself. Where each look sees both kinds, they
 * share it. A connection that has a share needs no streams in advance. */
static void a_connection_shares_with_those_in_use_at_its_time(void)
{
	for (int looks = 1; looks <= 5; looks++) {
		struct job job;

		begin_job(&job);
		begin_others(&job);
		bnet_engine_lock(); /* nobody else looks */
		set_levels(MANY);
		check(bnet_quota_early(job.ring.send, 1));
		for (int i = 0; i < ALL; i++)
			move_oneself(job.all[i]);
		move_oneself(job.ring);
		for (int turn = 0; turn < TURNS; turn++)
			alternate(&job, looks);
		pass_quota_tick();
		check_int(level_now(job.ring.send), looks == 1 ? 1 : MANY);
		check_int(early_streams_of(job.ring.send), 0);
		for (int i = 0; i < ALL; i++)
			check(level_now(job.all[i].send) <= BNET_QUOTA / (1 + OTHERS) / ALL);
		bnet_engine_unlock();
		end_job(&job);
	}
}

/* As the sampler does. */
static void sample_all(const struct job *job)
{
	for (int i = 0; i < ALL; i++) {
		struct bnet_conn *conn = job->all[i].send;

		bnet_quota_admit(conn, bnet_path_missing(conn));
		bnet_path_sample_conn(conn, bnet_now_us(), false);
	}
}

/* Where a path's level is known, hundreds of connections that are used for the first time must not open what is theirs
 * only while they are alone. */
static void a_first_use_opens_a_share(void)
{
	struct job job;

	begin_job(&job);
	begin_others(&job);
	bnet_engine_lock();
	set_levels(MANY);
	check(bnet_quota_early(job.ring.send, BNET_QUOTA)); /* none are left in advance */
	for (int i = 0; i < ALL; i++)
		move_oneself(job.all[i]);
	for (int look = 0; look < 2; look++) {
		sample_all(&job);
		check(bnet_list_empty(&bnet_engine.missing));
		send_to_all(&job);
		look_once();
	}
	sample_all(&job);
	while (bnet_paths_open())
		;
	for (int i = 0; i < ALL; i++)
		check_int(((struct bnet_conn *)job.all[i].send)->setup.wanted, BNET_QUOTA / (1 + OTHERS) / ALL);
	bnet_engine_unlock();
	end_job(&job);
}

/* The sampler asks the quota. */
static void a_first_use_waits_for_its_share(void)
{
	struct job job;

	begin_job(&job);
	bnet_engine_lock();
	set_levels(MANY);
	check(bnet_quota_early(job.ring.send, BNET_QUOTA)); /* none are left in advance */
	move_oneself(job.all[0]);
	send_to_all(&job);
	bnet_sampler_read(bnet_now_us());
	check(((struct bnet_conn *)job.all[0].send)->company.waits);
	check(bnet_list_empty(&bnet_engine.missing));
	bnet_engine_unlock();
	end_job(&job);
}

/* Readings of a connection that count for its path. */
static int samples_of(const struct job *job, struct bnet_conn *conn)
{
	const int before = (int)conn->path->streams;

	for (int i = 0; i < 2; i++) {
		send_to_oneself(&client, conn == job->ring.send ? job->ring : job->all[0]);
		bnet_path_sample_conn(conn, bnet_now_us(), false);
	}
	return (int)conn->path->streams - before;
}

/* Each use is seen by one look. Streams above a connection's share are closed, though the path's level is higher. */
static void a_short_use_counts(void)
{
	struct bnet_conn *conn;
	struct job job;

	begin_job(&job);
	conn = job.all[0].send;
	send_until_wide(&job, conn);
	begin_others(&job);
	bnet_engine_lock();
	pass_minute();
	set_levels(MANY);
	for (int i = 0; i < ALL; i++)
		move_oneself(job.all[i]);
	move_oneself(job.ring);
	for (int turn = 0; turn < TURNS; turn++) {
		send_to_all(&job);
		look_once();
		send_to_oneself(&client, job.ring);
		look_once();
	}
	pass_quota_tick();
	while (conn->nstreams > BNET_QUOTA / (1 + OTHERS) / ALL) /* once all is acknowledged */
		bnet_path_sample_conn(conn, bnet_now_us(), false);
	check_int(samples_of(&job, conn), 0); /* it says nothing of more streams than it may have */
	check(samples_of(&job, job.ring.send) > 0);
	check_int(level_now(job.ring.send), MANY);
	bnet_engine_unlock();
	end_job(&job);
}

/* … but a small allreduce now and then does not decide for an all-to-all, which lasts. */
static void a_short_use_does_not_decide_for_a_lasting_one(void)
{
	struct bnet_conn *few;
	struct job job;

	begin_job(&job);
	begin_others(&job);
	few = job.all[0].send;
	bnet_engine_lock();
	set_levels(1);
	for (int i = 0; i < ALL; i++)
		move_oneself(job.all[i]);
	move_oneself(job.ring);
	for (int turn = 0; turn < TURNS; turn++) {
		for (int look = 0; look < 3; look++) {
			send_to_all(&job);
			look_once();
		}
		for (int look = 0; look < 2; look++) { /* one falls into it, one comes after it */
			send_to_oneself(&client, job.ring);
			look_once();
		}
	}
	pass_quota_tick();
	check(bnet_path_most(few) < bnet_path_most(job.ring.send));
	check_int(few->path->scaler.most, bnet_path_most(few));
	check(samples_of(&job, few) > 0);
	check(samples_of(&job, job.ring.send) > 0);
	bnet_engine_unlock();
	end_job(&job);
}

/* A pause begins with a look that finds fewer, and a tick may come then. */
static void a_single_look_changes_no_share(void)
{
	struct bnet_conn *conn;
	struct job job;

	begin_job(&job);
	begin_others(&job);
	conn = job.ring.send;
	bnet_engine_lock();
	set_levels(MANY);
	move_oneself(job.ring);
	move_oneself(job.all[0]);
	for (int turn = 0; turn < TURNS; turn++) {
		send_to_oneself(&client, job.all[0]);
		send_to_oneself(&client, job.ring);
		look_once();
	}
	send_to_oneself(&client, job.ring);
	look_once();
	send_to_oneself(&client, job.ring);
	look_once();
	pass_quota_tick();
	check_int(conn->setup.share, BNET_QUOTA / (1 + OTHERS) / 2);
	bnet_engine_unlock();
	end_job(&job);
}

/* The control thread looks and divides, and closes the streams that are too many. */
static void connections_in_use_share_the_quota(void)
{
	const struct bnet_conn *conn;
	struct job job;

	begin_job(&job);
	conn = job.all[0].send;
	send_until_wide(&job, conn);
	begin_others(&job);
	while (conn->nstreams > BNET_QUOTA / (1 + OTHERS) / ALL) {
		keep_streams(MANY); /* whatever the scaler tries */
		send_to_all(&job);
	}
	end_job(&job);
}

/* ---- the end of a path ---- */

static void nothing_is_left_of_a_path_without_connections(void)
{
	close_to_oneself(&client, connect_to_oneself(&client));
	bnet_engine_lock();
	check(bnet_list_empty(&bnet_engine.paths));
	bnet_engine_unlock();
}

/* The sampler releases the engine's lock while it reads a path. */
static void a_path_that_is_read_is_freed_after_that(void)
{
	struct oneself ends = connect_to_oneself(&client);
	struct bnet_path *path;

	bnet_engine_lock();
	path = bnet_entry(bnet_engine.paths.next, struct bnet_path, node);
	path->pinned = true;
	bnet_engine_unlock();
	close_to_oneself(&client, ends);
	bnet_engine_lock();
	check(bnet_engine.paths.next == &path->node);
	bnet_path_unpin(path);
	check(bnet_list_empty(&bnet_engine.paths));
	bnet_engine_unlock();
}

int main(void)
{
	setenv("NCCL_SOCKET_IFNAME", "lo", 1);
	setenv("BAGUA_NET_NSTREAMS", "0", 1);
	alarm(DEADLINE_S);
	check_int(bnet_client_init(&client, bnet_net_table(12), 12, print_warnings), ncclSuccess);
	/* Processes outside this test do not count. */
	bnet_engine.devices.nics[0].ifindex = 1000000 + (int)getpid();
	a_lower_maximum_applies_to_all();
	an_idle_connection_opens_no_streams();
	a_connection_that_has_failed_opens_no_streams();
	tries_that_fail_become_rare();
	a_share_bounds_the_level();
	the_quota_s_share_bounds_the_level();
	a_connection_shares_with_those_in_use_at_its_time();
	a_first_use_opens_a_share();
	a_first_use_waits_for_its_share();
	a_short_use_counts();
	a_short_use_does_not_decide_for_a_lasting_one();
	a_single_look_changes_no_share();
	connections_in_use_share_the_quota();
	nothing_is_left_of_a_path_without_connections();
	a_path_that_is_read_is_freed_after_that();
	check_int(bnet_client_finalize(&client), ncclSuccess);
	return 0;
}
