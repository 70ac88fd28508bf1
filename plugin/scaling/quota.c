/* SPDX-License-Identifier: MIT
 *
 * See quota.h.
 */
#include "scaling/quota.h"

#include <stddef.h>
#include <string.h>

#include "base/socket.h"
#include "device/presence.h"
#include "engine/engine.h"
#include "scaling/path.h"

#define TICK_US 1000000
/* A connection that was not in use for so many ticks has no say in what its path may try. */
#define RECENT_TICKS 60
/* What a connection knows of its company, in parts of a connection; with each look it changes by a UNIT-th, … */
#define UNIT 64
/* … but by this multiple upwards, so that it settles where three looks of four find no more in use. */
#define UPWARDS 3
/* After a look at each connection so much time passes, of which it took less than a hundredth. */
#define LOOK_US 30

static struct {
	int early; /* streams of connections that have not moved yet */
	uint64_t ticked_us;
	uint64_t look_us; /* not before that */
	uint32_t ticks;   /* from 1 on */
	struct {
		bool joined;
		int presence;     /* a descriptor plus one, 0: none */
		int processes;    /* as counted … */
		uint32_t counted; /* … in this tick */
		uint32_t in_use;  /* connections, at the last look */
		uint32_t fewest;  /* … and the one before it, whichever found fewer */
	} devices[BNET_MAX_DEVICES];
} quota = {.ticks = 1};

int bnet_quota_per_connection(int processes, int connections)
{
	int streams = BNET_QUOTA / (processes < 1 ? 1 : processes) / (connections < 1 ? 1 : connections);

	return streams < 1 ? 1 : streams;
}

/* A device and one that was merged from it and others have the same first NIC, by which processes count. */
static bool is_announced(const struct bnet_device *dev)
{
	for (int i = 0; i < bnet_engine.devices.ndevices; i++)
		if (quota.devices[i].presence && bnet_engine.devices.devices[i].members[0] == dev->members[0])
			return true;
	return false;
}

/* Once, also where all names are taken. */
void bnet_quota_join(const struct bnet_device *dev)
{
	const ptrdiff_t device = bnet_device_number(dev);
	int fd;

	if (quota.devices[device].joined)
		return;
	quota.devices[device].joined = true;
	if (is_announced(dev))
		return;
	fd = bnet_presence_announce(dev);
	quota.devices[device].presence = fd < 0 ? 0 : fd + 1;
}

bool bnet_quota_early(struct bnet_conn *conn, int streams)
{
	const int ranks = bnet_engine.local_ranks > 1 ? bnet_engine.local_ranks : 1;

	if (quota.early + streams > BNET_QUOTA / ranks)
		return false;
	conn->company.early += streams;
	quota.early += streams;
	return true;
}

void bnet_quota_early_over(struct bnet_conn *conn)
{
	quota.early -= conn->company.early;
	conn->company.early = 0;
}

/* Where the kernel has no names to count by, all ranks that the launcher tells of may use the device. */
static int count_processes(const struct bnet_device *dev)
{
	const ptrdiff_t device = bnet_device_number(dev);
	int counted;

	if (quota.devices[device].counted == quota.ticks)
		return quota.devices[device].processes;
	counted = bnet_presence_count(dev);
	quota.devices[device].counted = quota.ticks;
	quota.devices[device].processes = counted ? counted : bnet_engine.local_ranks;
	return quota.devices[device].processes;
}

/* ---- which connections are in use together ---- */

static uint32_t step_towards(uint32_t known, uint32_t now)
{
	const uint32_t step = known / UNIT;

	if (now > known)
		return now - known > step * UPWARDS ? known + step * UPWARDS : now;
	return known - now > step ? known - step : now;
}

/* The first share does not wait for the next tick: hundreds of connections may be used for the first time at once. */
static void learn(struct bnet_conn *conn, uint32_t in_use)
{
	const uint32_t known = conn->company.together;

	conn->company.together = known ? step_towards(known, in_use * UNIT) : in_use * UNIT;
	conn->company.learnt = quota.ticks;
	if (!known)
		bnet_path_share(conn, bnet_quota_per_connection(count_processes(conn->dev), (int)in_use));
}

void bnet_quota_admit(struct bnet_conn *conn, int missing)
{
	const int more = missing + conn->setup.wanted - conn->path->scaler.least - conn->company.early;

	conn->company.waits = missing > 0 && !conn->company.together && more > 0 && !bnet_quota_early(conn, more);
}

