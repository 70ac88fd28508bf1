/* SPDX-License-Identifier: MIT
 *
 * Collectives among several hosts of equally many ranks. Ranks of one host exchange data through shared memory; between
 * hosts, each rank exchanges a shard of it with its counterparts, which have the same index on theirs. So every byte
 * crosses the network as rarely as possible, and by as many connections as a host has ranks. The group's own thread.
 */
#ifndef BNET_COLL_HIERARCHY_H
#define BNET_COLL_HIERARCHY_H

#include "coll/blocks.h"
#include "coll/coll.h"
#include "coll/quantized.h"

static inline bool bnet_coll_is_hierarchical(const struct bnet_coll *coll)
{
	return coll->host.shared && coll->host.hosts > 1;
}

/* Between bnet_coll_begin and bnet_coll_end. Buffers may be the same where those of the public functions may. Nothing
 * is empty. */
int bnet_coll_hierarchical_allreduce(struct bnet_coll *coll, const char *send, char *recv, size_t count, int dtype,
				     int op);
int bnet_coll_hierarchical_reduce_scatter(struct bnet_coll *coll, const struct bnet_coll_blocks *from, char *recv,
					  int dtype, int op);
int bnet_coll_hierarchical_all_gather(struct bnet_coll *coll, const char *send, const struct bnet_coll_blocks *to);
/* Only what counterparts exchange is encoded. residual: NULL, or as long as the input. */
int bnet_coll_hierarchical_allreduce_q(struct bnet_coll *coll, const char *send, char *recv, size_t count,
				       const struct bnet_coll_quantization *how, char *residual);
int bnet_coll_hierarchical_reduce_scatter_q(struct bnet_coll *coll, const struct bnet_coll_blocks *from, char *recv,
					    const struct bnet_coll_quantization *how, char *residual);

#endif
