/* SPDX-License-Identifier: MIT
 *
 * See replay.h.
 */
#include "base/replay.h"

#include <string.h>

static uint64_t *word_of(struct bnet_replay *replay, uint32_t serial)
{
	return &replay->seen[serial % BNET_REPLAY_WINDOW / 64];
}

/* The window moves on: what it leaves behind makes room. */
static void move_to(struct bnet_replay *replay, uint32_t serial)
{
	if (serial - replay->highest >= BNET_REPLAY_WINDOW)
		memset(replay->seen, 0, sizeof(replay->seen));
	else
		for (uint32_t each = replay->highest + 1; each != serial; each++)
			*word_of(replay, each) &= ~(UINT64_C(1) << each % 64);
	replay->highest = serial;
}

bool bnet_replay_note(struct bnet_replay *replay, uint32_t serial)
{
	const uint64_t bit = UINT64_C(1) << serial % 64;

	if (serial == 0)
		return false;
	if (serial > replay->highest) {
		move_to(replay, serial);
		*word_of(replay, serial) |= bit;
		return true;
	}
	if (replay->highest - serial >= BNET_REPLAY_WINDOW || *word_of(replay, serial) & bit)
		return false;
	*word_of(replay, serial) |= bit;
	return true;
}
