/* SPDX-License-Identifier: MIT
 *
 * The ring's allreduce, for large messages. The group's own thread. The ring's other operations are public.
 */
#ifndef BNET_COLL_RING_H
#define BNET_COLL_RING_H

#include "coll/coll.h"

/* Between bnet_coll_begin and bnet_coll_end. count > 0, nranks > 1. */
int bnet_coll_ring_allreduce(struct bnet_coll *coll, const void *send, void *recv, size_t count, int dtype, int op);

#endif
