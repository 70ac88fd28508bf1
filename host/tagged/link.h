/* SPDX-License-Identifier: MIT
 *
 * Frames to and from one peer. The progress thread.
 */
#ifndef BNET_TAGGED_LINK_H
#define BNET_TAGGED_LINK_H

#include <stdbool.h>

#include "tagged/tagged.h"

/* One pass over the frames to a peer, or from it; sets *progress if anything moved. 0, or -errno with the group's error
 * set. */
int bnet_tagged_move_out(struct bnet_tagged *tagged, struct bnet_tagged_peer *peer, bool *progress);
int bnet_tagged_move_in(struct bnet_tagged *tagged, struct bnet_tagged_peer *peer, bool *progress);
/* Is a frame to this peer queued or in flight? */
bool bnet_tagged_has_frames(const struct bnet_tagged_peer *peer);
/* One pass over the frames to a peer that waits for a CTS. True: it still does. */
bool bnet_tagged_flush_answers(struct bnet_tagged *tagged, struct bnet_tagged_peer *peer);
/* Deregisters everything from both connections, or from the one to the peer, and empties its queue. The caller closes
 * the connections next. */
void bnet_tagged_release(struct bnet_tagged *tagged, struct bnet_tagged_peer *peer);
void bnet_tagged_release_out(struct bnet_tagged *tagged, struct bnet_tagged_peer *peer);

#endif
