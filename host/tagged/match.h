/* SPDX-License-Identifier: MIT
 *
 * Matching: which receive an arriving message belongs to. The progress thread.
 */
#ifndef BNET_TAGGED_MATCH_H
#define BNET_TAGGED_MATCH_H

#include "tagged/tagged.h"

/* Handles a frame from a peer, with its payload. After a DATA, peer->into is its receive. 0, or -errno with the
 * group's error set. */
int bnet_tagged_arrived(struct bnet_tagged *tagged, struct bnet_tagged_peer *peer,
			const struct bnet_tagged_frame *frame, const char *payload);
/* Matches a receive, which is in its list, with the oldest unexpected message for it, if any. 0, or -errno with the
 * group's error set. */
int bnet_tagged_match(struct bnet_tagged *tagged, struct bnet_tagged_op *op);
void bnet_tagged_drop(struct bnet_tagged_unexpected *unexpected);

#endif
