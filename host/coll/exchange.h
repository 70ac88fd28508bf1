/* SPDX-License-Identifier: MIT
 *
 * All-to-all among the ranks of one host. The group's own thread, between bnet_coll_begin and bnet_coll_end.
 */
#ifndef BNET_COLL_EXCHANGE_H
#define BNET_COLL_EXCHANGE_H

#include "coll/blocks.h"
#include "coll/coll.h"

/* Only the sender and the receiver of a block know its size. */
int bnet_coll_local_all_to_all(struct bnet_coll *coll, const struct bnet_coll_blocks *send,
			       const struct bnet_coll_blocks *recv);

#endif
