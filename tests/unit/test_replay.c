/* SPDX-License-Identifier: MIT
 *
 * Serials that were there before, in every order in which tries can arrive.
 */
#include "base/replay.h"

#include <stdint.h>
#include <string.h>

#include "check.h"

#define SERIALS 20000

static bool seen[SERIALS + 1];

/* Serials around one that moves on, each of them several times; what the window has lost counts as seen. */
static void every_serial_is_new_once(void)
{
	struct bnet_replay replay = {0};
	uint32_t highest = 0, state = 7;

	memset(seen, 0, sizeof(seen));
	for (int i = 0; i < 200000; i++) {
		uint32_t serial;

		state = state * 1664525 + 1013904223;
		serial = (uint32_t)i / 10 + (state >> 8) % 1500 + 1;
		if (serial > SERIALS)
			continue;
		check_int(bnet_replay_note(&replay, serial), !seen[serial] && serial + BNET_REPLAY_WINDOW > highest);
		seen[serial] = true;
		if (serial > highest)
			highest = serial;
	}
}

static void the_edges_of_the_window(void)
{
	struct bnet_replay replay = {0};

	check(!bnet_replay_note(&replay, 0));
	check(bnet_replay_note(&replay, 1));
	check(bnet_replay_note(&replay, BNET_REPLAY_WINDOW));
	check(!bnet_replay_note(&replay, 1));
	check(bnet_replay_note(&replay, 2));
	check(bnet_replay_note(&replay, BNET_REPLAY_WINDOW + 1)); /* in the place of 1 */
	check(!bnet_replay_note(&replay, 1));
	check(bnet_replay_note(&replay, 3 * BNET_REPLAY_WINDOW)); /* further than the window */
	check(!bnet_replay_note(&replay, 2 * BNET_REPLAY_WINDOW));
	check(bnet_replay_note(&replay, 2 * BNET_REPLAY_WINDOW + 1));
	check(bnet_replay_note(&replay, UINT32_MAX));
	check(!bnet_replay_note(&replay, UINT32_MAX));
	check(bnet_replay_note(&replay, UINT32_MAX - 1));
}

int main(void)
{
	every_serial_is_new_once();
	the_edges_of_the_window();
	return 0;
}
