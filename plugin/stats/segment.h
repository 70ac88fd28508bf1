/* SPDX-License-Identifier: MIT
 *
 * The file of layout.h: in /dev/shm or BAGUA_NET_STATS_DIR, in a directory that only its user enters. It is made without
 * a name, locked, and named then, so that a reader never sees one that nobody holds. The lock says that the process
 * lives, whatever PID namespace it is in. Its memory is there when it is named: a full file system must not end a job
 * that touches it later. The control thread, under the engine's lock.
 */
#ifndef BNET_STATS_SEGMENT_H
#define BNET_STATS_SEGMENT_H

#include <stddef.h>

/* Makes one of so many bytes, and returns its memory. where: a directory; "": /dev/shm. NULL: not there, and one line in
 * the log says why. Files of processes that ended some time ago are removed. */
void *bnet_segment_make(const char *where, size_t size);
/* Its process is alive, for those who ask when it ended. */
void bnet_segment_touch(void);
/* Its file. The memory stays. */
void bnet_segment_remove(void);
/* Both. */
void bnet_segment_end(void);
/* In a forked child: it is the parent's. */
void bnet_segment_forget(void);

#endif
