/* SPDX-License-Identifier: MIT
 *
 * See segment.h.
 */
#include "stats/segment.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

#include "base/config.h"
#include "base/log.h"
#include "base/socket.h"
#include "common/clock.h"

/* A container's /dev/shm has 64 MB, which NCCL and the loaders of data need. */
#define LEAVE_BYTES (UINT64_C(16) << 20)
/* What processes leave that were killed is there for so long, for whoever looks for the reason, if they are no more
 * than this: a job that fails and begins again for hours must not fill the memory. */
#define KEPT_S 600
#define MOST_KEPT 8
#define MOST_FILES 4096

static struct {
	int fd; /* open, with the lock, while there is a segment */
	char path[BNET_FILE_PATH + 96];
} segment = {.fd = -1};

/* Nobody else's, and no link to one. */
static int open_directory(const char *where, char *path, size_t size)
{
	struct stat status;
	int fd;

	snprintf(path, size, "%s/bagua-net-stats-%u", *where ? where : "/dev/shm", (unsigned)geteuid());
	if (mkdir(path, 0700) < 0 && errno != EEXIST)
		return -errno;
	fd = bnet_fd_opened(open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
	if (fd < 0)
		return fd;
	if (fstat(fd, &status) == 0 && status.st_uid == geteuid() && (status.st_mode & 077) == 0)
		return fd;
	bnet_socket_close(fd);
	return -EPERM;
}

/* False: it is no file. */
static bool changed_at(int directory, const char *name, struct timespec *changed)
{
	struct stat status;

	if (fstatat(directory, name, &status, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISREG(status.st_mode))
		return false;
	*changed = status.st_mtim;
	return true;
}

/* PID-NUMBER.trace, which who asked for it removes, or the process. */
static bool is_recording(const char *name)
{
	const char *suffix = strchr(name, '.');

	return name[0] >= '0' && name[0] <= '9' && suffix && strcmp(suffix, ".trace") == 0;
}

/* PID-NUMBER; the commands have others there. */
static bool is_segment(const char *name)
{
	return name[0] >= '0' && name[0] <= '9' && !strchr(name, '.');
}

/* Its process, or who waits for a recording, has ended: nobody holds its lock. */
static bool has_ended(int directory, const char *name)
{
	int fd = openat(directory, name, O_RDWR | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
	bool ended;

	if (fd < 0)
		return false;
	ended = flock(fd, LOCK_EX | LOCK_NB) == 0;
	close(fd);
	return ended;
}

static bool is_earlier(struct timespec one, struct timespec other)
{
	return one.tv_sec != other.tv_sec ? one.tv_sec < other.tv_sec : one.tv_nsec < other.tv_nsec;
}

/* Those of processes that ended lately. */
struct left {
	int count;
	struct {
		struct timespec changed;
		char name[NAME_MAX + 1];
	} files[MOST_KEPT];
};

/* The youngest are kept. */
static void keep(struct left *left, int directory, const char *name, struct timespec changed)
{
	int at = left->count;

	if (at < MOST_KEPT) {
		left->count++;
	} else {
		at = 0;
		for (int i = 1; i < MOST_KEPT; i++)
			if (is_earlier(left->files[i].changed, left->files[at].changed))
				at = i;
		if (is_earlier(changed, left->files[at].changed)) {
			unlinkat(directory, name, 0);
			return;
		}
		unlinkat(directory, left->files[at].name, 0);
	}
	left->files[at].changed = changed;
	snprintf(left->files[at].name, sizeof(left->files[at].name), "%s", name);
}

static void look_at(struct left *left, int directory, const char *name)
{
	struct timespec changed;
	bool old;

	if ((!is_segment(name) && !is_recording(name)) || !changed_at(directory, name, &changed))
		return;
	old = changed.tv_sec < time(NULL) - KEPT_S;
	if ((!old && is_recording(name)) || !has_ended(directory, name))
		return;
	if (old)
		unlinkat(directory, name, 0);
	else
		keep(left, directory, name, changed);
}

static void remove_old(int directory)
{
	int copy = fcntl(directory, F_DUPFD_CLOEXEC, 0);
	DIR *entries = copy < 0 ? NULL : fdopendir(copy);
	struct left left = {.count = 0};
	const struct dirent *entry;

	for (int i = 0; entries && i < MOST_FILES && (entry = readdir(entries)) != NULL; i++)
		look_at(&left, directory, entry->d_name);
	if (entries)
		closedir(entries);
	else if (copy >= 0)
		close(copy);
}

bool bnet_segment_leaves_enough(int fd, size_t size)
{
	struct statvfs status;
	struct rlimit limit;

	/* A write beyond the limit of a file's size would end the process by a signal. */
	return getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur >= size && fstatvfs(fd, &status) == 0 &&
	       (uint64_t)status.f_bavail * status.f_frsize >= size + LEAVE_BYTES;
}

/* A descriptor that is locked and has its memory, or -errno. */
static int make_nameless(int directory, size_t size)
{
	int fd = bnet_fd_opened(openat(directory, ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600)), rc = 0;

	if (fd < 0)
		return fd;
	if (!bnet_segment_leaves_enough(fd, size))
		rc = -ENOSPC;
	else if (flock(fd, LOCK_EX | LOCK_NB) < 0)
		rc = -errno;
	else
		rc = -posix_fallocate(fd, 0, (off_t)size);
	if (rc == 0)
		return fd;
	bnet_socket_close(fd);
	return rc;
}

static int give_name(const char *directory, int fd)
{
	char path[64];

	snprintf(segment.path, sizeof(segment.path), "%s/%d-%" PRIx64, directory, (int)getpid(), bnet_random());
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	return linkat(AT_FDCWD, path, AT_FDCWD, segment.path, AT_SYMLINK_FOLLOW) < 0 ? -errno : 0;
}

static int make(const char *where, size_t size, char *path, size_t path_size)
{
	int directory = open_directory(where, path, path_size), fd, rc;

	if (directory < 0)
		return directory;
	remove_old(directory);
	fd = make_nameless(directory, size);
	bnet_socket_close(directory);
	if (fd < 0)
		return fd;
	rc = give_name(path, fd);
	if (rc == 0)
		segment.fd = fd;
	else
		bnet_socket_close(fd);
	return rc;
}

bool bnet_segment_make(const char *where, size_t size)
{
	char path[BNET_FILE_PATH + 64];
	int rc = make(where, size, path, sizeof(path));

	if (rc == 0)
		return true;
	bnet_info(NCCL_NET,
		  "NET/BaguaNet: `bagua-net top` will not see this process: %s: %s. BAGUA_NET_STATS_DIR names another "
		  "directory, BAGUA_NET_STATS=0 asks for none",
		  path, strerror(-rc));
	return false;
}

void bnet_segment_write(size_t at, const void *bytes, size_t size)
{
	/* What a full file system does not take is not shown. */
	(void)!pwrite(segment.fd, bytes, size, (off_t)at);
}

const char *bnet_segment_path(void)
{
	return segment.path;
}

void bnet_segment_touch(void)
{
	futimens(segment.fd, NULL);
}

void bnet_segment_remove(void)
{
	if (segment.fd >= 0)
		unlink(segment.path);
}

void bnet_segment_end(void)
{
	bnet_segment_remove();
	bnet_socket_close(segment.fd);
	segment.fd = -1;
}

void bnet_segment_forget(void)
{
	if (segment.fd >= 0)
		close(segment.fd);
	segment.fd = -1;
}
