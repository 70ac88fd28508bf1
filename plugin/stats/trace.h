/* SPDX-License-Identifier: MIT
 *
 * Records for `bagua-net trace`. Who wants that makes a file with the name of the process's segment and ".trace", which
 * begins with a number of seconds, and holds its lock while it waits. The process writes BNET_TRACE_BEGUN over the
 * number, behind it what it has recorded in that time, and struct bnet_trace_header over its begin last. Where nobody
 * waits any more, it removes the file. The control thread, under the engine's lock.
 */
#ifndef BNET_STATS_TRACE_H
#define BNET_STATS_TRACE_H

#include <stdbool.h>
#include <stdint.h>

#define BNET_TRACE_MAGIC "BNETTRAC"
#define BNET_TRACE_VERSION 1
#define BNET_TRACE_BEGUN "begun\n"

/* At the file's begin; events follow it. */
struct bnet_trace_header {
	char magic[8];
	uint64_t version, event_bytes, events;
	uint64_t dropped;          /* later ones, for which there was no place in memory */
	uint64_t lost;             /* … and none in the file system, or which were not whole at the end */
	uint64_t began_us, end_us; /* of bnet_now_us, as the events' times are */
	uint64_t wall_us;          /* what the wall clock was ahead of that */
};

/* Looks whether somebody asks for a recording, and goes on with one. path: the segment's. True: it is under way. */
bool bnet_trace_look(const char *path);
/* There is more to write, and nobody waits for anything else. */
bool bnet_trace_has_more(void);
/* Events that found no room, in all recordings. */
uint64_t bnet_trace_dropped(void);
/* The control thread ends: writes what there is. */
void bnet_trace_end(void);
/* In a forked child. */
void bnet_trace_forget(void);
/* The process exits. */
void bnet_trace_remove(const char *path);

#endif
