/* SPDX-License-Identifier: MIT
 *
 * See trace.h.
 */
#include "stats/trace.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/config.h"
#include "base/recorder.h"
#include "base/socket.h"
#include "common/clock.h"
#include "stats/segment.h"

#define MOST_SECONDS 60
/* Events that are written at a time: in memory, where the file is unless BAGUA_NET_STATS_DIR says otherwise, those who
 * need the engine's lock wait for less than a millisecond. */
#define AT_A_TIME 4096
#define NAME_BYTES (BNET_FILE_PATH + 112)

static struct {
	int fd; /* of the file, from the request to the end */
	bool writing;
	uint64_t until_us;
	size_t place, size; /* what is written next, and how much there is */
	struct bnet_trace_header header;
} trace = {.fd = -1};

static uint64_t dropped; /* of all recordings */

static void forget(void)
{
	bnet_recording_stop();
	bnet_socket_close(trace.fd);
	trace.fd = -1;
	trace.writing = false;
}

static void finish(void)
{
	dropped += trace.header.dropped + trace.header.lost;
	memcpy(trace.header.magic, BNET_TRACE_MAGIC, sizeof(trace.header.magic));
	(void)!pwrite(trace.fd, &trace.header, sizeof(trace.header), 0);
	bnet_recording_free();
	forget();
}

static void name_of(char name[NAME_BYTES], const char *path)
{
	snprintf(name, NAME_BYTES, "%s.trace", path);
}

void bnet_trace_remove(const char *path)
{
	char name[NAME_BYTES];

	name_of(name, path);
	unlink(name);
}

/* By now another request may have the name. */
static void remove_if_is(const char *path, int fd)
{
	struct stat named, opened;
	char name[NAME_BYTES];

	name_of(name, path);
	if (lstat(name, &named) == 0 && fstat(fd, &opened) == 0 && named.st_dev == opened.st_dev &&
	    named.st_ino == opened.st_ino)
		unlink(name);
}

/* Whoever waits holds the lock. */
static bool is_awaited(int fd)
{
	return flock(fd, LOCK_SH | LOCK_NB) < 0 && errno == EWOULDBLOCK;
}

/* Opens the request, if it is a file of this user's and somebody waits for it. -1: there is no such request. */
static int open_request(const char *path)
{
	char name[NAME_BYTES];
	struct stat status;
	int fd;

	name_of(name, path);
	fd = bnet_fd_opened(open(name, O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
	if (fd < 0)
		return -1;
	if (fstat(fd, &status) == 0 && S_ISREG(status.st_mode) && status.st_uid == geteuid() &&
	    bnet_segment_leaves_enough(fd, sizeof(trace.header))) {
		if (is_awaited(fd))
			return fd;
		remove_if_is(path, fd);
	}
	bnet_socket_close(fd);
	return -1;
}

/* 0: it has another content, as one that is done has. */
static uint64_t seconds_of(int fd)
{
	char text[8] = "";
	long seconds;
	char *end;

	if (pread(fd, text, sizeof(text) - 1, 0) <= 0)
		return 0;
	seconds = strtol(text, &end, 10);
	return *end == '\n' && seconds > 0 && seconds <= MOST_SECONDS ? (uint64_t)seconds : 0;
}

static bool begin(const char *path)
{
	int fd = open_request(path);
	uint64_t seconds = fd < 0 ? 0 : seconds_of(fd);

	if (seconds == 0 || !bnet_recording_begin()) {
		bnet_socket_close(fd);
		return false;
	}
	(void)!pwrite(fd, BNET_TRACE_BEGUN, strlen(BNET_TRACE_BEGUN), 0);
	trace.fd = fd;
	trace.header = (struct bnet_trace_header){
		.version = BNET_TRACE_VERSION,
		.event_bytes = sizeof(struct bnet_event),
		.began_us = bnet_now_us(),
		.wall_us = bnet_wall_us() - bnet_now_us(),
	};
	trace.until_us = trace.header.began_us + seconds * 1000000;
	return true;
}

static void stop(void)
{
	bnet_recording_stop();
	trace.header.end_us = bnet_now_us();
	trace.size = bnet_recording_size(&trace.header.dropped);
	trace.place = 0;
	trace.writing = true;
	if (!bnet_segment_leaves_enough(trace.fd, sizeof(trace.header) + trace.size * sizeof(struct bnet_event))) {
		trace.header.lost = trace.size;
		trace.size = 0;
	}
}

static void write_some(void)
{
	static struct bnet_event events[AT_A_TIME];
	size_t end = trace.place + AT_A_TIME < trace.size ? trace.place + AT_A_TIME : trace.size, count = 0;
	off_t at = (off_t)(sizeof(trace.header) + trace.header.events * sizeof(struct bnet_event));

	for (; trace.place < end; trace.place++)
		if (bnet_recording_get(trace.place, &events[count]))
			count++;
		else
			trace.header.lost++;
	if (count && pwrite(trace.fd, events, count * sizeof(*events), at) != (ssize_t)(count * sizeof(*events)))
		trace.header.lost += count;
	else
		trace.header.events += count;
	if (trace.place == trace.size)
		finish();
}

bool bnet_trace_look(const char *path)
{
	if (trace.fd < 0)
		return begin(path);
	if (!is_awaited(trace.fd)) {
		remove_if_is(path, trace.fd);
		forget();
		return false;
	}
	if (trace.writing)
		write_some();
	else if (bnet_now_us() >= trace.until_us)
		stop();
	return trace.fd >= 0;
}

uint64_t bnet_trace_dropped(void)
{
	return dropped;
}

bool bnet_trace_has_more(void)
{
	return trace.writing;
}

void bnet_trace_end(void)
{
	if (trace.fd >= 0 && !trace.writing)
		stop();
	while (trace.writing)
		write_some();
}

void bnet_trace_forget(void)
{
	forget();
}
