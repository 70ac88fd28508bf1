/* SPDX-License-Identifier: MIT
 *
 * NCCL 2.26.2–2.26.6. New: counters for the profiler.
 */
#include "layout/generation.h"

static const struct emu_comm_fields comm = {
	.rank = 0,
	.ranks = 4,
	.buffer_bytes = 16,
	.p2p_chunk = 28,
	.abort_flag = 56,
	.channels = 64,
	.work_consumed = 40,
	.work_started = 80,
	.work_completed = 88,
	.counters_have_slots = false,
};

const struct emu_channel_fields emu_channel_2_26 = {
	.bytes = 368,
	.peers = 0,
	.ring_prev = 8,
	.ring_next = 12,
	.ring_ranks = 16,
	.ring_index = 24,
	.tree_up = 36,
	.tree_down = 40,
	.work_done = EMU_ABSENT,
	.work_counter = 352,
};

const struct emu_layout emu_nccl_2_26 = {
	.first = 22602,
	.last = 22606,
	.era = EMU_WORK_BATCH,
	.comm = &comm,
	.channel = &emu_channel_2_26,
	.conn = &emu_conn_2_21,
	.slot = &emu_slot_2_20,
	.args = &emu_args_2_22,
	.functions = &emu_functions_2_24,
	.batch = &emu_batch_2_22,
	.coll = &emu_coll_2_23,
	.p2p = &emu_p2p_2_23,
};
