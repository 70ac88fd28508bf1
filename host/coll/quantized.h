/* SPDX-License-Identifier: MIT
 *
 * Allreduce and reduce-scatter of codes over the network: every rank encodes its input, the owner of a shard adds what
 * the codes of all ranks mean, and in an allreduce encodes the result once. The group's own thread.
 */
#ifndef BNET_COLL_QUANTIZED_H
#define BNET_COLL_QUANTIZED_H

#include <stddef.h>

#include "coll/blocks.h"
#include "coll/coll.h"

struct bnet_coll_quantization {
	int codec;
	size_t block;
	int op; /* an average is that of all ranks of the group */
};

/* What these use of the group's scratch, from its beginning, at most. */
size_t bnet_coll_quantized_scratch(const struct bnet_coll *coll, int places, const struct bnet_coll_quantization *how);

/* Between bnet_coll_begin and bnet_coll_end, among a subgroup of more than one rank. Nothing is empty. residual: NULL,
 * or as long as the input. */
int bnet_coll_quantized_allreduce(struct bnet_coll *coll, const struct bnet_coll_subgroup *subgroup, const char *send,
				  char *recv, size_t count, const struct bnet_coll_quantization *how, char *residual);
/* Blocks are those of the subgroup's places; residual is NULL or has as many. */
int bnet_coll_quantized_reduce_scatter(struct bnet_coll *coll, const struct bnet_coll_subgroup *subgroup,
				       const struct bnet_coll_blocks *from, char *recv,
				       const struct bnet_coll_quantization *how,
				       const struct bnet_coll_blocks *residual);

#endif
