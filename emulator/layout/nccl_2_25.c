/* SPDX-License-Identifier: MIT
 *
 * NCCL 2.25.1. New: a channel is smaller.
 */
#include "layout/generation.h"

static const struct emu_channel_fields channel = {
	.bytes = 352,
	.peers = 0,
	.ring_prev = 8,
	.ring_next = 12,
	.ring_ranks = 16,
	.ring_index = 24,
	.tree_up = 36,
	.tree_down = 40,
	.work_done = EMU_ABSENT,
	.work_counter = EMU_ABSENT,
};

const struct emu_layout emu_nccl_2_25 = {
	.first = 22501,
	.last = 22501,
	.era = EMU_WORK_BATCH,
	.comm = &emu_comm_2_23,
	.channel = &channel,
	.conn = &emu_conn_2_21,
	.slot = &emu_slot_2_20,
	.args = &emu_args_2_22,
	.functions = &emu_functions_2_24,
	.batch = &emu_batch_2_22,
	.coll = &emu_coll_2_23,
	.p2p = &emu_p2p_2_23,
};
