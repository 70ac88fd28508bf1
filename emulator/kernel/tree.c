/* SPDX-License-Identifier: MIT
 *
 * Allreduce on a tree. A rank below the root reduces upwards and broadcasts downwards at once, so that chunks follow
 * each other: each half is a fiber. Called within a channel's fiber.
 */
#include "kernel/kernel.h"
#include "kernel/prims.h"
#include "kernel/reduce.h"
#include "kernel/schedule.h"

enum { ROOT_ARITY = 2 };

struct half {
	struct emu_lane *lane;
	const struct emu_batch *batch;
	const struct emu_coll *coll;
	struct emu_peers peers;
	bool up, down;
};

static void play_half(void *arg)
{
	struct half *half = arg;
	const struct emu_coll *coll = half->coll;
	const size_t element = emu_type_bytes(half->batch->type);
	const struct emu_kind kind = {
		.proto = half->batch->proto,
		.type = half->batch->type,
		.op = half->batch->op,
		.scalar = coll->arg,
		.slices = 1,
		.slice_steps = 1,
	};
	struct emu_prims prims;
	struct emu_rounds rounds;
	struct emu_round round;

	emu_prims_open(&prims, half->lane, &kind, &half->peers);
	emu_rounds_open(&rounds, half->lane->play->launch, half->batch, &coll->schedule);
	while (emu_rounds_next(&rounds, &round)) {
		const size_t offset = (size_t)round.base * element;

		emu_prims_move(&prims, &(struct emu_move){
					       .count = emu_round_count(&round, 0),
					       .receive = prims.froms > 0,
					       .send = prims.tos > 0,
					       .own = half->up,
					       .complete = half->up && half->down,
					       .source = half->up ? (const char *)coll->sendbuff + offset : NULL,
					       .destination = half->down ? (char *)coll->recvbuff + offset : NULL,
				       });
	}
	emu_prims_close(&prims);
}

void emu_play_tree(struct emu_lane *lane, const struct emu_batch *batch, const struct emu_coll *coll)
{
	const int *up = &lane->channel.tree_up, *down = lane->channel.tree_down;
	struct half reduce = {lane, batch, coll, {down, up, EMU_TREE_ARITY, 1}, true, false};
	struct half broadcast = {lane, batch, coll, {up, down, 1, EMU_TREE_ARITY}, false, true};
	struct half root = {lane, batch, coll, {down, down, ROOT_ARITY, ROOT_ARITY}, true, true};
	struct emu_fiber_group halves = {0};

	if (*up < 0) {
		play_half(&root);
		return;
	}
	if (!emu_fiber_start(lane->play->fibers, &halves, play_half, &broadcast)) {
		emu_play_fail(lane->play, "no memory for a fiber");
		return;
	}
	play_half(&reduce);
	emu_fiber_join(lane->play->fibers, &halves);
}
