/* SPDX-License-Identifier: MIT
 *
 * Which serials were there before: a window over the highest ones, as IPsec keeps it (RFC 4303, 3.4.3). Pure.
 */
#ifndef BNET_REPLAY_H
#define BNET_REPLAY_H

#include <stdbool.h>
#include <stdint.h>

/* More than a connection's tries at a time, 64 streams with some each, so that none that is on its way falls out. */
#define BNET_REPLAY_WINDOW 1024

struct bnet_replay {
	uint32_t highest;
	uint64_t seen[BNET_REPLAY_WINDOW / 64]; /* of serial n: bit n modulo the window */
};

/* Notes it. False: it was there before, or is too old to tell. Serials begin with 1. */
bool bnet_replay_note(struct bnet_replay *replay, uint32_t serial);

#endif
