/* SPDX-License-Identifier: MIT
 *
 * Reduce, gather and scatter over the network. The group's own thread.
 */
#ifndef BNET_COLL_ROOT_H
#define BNET_COLL_ROOT_H

#include "coll/blocks.h"
#include "coll/coll.h"

/* Between bnet_coll_begin and bnet_coll_end. nranks > 1, bytes > 0. Only the root uses the blocks, and recv of a
 * reduce. */
int bnet_coll_net_reduce(struct bnet_coll *coll, const char *send, char *recv, size_t bytes, int dtype, int op,
			 int root);
int bnet_coll_net_gather(struct bnet_coll *coll, const char *send, size_t bytes, const struct bnet_coll_blocks *to,
			 int root);
int bnet_coll_net_scatter(struct bnet_coll *coll, const struct bnet_coll_blocks *from, char *recv, size_t bytes,
			  int root);

#endif
