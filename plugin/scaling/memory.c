/* SPDX-License-Identifier: MIT
 *
 * See memory.h.
 */
#include "scaling/memory.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/socket.h"
#include "common/clock.h"
#include "common/hash.h"
#include "engine/engine.h"
#include "transport/conn.h"
#include "transport/estimator.h"

/* 4096 records are 288 KiB. A record is one of a few that its path's hash names. */
#define RECORDS 4096
#define FEW 4
#define VERSION UINT64_C(0x32736874617042) /* changes with the records' layout */

struct record {
	uint64_t check; /* of all that follows */
	uint64_t dev;   /* a hash of its name, speed and MTU */
	uint8_t from[16], to[16];
	uint64_t when_us;
	uint64_t rate;
	uint64_t streams;
};

_Static_assert(sizeof(struct record) == 72, "records have no padding, which would be part of the check");

static uint64_t check_of(const struct record *record)
{
	return bnet_fnv1a_64(VERSION, &record->dev, sizeof(*record) - sizeof(record->check));
}

static void copy_address(uint8_t out[16], const struct sockaddr_storage *addr)
{
	memset(out, 0, 16);
	if (addr->ss_family == AF_INET)
		memcpy(out, &((const struct sockaddr_in *)addr)->sin_addr, 4);
	else
		memcpy(out, &((const struct sockaddr_in6 *)addr)->sin6_addr, 16);
}

static struct record record_for(const struct bnet_device *dev, const struct sockaddr_storage *peer)
{
	const int facts[2] = {dev->speed_mbps, dev->members[0]->mtu};
	struct record record = {
		.dev = bnet_fnv1a_64(bnet_fnv1a_64(BNET_FNV1A_64, dev->name, strlen(dev->name)), facts, sizeof(facts))};

	copy_address(record.from, &dev->members[0]->addr);
	copy_address(record.to, peer);
	return record;
}

static bool same_path(const struct record *a, const struct record *b)
{
	return a->dev == b->dev && memcmp(a->from, b->from, sizeof(a->from)) == 0 &&
	       memcmp(a->to, b->to, sizeof(a->to)) == 0;
}

static bool valid(const struct record *record)
{
	return record->check == check_of(record) && record->streams >= 1 && record->streams <= BNET_MAX_STREAMS &&
	       record->rate <= BNET_MAX_RATE;
}

/* Nobody else's file, and no link to another one. */
static int open_table(int flags)
{
	struct stat status;
	char path[64];
	int fd;

	if (!bnet_engine.config.path_memory)
		return -EPERM;
	snprintf(path, sizeof(path), "/dev/shm/bagua-net-paths-%u", (unsigned)geteuid());
	fd = bnet_fd_opened(open(path, flags | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600));
	if (fd < 0)
		return fd;
	if (fstat(fd, &status) == 0 && S_ISREG(status.st_mode) && status.st_uid == geteuid() &&
	    (status.st_mode & 077) == 0 && status.st_nlink == 1)
		return fd;
	bnet_socket_close(fd);
	return -EPERM;
}

/* Of the few, as far as the file goes. */
static off_t place_of(const struct record *record)
{
	const uint64_t h =
		bnet_fnv1a_64(VERSION, &record->dev, sizeof(record->dev) + sizeof(record->from) + sizeof(record->to));

	return (off_t)(h % (RECORDS / FEW) * FEW * sizeof(*record));
}

static int read_few(int fd, off_t place, struct record few[FEW])
{
	const ssize_t n = pread(fd, few, FEW * sizeof(few[0]), place);

	return n < 0 ? 0 : (int)((size_t)n / sizeof(few[0]));
}

bool bnet_memory_recall(const struct bnet_device *dev, const struct sockaddr_storage *peer,
			struct bnet_learned *learned)
{
	const struct record wanted = record_for(dev, peer);
	struct record few[FEW];
	int fd = open_table(O_RDONLY), n;

	if (fd < 0)
		return false;
	n = read_few(fd, place_of(&wanted), few);
	bnet_socket_close(fd);
	for (int i = 0; i < n; i++) {
		if (!same_path(&few[i], &wanted) || !valid(&few[i]))
			continue;
		*learned = (struct bnet_learned){.streams = (int)few[i].streams, .rate = few[i].rate};
		return true;
	}
	return false;
}

/* A write beyond the limit of a file's size would end the process by a signal. */
static bool may_write(off_t end)
{
	struct rlimit limit;

	return getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur >= (rlim_t)end;
}

/* Of the same path; else of none; else the oldest one. */
static int choose_place(const struct record few[FEW], int n, const struct record *record)
{
	int oldest = 0;

	for (int i = 0; i < n; i++)
		if (same_path(&few[i], record))
			return i;
	if (n < FEW)
		return n;
	for (int i = 0; i < n; i++) {
		if (!valid(&few[i]))
			return i;
		if (few[i].when_us < few[oldest].when_us)
			oldest = i;
	}
	return oldest;
}

void bnet_memory_keep(const struct bnet_device *dev, const struct sockaddr_storage *peer,
		      const struct bnet_learned *learned)
{
	struct record record = record_for(dev, peer), few[FEW];
	const off_t place = place_of(&record);
	int fd, n;

	if (!may_write(place + (off_t)sizeof(few)))
		return;
	fd = open_table(O_RDWR | O_CREAT);
	if (fd < 0)
		return;
	record.streams = (uint64_t)learned->streams;
	record.rate = learned->rate;
	record.when_us = bnet_wall_us();
	record.check = check_of(&record);
	n = read_few(fd, place, few);
	/* What a full file system does not take is not kept. */
	(void)!pwrite(fd, &record, sizeof(record),
		      place + (off_t)(choose_place(few, n, &record) * (int)sizeof(record)));
	bnet_socket_close(fd);
}
