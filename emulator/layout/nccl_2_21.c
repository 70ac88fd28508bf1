/* SPDX-License-Identifier: MIT
 *
 * NCCL 2.21.5. New: each connection has its own distance of slots, a channel has larger NVLS trees.
 */
#include "layout/generation.h"

const struct emu_channel_fields emu_channel_2_21 = {
	.bytes = 368,
	.peers = 0,
	.ring_prev = 8,
	.ring_next = 12,
	.ring_ranks = 16,
	.ring_index = 24,
	.tree_up = 36,
	.tree_down = 40,
	.work_done = 352,
	.work_counter = EMU_ABSENT,
};

const struct emu_conn_fields emu_conn_2_21 = {
	.send = 0,
	.recv = 304,
	.bytes = 152,
	.buffs = 0,
	.tail = 48,
	.head = 56,
	.step = 104,
	.step_bytes = 72,
	.slots = 96,
	.sizes = EMU_ABSENT,
	.offsets = EMU_ABSENT,
};

static const struct emu_elem_fields elem = {
	.bytes = 56,
	.used = {0, 0, 1},
	.arg_is_pointer = {0, 1, 1},
	.registered = {1, 0, 8},
	.root = 4,
	.sendbuff = 8,
	.recvbuff = 16,
	.count = 24,
	.arg = 32,
	.has_part = true,
	.offset = {51, 1, 39},
	.part = {43, 1, 39},
	.chunk = {40, 0, 25},
	.last_chunk = {48, 0, 25},
};

const struct emu_layout emu_nccl_2_21 = {
	.first = 22105,
	.last = 22105,
	.era = EMU_WORK_FIFO,
	.comm = &emu_comm_2_20,
	.channel = &emu_channel_2_21,
	.conn = &emu_conn_2_21,
	.slot = &emu_slot_2_20,
	.args = &emu_args_2_18,
	.functions = &emu_functions_2_20,
	.elem = &elem,
	.elem_p2p = &emu_elem_p2p_2_20,
};
