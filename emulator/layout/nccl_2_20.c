/* SPDX-License-Identifier: MIT
 *
 * NCCL 2.20.3–2.20.5. New: slots between kernel and proxy, the channel's part in each collective, marks of registered
 * buffers in transfers.
 */
#include "layout/generation.h"

static const struct emu_rows rows[] = {
	{EMU_SEND_RECV, false, 0, 0, {0}},
	{EMU_ALL_GATHER, false, 0, 3, {EMU_NCCL_RING, EMU_NCCL_COLLNET_DIRECT, EMU_NCCL_NVLS}},
	{EMU_BROADCAST, false, 0, 1, {EMU_NCCL_RING}},
	{EMU_ALL_REDUCE,
	 true,
	 0,
	 6,
	 {EMU_NCCL_TREE, EMU_NCCL_RING, EMU_NCCL_COLLNET_DIRECT, EMU_NCCL_COLLNET_CHAIN, EMU_NCCL_NVLS,
	  EMU_NCCL_NVLS_TREE}},
	{EMU_REDUCE, true, 0, 1, {EMU_NCCL_RING}},
	{EMU_REDUCE_SCATTER, true, 0, 3, {EMU_NCCL_RING, EMU_NCCL_COLLNET_DIRECT, EMU_NCCL_NVLS}},
};

const struct emu_functions emu_functions_2_20 = {
	.row_to_id = "ncclDevFuncRowToId",
	.rows = rows,
	.runs = sizeof(rows) / sizeof(rows[0]),
	.ops = emu_ops_2_19,
	.op_count = sizeof(emu_ops_2_19) / sizeof(emu_ops_2_19[0]),
	.types = 10,
};

const struct emu_comm_fields emu_comm_2_20 = {
	.rank = 0,
	.ranks = 4,
	.buffer_bytes = 16,
	.p2p_chunk = 28,
	.abort_flag = 56,
	.channels = 64,
	.work_consumed = EMU_ABSENT,
	.work_started = EMU_ABSENT,
	.work_completed = EMU_ABSENT,
};

static const struct emu_channel_fields channel = {
	.bytes = 272,
	.peers = 0,
	.ring_prev = 8,
	.ring_next = 12,
	.ring_ranks = 16,
	.ring_index = 24,
	.tree_up = 36,
	.tree_down = 40,
	.work_done = 256,
	.work_counter = EMU_ABSENT,
};

static const struct emu_conn_fields conn = {
	.send = 0,
	.recv = 288,
	.bytes = 144,
	.buffs = 0,
	.tail = 48,
	.head = 56,
	.step = 96,
	.step_bytes = EMU_ABSENT,
	.slots = 88,
	.sizes = EMU_ABSENT,
	.offsets = EMU_ABSENT,
};

const struct emu_slot_fields emu_slot_2_20 = {
	.bytes = 24,
	.mode = 0,
	.offset = 4,
	.size = 8,
	.offset_bytes = 4,
	.size_bytes = 8,
};

static const struct emu_elem_fields elem = {
	.bytes = 56,
	.used = {0, 0, 1},
	.arg_is_pointer = {0, 1, 1},
	.registered = {0, 2, 1},
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

const struct emu_elem_p2p_fields emu_elem_p2p_2_20 = {
	.bytes = 28,
	.peer = {0, 0, 30},
	.proto = {3, 6, 2},
	.type = {4, 0, 8},
	.groups = {7, 0, 8},
	.registered = {5, 0, 1},
	.buff_high = 8,
	.buff_low = 12,
	.count_high = 16,
	.count_low = 20,
	.chunk = 24,
};

const struct emu_layout emu_nccl_2_20 = {
	.first = 22003,
	.last = 22005,
	.era = EMU_WORK_FIFO,
	.comm = &emu_comm_2_20,
	.channel = &channel,
	.conn = &conn,
	.slot = &emu_slot_2_20,
	.args = &emu_args_2_18,
	.functions = &emu_functions_2_20,
	.elem = &elem,
	.elem_p2p = &emu_elem_p2p_2_20,
};
