/* SPDX-License-Identifier: MIT
 *
 * Broadcasts of several roots on one ring, which take turns chunk by chunk (NCCL 2.29 and later). Called within a
 * channel's fiber.
 */
#include "kernel/kernel.h"
#include "kernel/prims.h"

static void move_chunk(struct emu_prims *prims, const struct emu_bcast *work, size_t at, size_t count, int ranks)
{
	const bool first = work->ring_depth == 0, last = work->ring_depth == ranks - 1;
	const bool in_place = first && work->sendbuff == work->recvbuff;

	emu_prims_move(prims, &(struct emu_move){
				      .count = (ssize_t)count,
				      .receive = !first,
				      .send = !last || first,
				      .source = first ? (const char *)work->sendbuff + at : NULL,
				      .destination = in_place ? NULL : (char *)work->recvbuff + at,
			      });
}

static size_t turn(const struct emu_bcast *work, size_t done)
{
	const size_t left = work->bytes - done;

	return left < (size_t)work->chunk ? left : (size_t)work->chunk;
}

void emu_play_bcast(struct emu_lane *lane, const struct emu_batch *batch)
{
	const struct emu_kind kind = {.proto = batch->proto, .type = EMU_INT8, .slices = 1, .slice_steps = 1};
	const struct emu_peers peers = {&lane->channel.ring_prev, &lane->channel.ring_next, 1, 1};
	size_t done[EMU_BATCH_WORKS] = {0};
	struct emu_prims prims;
	bool moved = true;

	emu_prims_open(&prims, lane, &kind, &peers);
	while (moved) {
		moved = false;
		for (int i = 0; i < batch->works; i++) {
			const size_t count = turn(&batch->bcast[i], done[i]);

			if (count == 0)
				continue;
			move_chunk(&prims, &batch->bcast[i], done[i], count, lane->play->launch->ranks);
			done[i] += count;
			moved = true;
		}
	}
	emu_prims_close(&prims);
}
