/* SPDX-License-Identifier: MIT
 *
 * Rounds among the ranks of one host. In a round a rank copies what others need into one of its two banks, publishes
 * the bank, and takes what it needs out of the others' banks. It fills the same bank again two rounds later, once all
 * others have taken theirs. So a rank may be one round ahead, and no rank touches another one's buffers (direct.h is
 * the exception).
 *
 * All members go through the same rounds in the same order, also those that put or take nothing. Each round says which
 * operation it belongs to; who takes compares it with its own, and who does not, in the next rounds. The group's own
 * thread.
 */
#ifndef BNET_COLL_ROUND_H
#define BNET_COLL_ROUND_H

#include "coll/coll.h"

/* Begins the next round and waits until this rank's bank for it is free: then it may be filled. 0, or -errno with the
 * group's error set, as for bnet_coll_round_from. */
int bnet_coll_round_begin(struct bnet_coll *coll, char **bank);
/* Publishes the bank. */
void bnet_coll_round_put(struct bnet_coll *coll);
/* Waits for a member's bank of this round. */
int bnet_coll_round_from(struct bnet_coll *coll, int member, const char **bank);
/* The others' banks of this round are not read any more. */
void bnet_coll_round_end(struct bnet_coll *coll);
/* Waits until all members have ended this round. */
int bnet_coll_round_taken(struct bnet_coll *coll);
/* Says that the member has left, or has ended. */
int bnet_coll_round_left(struct bnet_coll *coll, int member);
/* 0: the member has not left, and this rank's operation is still wanted. */
int bnet_coll_round_present(struct bnet_coll *coll, int member);

#endif
