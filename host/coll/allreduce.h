/* SPDX-License-Identifier: MIT
 *
 * Allreduce over the network. The group's own thread.
 */
#ifndef BNET_COLL_ALLREDUCE_H
#define BNET_COLL_ALLREDUCE_H

#include "coll/coll.h"

/* Between bnet_coll_begin and bnet_coll_end, among a subgroup of more than one rank. count > 0. An average is that of
 * all ranks of the group. */
int bnet_coll_net_allreduce(struct bnet_coll *coll, const struct bnet_coll_subgroup *subgroup, const char *send,
			    char *recv, size_t count, int dtype, int op, int algo);
/* Is a message so small that few steps, among so many ranks, are faster than few bytes? */
bool bnet_coll_is_small(size_t bytes, int nranks);

#endif
