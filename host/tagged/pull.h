/* SPDX-License-Identifier: MIT
 *
 * A message from another process of this host, read out of its memory: one copy instead of two and a network. The
 * progress thread.
 */
#ifndef BNET_TAGGED_PULL_H
#define BNET_TAGGED_PULL_H

#include "tagged/frame.h"

/* 0: all of the message is there. -ESTALE: its sender does not offer it any more. Another error: the kernel does not
 * let this process read the other one's memory, as in some containers, and never will. */
int bnet_tagged_pull(const struct bnet_tagged_offer *offer, char *to, size_t bytes);

#endif
