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
/* Processes are counted again after so many ticks. */
#define COUNT_TICKS 10
/* The highest number of connections in use decays by this factor with each tick, in percent, so that a job's pauses do
 * not change the quotas. */
#define KEPT_PERCENT 90

static struct {
	uint64_t ticked_us;
	uint32_t ticks;
	struct {
		bool joined;
		int presence;       /* a descriptor plus one, 0: none */
		int processes;      /* as last counted */
		uint32_t count_due; /* the tick in which they are counted again */
		int used;           /* connections in use, in hundredths */
	} devices[BNET_MAX_DEVICES];
} quota;

int bnet_quota_per_connection(int processes, int connections)
{
	int streams = BNET_QUOTA / (processes < 1 ? 1 : processes) / (connections < 1 ? 1 : connections);

	return streams < 1 ? 1 : streams;
}

static ptrdiff_t number_of(const struct bnet_device *dev)
{
	return dev - bnet_engine.devices.devices;
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
	const ptrdiff_t device = number_of(dev);
	int fd;

	if (quota.devices[device].joined)
		return;
	quota.devices[device].joined = true;
	if (is_announced(dev))
		return;
	fd = bnet_presence_announce(dev);
	quota.devices[device].presence = fd < 0 ? 0 : fd + 1;
}

/* Where the kernel has no names to count by, all ranks that the launcher tells of may use the device. */
static void count_processes(const struct bnet_device *dev)
{
	const ptrdiff_t device = number_of(dev);
	const int counted = bnet_presence_count(dev);

	quota.devices[device].processes = counted ? counted : bnet_engine.local_ranks;
	quota.devices[device].count_due = quota.ticks + COUNT_TICKS;
}

static int count_moving(const struct bnet_path *path)
{
	int count = 0;

	bnet_list_each(node, &path->moving)
		count++;
	return count;
}

void bnet_quota_tick(uint64_t now_us)
{
	int moving[BNET_MAX_DEVICES] = {0};

	if (now_us - quota.ticked_us < TICK_US)
		return;
	quota.ticked_us = now_us;
	bnet_list_each(node, &bnet_engine.paths) {
		const struct bnet_path *path = bnet_entry(node, struct bnet_path, node);
		const ptrdiff_t device = number_of(path->dev);

		moving[device] += count_moving(path);
		if (quota.ticks >= quota.devices[device].count_due)
			count_processes(path->dev);
	}
	quota.ticks++;
	for (int i = 0; i < BNET_MAX_DEVICES; i++) {
		int kept = quota.devices[i].used * KEPT_PERCENT / 100;

		quota.devices[i].used = moving[i] * 100 > kept ? moving[i] * 100 : kept;
	}
	bnet_list_each(node, &bnet_engine.paths) {
		struct bnet_path *path = bnet_entry(node, struct bnet_path, node);
		const ptrdiff_t device = number_of(path->dev);

		bnet_path_limit(path, bnet_quota_per_connection(quota.devices[device].processes,
								quota.devices[device].used / 100));
	}
}

void bnet_quota_end(void)
{
	for (int i = 0; i < BNET_MAX_DEVICES; i++) {
		if (quota.devices[i].presence)
			bnet_socket_close(quota.devices[i].presence - 1);
	}
	memset(quota.devices, 0, sizeof(quota.devices));
	quota.ticks = 0;
}
