/* SPDX-License-Identifier: MIT
 *
 * Before the first payload of an operation, a rank sends its call to the peer, which compares it with its own: ranks
 * that call different operations find out instead of taking each other's bytes for their own. The group's own thread.
 */
#ifndef BNET_COLL_CHECK_H
#define BNET_COLL_CHECK_H

#include "coll/coll.h"

/* Posts the call for the operation in progress, in this direction, unless that was done. -EAGAIN: no room now. */
int bnet_coll_check_post(struct bnet_coll *coll, int peer, bool sends, bool *progress);
/* -EAGAIN: the call is under way, and what follows it must not be tested. -EPROTO: the ranks differ. */
int bnet_coll_check_test(struct bnet_coll *coll, int peer, bool sends, bool *progress);
/* Sends this rank's call to a peer that differs: it may be waiting for it, and would otherwise learn only that the
 * connection has ended. */
void bnet_coll_check_tell(struct bnet_coll *coll, int peer);
/* A connection with the peer has failed with rc. A peer that has found a difference tells it before it closes its
 * connections, and the end of one may be noticed before the call that another one brings. -EPROTO if so, or rc. */
int bnet_coll_check_lost(struct bnet_coll *coll, int peer, int rc);
/* What two ranks differ in becomes the group's error. -EPROTO. */
int bnet_coll_check_differs(struct bnet_coll *coll, const struct bnet_coll_call *call, int peer);

#endif
