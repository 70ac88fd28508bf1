/* SPDX-License-Identifier: MIT
 *
 * See segment.h. The group's own thread.
 */
#include "shared/segment.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/kernel.h"
#include "shared/futex.h"

/* A round costs two waits for every other rank, some microseconds where the ranks have a processor each and a change
 * of thread where they do not; both are little beside the copies of a bank of this size. Where other threads compute on
 * the same processors, each change takes milliseconds: with banks of half the size, 20 allreduces of 1 MiB between four
 * ranks beside busy threads took 270 instead of 140 ms; alone, neither size was faster. */
#define BANK ((size_t)1024 * 1024)
/* Of all banks; only what is used takes up memory. */
#define MAX_BYTES ((size_t)256 * 1024 * 1024)
#define PAGE ((size_t)4096)
#define SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)

/* ---- this process ---- */

static uint64_t process_number;

static void draw_again(void)
{
	process_number = bnet_random();
}

/* Children of fork() are processes of their own. */
static void draw_number(void)
{
	draw_again();
	pthread_atfork(NULL, NULL, draw_again);
}

/* Tells apart the processes that have the memory: a record lock does not, among the ranks of one process. */
static uint64_t this_process(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, draw_number);
	return process_number;
}

/* ---- layout: the lines, the banks ---- */

static size_t banks_at(int count)
{
	return ((size_t)count * sizeof(struct bnet_shared_line) + PAGE - 1) / PAGE * PAGE;
}

static size_t bank_size(int count)
{
	size_t bytes = MAX_BYTES / BNET_SHARED_BANKS / (size_t)count / PAGE * PAGE;

	return bytes > BANK ? BANK : bytes;
}

static void lay_out(struct bnet_segment *segment, int fd, int count, int index)
{
	*segment = (struct bnet_segment){.fd = fd, .count = count, .index = index, .bank_bytes = bank_size(count)};
	segment->bytes = banks_at(count) + (size_t)count * BNET_SHARED_BANKS * segment->bank_bytes;
}

struct bnet_shared_line *bnet_segment_line(const struct bnet_segment *segment, int index)
{
	return (struct bnet_shared_line *)(void *)segment->base + index;
}

char *bnet_segment_bank(const struct bnet_segment *segment, int index, uint32_t round)
{
	const size_t number = (size_t)index * BNET_SHARED_BANKS + round % BNET_SHARED_BANKS;

	return segment->base + banks_at(segment->count) + number * segment->bank_bytes;
}

/* ---- making and mapping ---- */

static int map(struct bnet_segment *segment)
{
	void *base = mmap(NULL, segment->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, segment->fd, 0);

	if (base == MAP_FAILED)
		return -errno;
	segment->base = base;
	return 0;
}

/* The process holds the lock as long as it lives: a record lock, unlike the others, is not inherited by a child of
 * fork(), which would make a dead rank look alive. */
static int lock_byte(const struct bnet_segment *segment)
{
	const struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = segment->index, .l_len = 1};

	return fcntl(segment->fd, F_SETLK, &lock) == 0 ? 0 : -errno;
}

static void enter(const struct bnet_segment *segment)
{
	struct bnet_shared_line *line = bnet_segment_line(segment, segment->index);

	line->process = this_process();
	atomic_store(&line->state, BNET_SHARED_PRESENT);
}

static void unmap(struct bnet_segment *segment)
{
	if (segment->base != NULL)
		munmap(segment->base, segment->bytes);
	if (segment->fd >= 0)
		close(segment->fd);
	*segment = BNET_SEGMENT_NONE;
}

static int map_and_enter(struct bnet_segment *segment)
{
	int rc = map(segment);

	if (rc == 0)
		rc = lock_byte(segment);
	if (rc == 0)
		enter(segment);
	else
		unmap(segment);
	return rc;
}

int bnet_segment_create(struct bnet_segment *segment, int count)
{
	int fd, rc = 0;

	*segment = BNET_SEGMENT_NONE;
	if (count > BNET_SHARED_MAX)
		return -EUSERS;
	fd = bnet_memfd_create("bagua-net", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (fd < 0)
		return -errno;
	lay_out(segment, fd, count, 0);
	if (ftruncate(fd, (off_t)segment->bytes) != 0 || fchmod(fd, 0600) != 0 || fcntl(fd, F_ADD_SEALS, SEALS) != 0)
		rc = -errno;
	if (rc == 0)
		return map_and_enter(segment);
	unmap(segment);
	return rc;
}

/* Memory whose file could shrink would end this process by SIGBUS. */
static bool is_ours(int fd, size_t bytes)
{
	const int seals = fcntl(fd, F_GET_SEALS); /* of other files: -1 */
	struct stat file;

	return seals >= 0 && (seals & SEALS) == SEALS && fstat(fd, &file) == 0 && (size_t)file.st_size == bytes;
}

int bnet_segment_attach(struct bnet_segment *segment, int fd, int count, int index)
{
	lay_out(segment, fd, count, index);
	if (!is_ours(fd, segment->bytes)) {
		unmap(segment);
		return -EPROTO;
	}
	return map_and_enter(segment);
}

bool bnet_segment_process_gone(const struct bnet_segment *segment, int index)
{
	struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = index, .l_len = 1};

	if (bnet_segment_line(segment, index)->process == this_process())
		return false;
	return fcntl(segment->fd, F_GETLK, &lock) == 0 && lock.l_type == F_UNLCK;
}

/* ---- the end ---- */

void bnet_segment_say_left(struct bnet_segment *segment, const char *reason)
{
	struct bnet_shared_line *line;

	if (segment->base == NULL)
		return;
	line = bnet_segment_line(segment, segment->index);
	if (atomic_load(&line->state) == BNET_SHARED_LEFT)
		return;
	snprintf(line->reason, sizeof(line->reason), "%s", reason);
	atomic_store(&line->state, BNET_SHARED_LEFT);
	bnet_futex_wake(&line->put);
	bnet_futex_wake(&line->got);
}

void bnet_segment_leave(struct bnet_segment *segment, const char *reason)
{
	bnet_segment_say_left(segment, reason);
	unmap(segment);
}
