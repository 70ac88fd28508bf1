/* SPDX-License-Identifier: MIT
 *
 * One connection to and one from every peer. The group's own thread. bnet_coll_connect makes all of them at once; the
 * tagged messages make each when they first need it.
 */
#ifndef BNET_COLL_CONNECT_H
#define BNET_COLL_CONNECT_H

#include <stdbool.h>

#include "coll/coll.h"

/* Keeps the handles that the peers' rows have for this rank. From here on the group counts as connected, unless it
 * fails. */
int bnet_coll_take_rows(struct bnet_coll *coll, const void *rows);
/* One attempt, which never waits, at the connection to or from a peer; its comm stays NULL until it is made. */
int bnet_coll_try_connect(struct bnet_coll *coll, int rank, bool *progress);
int bnet_coll_try_accept(struct bnet_coll *coll, int rank, bool *progress);

#endif
