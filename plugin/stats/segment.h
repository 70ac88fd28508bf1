/* SPDX-License-Identifier: MIT
 *
 * The file of layout.h: in /dev/shm or BAGUA_NET_STATS_DIR, in a directory that only its user enters. It is made
 * without a name, locked, and named then, so that a reader never sees one that nobody holds. The lock says that the
 * process lives, whatever PID namespace it is in. It is written by system calls, not through a mapping: whoever
 * truncates it must not end a job. The control thread, under the engine's lock.
 */
#ifndef BNET_STATS_SEGMENT_H
#define BNET_STATS_SEGMENT_H

#include <stdbool.h>
#include <stddef.h>

/* Makes one of so many bytes, all zero. where: a directory; "": /dev/shm. False: not there, and one line in the log
 * says why. Files of processes that ended some time ago are removed. */
bool bnet_segment_make(const char *where, size_t size);
void bnet_segment_write(size_t at, const void *bytes, size_t size);
/* Its process is alive, for those who ask when it ended. */
void bnet_segment_touch(void);
const char *bnet_segment_path(void);
/* May a file beside it, open for writing, become so large? */
bool bnet_segment_leaves_enough(int fd, size_t size);
/* Its file. */
void bnet_segment_remove(void);
/* … and the descriptor. */
void bnet_segment_end(void);
/* In a forked child: it is the parent's. */
void bnet_segment_forget(void);

#endif
