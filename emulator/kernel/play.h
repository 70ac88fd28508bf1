/* SPDX-License-Identifier: MIT
 *
 * A launch while it is played, and what its channels can play. For the files of this folder; everything here belongs
 * to the thread that plays the launch.
 */
#ifndef EMU_KERNEL_PLAY_H
#define EMU_KERNEL_PLAY_H

#include "kernel/fiber.h"
#include "layout/layout.h"

struct emu_play {
	const struct emu_launch *launch;
	struct emu_fibers *fibers;
	const char *problem; /* NULL: none so far */
};

/* A channel of the launch. */
struct emu_lane {
	struct emu_play *play;
	int index; /* among the launch's channels */
	struct emu_channel channel;
};

/* Each plays one batch of the lane's channel, within a fiber, and returns when it is complete. */
void emu_play_ring(struct emu_lane *lane, const struct emu_batch *batch, const struct emu_coll *coll);
void emu_play_tree(struct emu_lane *lane, const struct emu_batch *batch, const struct emu_coll *coll);
void emu_play_pat(struct emu_lane *lane, const struct emu_batch *batch, const struct emu_coll *coll);
void emu_play_p2p(struct emu_lane *lane, const struct emu_batch *batch);
void emu_play_bcast(struct emu_lane *lane, const struct emu_batch *batch);

/* Ends the whole launch: emu_kernel_play returns -1 with this problem, unless there is one already. */
void emu_play_fail(struct emu_play *play, const char *problem);

#endif
