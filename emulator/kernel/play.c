/* SPDX-License-Identifier: MIT
 *
 * Plays a launch: a fiber for each channel, which walks through the channel's batches. The calling thread does
 * everything; launches of several streams are played by several threads at once.
 */
#include "kernel/play.h"

#include <stddef.h>

#include "kernel/kernel.h"

enum { MAX_CHANNELS = 64 };

void emu_play_fail(struct emu_play *play, const char *problem)
{
	if (play->problem == NULL)
		play->problem = problem;
	emu_fibers_cancel(play->fibers);
}

static void play_collectives(struct emu_lane *lane, const struct emu_batch *batch)
{
	static void (*const algorithms[])(struct emu_lane *, const struct emu_batch *, const struct emu_coll *) =
		{[EMU_TREE] = emu_play_tree, [EMU_RING] = emu_play_ring, [EMU_PAT] = emu_play_pat};

	for (int i = 0; i < batch->works; i++)
		algorithms[batch->algo](lane, batch, &batch->coll[i]);
}

static void play_lane(void *arg)
{
	struct emu_lane *lane = arg;
	struct emu_play *play = lane->play;
	struct emu_cursor cursor = {0};
	struct emu_batch batch;
	const char *what = "an unknown kernel";
	int result;

	emu_launch_channel(play->launch, play->launch->channel_ids[lane->index], &lane->channel);
	while ((result = emu_launch_next(play->launch, lane->index, &cursor, &batch, &what)) > 0) {
		if (batch.func == EMU_SEND_RECV)
			emu_play_p2p(lane, &batch);
		else if (batch.func == EMU_ALL_GATHER_V)
			emu_play_bcast(lane, &batch);
		else
			play_collectives(lane, &batch);
	}
	if (result < 0)
		emu_play_fail(play, what);
}

int emu_kernel_play(const struct emu_launch *launch, const char **what)
{
	struct emu_play play = {.launch = launch, .fibers = emu_fibers_of_thread()};
	struct emu_lane lanes[MAX_CHANNELS];

	if (play.fibers == NULL) {
		*what = "no memory for fibers";
		return -1;
	}
	for (int i = 0; i < launch->channels && i < MAX_CHANNELS; i++) {
		lanes[i].play = &play;
		lanes[i].index = i;
		if (!emu_fiber_start(play.fibers, NULL, play_lane, &lanes[i])) {
			emu_play_fail(&play, "no memory for a fiber");
			break;
		}
	}
	emu_fibers_run(play.fibers, launch->abort_flag);
	if (play.problem == NULL)
		return 0;
	*what = play.problem;
	return -1;
}
