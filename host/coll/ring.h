/* SPDX-License-Identifier: MIT
 *
 * The ring: allreduce of large messages, reduce-scatter and all-gather. The group's own thread.
 */
#ifndef BNET_COLL_RING_H
#define BNET_COLL_RING_H

#include "coll/blocks.h"
#include "coll/coll.h"

/* What these use of the group's scratch, from its beginning. */
static inline size_t bnet_coll_ring_scratch(const struct bnet_coll *coll)
{
	return BNET_COLL_DEPTH * coll->chunk;
}

/* Between bnet_coll_begin and bnet_coll_end, around a subgroup of more than one rank. Blocks are those of its places.
 * Nothing is empty. An average is that of all ranks of the group. */
int bnet_coll_ring_allreduce(struct bnet_coll *coll, const struct bnet_coll_subgroup *subgroup, const char *send,
			     char *recv, size_t count, int dtype, int op);
int bnet_coll_ring_reduce_scatter(struct bnet_coll *coll, const struct bnet_coll_subgroup *subgroup,
				  const struct bnet_coll_blocks *from, char *recv, int dtype, int op);
int bnet_coll_ring_all_gather(struct bnet_coll *coll, const struct bnet_coll_subgroup *subgroup, const char *send,
			      const struct bnet_coll_blocks *to);

#endif
