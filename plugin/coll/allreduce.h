/* SPDX-License-Identifier: MIT
 *
 * Allreduce over the network. The group's own thread.
 */
#ifndef BNET_COLL_ALLREDUCE_H
#define BNET_COLL_ALLREDUCE_H

#include "coll/coll.h"

/* Between bnet_coll_begin and bnet_coll_end. nranks > 1, count > 0. */
int bnet_coll_net_allreduce(struct bnet_coll *coll, const char *send, char *recv, size_t count, int dtype, int op,
			    int algo);

#endif
