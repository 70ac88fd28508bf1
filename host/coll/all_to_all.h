/* SPDX-License-Identifier: MIT
 *
 * All-to-all and barrier over the network. The group's own thread.
 */
#ifndef BNET_COLL_ALL_TO_ALL_H
#define BNET_COLL_ALL_TO_ALL_H

#include "coll/blocks.h"
#include "coll/coll.h"

/* Between bnet_coll_begin and bnet_coll_end. nranks > 1. */
int bnet_coll_net_all_to_all(struct bnet_coll *coll, const struct bnet_coll_blocks *send,
			     const struct bnet_coll_blocks *recv);
int bnet_coll_net_barrier(struct bnet_coll *coll);

#endif
