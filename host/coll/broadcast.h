/* SPDX-License-Identifier: MIT
 *
 * Broadcast over the network. The group's own thread.
 */
#ifndef BNET_COLL_BROADCAST_H
#define BNET_COLL_BROADCAST_H

#include "coll/coll.h"

/* Between bnet_coll_begin and bnet_coll_end. nranks > 1, bytes > 0. */
int bnet_coll_net_broadcast(struct bnet_coll *coll, char *buf, size_t bytes, int root);

#endif