/* A look also finds what was used just before a connection was, or just after: of two looks in a row the one that found
 * fewer counts. A use that one look sees counts by that one. */
void bnet_quota_unused(struct bnet_conn *conn)
{
	if (conn->company.looks == 1)
		learn(conn, quota.devices[bnet_device_number(conn->dev)].in_use);
	conn->company.looks = 0;
}

static bool is_in_use(struct bnet_conn *conn)
{
	const uint64_t posted = atomic_load_explicit(&conn->posted, memory_order_relaxed),
		       before = conn->company.posted;

	conn->company.posted = posted;
	return posted != before || bnet_conn_outstanding(conn) > 0;
}

static void look_at(struct bnet_conn *conn, uint32_t in_use[BNET_MAX_DEVICES])
{
	if (!is_in_use(conn)) {
		bnet_quota_unused(conn);
		return;
	}
	in_use[bnet_device_number(conn->dev)]++;
	conn->company.looks++;
}

static void learn_all(struct bnet_path *path)
{
	const uint32_t fewest = quota.devices[bnet_device_number(path->dev)].fewest;

	bnet_list_each(node, &path->moving) {
		struct bnet_conn *conn = bnet_entry(node, struct bnet_conn, of_path);

		if (conn->company.looks > 1) {
			learn(conn, fewest);
			if (conn->company.looks > 2) /* a short use that a look falls into is seen by two */
				conn->company.lasting = quota.ticks;
		}
	}
}

void bnet_quota_look(uint64_t now_us)
{
	uint32_t in_use[BNET_MAX_DEVICES] = {0}, looked = 0;

	if (now_us < quota.look_us)
		return;
	bnet_list_each(node, &bnet_engine.paths)
		bnet_list_each(member, &bnet_entry(node, struct bnet_path, node)->moving) {
			look_at(bnet_entry(member, struct bnet_conn, of_path), in_use);
			looked++;
		}
	quota.look_us = now_us + (uint64_t)looked * LOOK_US;
	for (int i = 0; i < BNET_MAX_DEVICES; i++) {
		const uint32_t before = quota.devices[i].in_use;

		quota.devices[i].fewest = in_use[i] < before ? in_use[i] : before;
		quota.devices[i].in_use = in_use[i];
	}
	bnet_list_each(node, &bnet_engine.paths)
		learn_all(bnet_entry(node, struct bnet_path, node));
}

/* ---- the division ---- */

/* The most that connections of a path may have: of those that were in use lately for some time, of those that were in
 * use lately, and of all. A small allreduce now and then must not decide for an all-to-all. */
struct shares {
	int lasting, recent, any;
};

static void raise_to(int *most, int share)
{
	if (share > *most)
		*most = share;
}

static bool is_recent(uint32_t tick)
{
	return tick && quota.ticks - tick < RECENT_TICKS;
}

static void divide_among(struct bnet_node *conns, int processes, struct shares *most)
{
	bnet_list_each(node, conns) {
		struct bnet_conn *conn = bnet_entry(node, struct bnet_conn, of_path);
		/* To the nearest: a single look that found fewer must not change the share. */
		const int together = (int)((conn->company.together + UNIT / 2) / UNIT);
		const int share = bnet_quota_per_connection(processes, together);

		bnet_path_share(conn, share);
		if (conn->company.together)
			bnet_quota_early_over(conn);
		raise_to(&most->any, share);
		if (is_recent(conn->company.learnt))
			raise_to(&most->recent, share);
		if (is_recent(conn->company.lasting))
			raise_to(&most->lasting, share);
	}
}

static void divide(struct bnet_path *path)
{
	const int processes = count_processes(path->dev);
	struct shares most = {0, 0, 0};

	divide_among(&path->moving, processes, &most);
	divide_among(&path->idle, processes, &most);
	bnet_path_limit(path, most.lasting ? most.lasting : most.recent ? most.recent : most.any);
}

void bnet_quota_tick(uint64_t now_us)
{
	if (now_us - quota.ticked_us < TICK_US)
		return;
	quota.ticked_us = now_us;
	quota.ticks++;
	bnet_list_each(node, &bnet_engine.paths)
		divide(bnet_entry(node, struct bnet_path, node));
}

void bnet_quota_end(void)
{
	for (int i = 0; i < BNET_MAX_DEVICES; i++) {
		if (quota.devices[i].presence)
			bnet_socket_close(quota.devices[i].presence - 1);
	}
	memset(quota.devices, 0, sizeof(quota.devices));
	quota.ticks = 1;
	quota.look_us = 0;
}
