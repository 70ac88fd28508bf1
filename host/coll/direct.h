/* SPDX-License-Identifier: MIT
 *
 * Blocks read out of another member's memory: one copy instead of two through a bank, made by the rank that wants the
 * block, so that all members copy at the same time. The owner of a block says in a round where it is, and goes on when
 * all have ended that round. The group's own thread.
 *
 * A member that leaves says so before its caller may use the buffers again. So a block is what its owner gave if the
 * owner is still there after the read.
 */
#ifndef BNET_COLL_DIRECT_H
#define BNET_COLL_DIRECT_H

#include "coll/blocks.h"
#include "coll/coll.h"

/* Smaller blocks go through the banks, which stay in the cache. */
#define BNET_COLL_DIRECT_MIN ((size_t)64 * 1024)

/* Can all members read each other's memory? The first call finds out, in two rounds, so all members make it. 0, or
 * -errno with the group's error set, as for all functions here. */
int bnet_coll_direct_able(struct bnet_coll *coll, bool *able);
/* Can other members read these blocks of this rank, where all can read each other's memory? */
bool bnet_coll_direct_readable(const struct bnet_coll_blocks *blocks, int count);
/* Reads from that address of the member. */
int bnet_coll_direct_read(struct bnet_coll *coll, int member, uint64_t from, char *to, size_t bytes);

#endif
