/* SPDX-License-Identifier: MIT
 *
 * What NCCL says that a communicator is about to do (setNetAttr, v11 and later): before it makes a connection, and
 * before it posts an operation's first message, on the thread that does so. Before v11, and until then, nothing is
 * known.
 *
 * Any thread. NCCL's two threads may set different attributes at a time; each field is then one or the other's.
 */
#ifndef BNET_INTENT_H
#define BNET_INTENT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/abi.h"

/* One direction's maxima; 0: not known. */
struct bnet_intent_flows {
	_Atomic int peers; /* at a time */
	_Atomic int flows; /* to each of them: NCCL's channels, a connection for each */
};

struct bnet_intent {
	_Atomic uint32_t operations; /* 1 << ncclFunc_t; 0: not known */
	struct bnet_intent_flows send, recv;
};

void bnet_intent_set(struct bnet_intent *intent, const ncclNetAttr_t *attr);
/* For a connection's log line: "; NCCL says: AllReduce, up to 4 peers, 2 flows each"; "" if nothing is known. */
void bnet_intent_text(const struct bnet_intent *intent, bool sender, char *text, size_t size);

#endif
