/* SPDX-License-Identifier: MIT
 *
 * NCCL 2.18.1–2.18.6. The number of a function is its row; minimum and maximum have kernels of their own. The kernel
 * computes its channel's part.
 */
#include "layout/generation.h"

/* Every function has rows for all operations, types and algorithms, used or not. */
#define ALL_ALGOS                                                                                             \
	6,                                                                                                    \
	{                                                                                                     \
		EMU_NCCL_TREE, EMU_NCCL_RING, EMU_NCCL_COLLNET_DIRECT, EMU_NCCL_COLLNET_CHAIN, EMU_NCCL_NVLS, \
			EMU_NCCL_NVLS_TREE                                                                    \
	}

static const struct emu_rows rows[] = {
	{EMU_SEND_RECV, false, 0, 0, {0}},
	{EMU_BROADCAST, true, 10, ALL_ALGOS}, /* behind the reductions of one rank, one for each type */
	{EMU_REDUCE, true, 0, ALL_ALGOS},
	{EMU_ALL_GATHER, true, 0, ALL_ALGOS},
	{EMU_REDUCE_SCATTER, true, 0, ALL_ALGOS},
	{EMU_ALL_REDUCE, true, 0, ALL_ALGOS},
};

static const enum emu_kernel_op ops[] = {
	EMU_KERNEL_SUM, EMU_KERNEL_PROD, EMU_KERNEL_MAX, EMU_KERNEL_MIN, EMU_KERNEL_PREMULSUM, EMU_KERNEL_SUMPOSTDIV,
};

static const struct emu_functions functions = {
	.row_to_id = NULL,
	.rows = rows,
	.runs = sizeof(rows) / sizeof(rows[0]),
	.ops = ops,
	.op_count = sizeof(ops) / sizeof(ops[0]),
	.types = 10,
};

static const struct emu_comm_fields comm = {
	.rank = 0,
	.ranks = 4,
	.buffer_bytes = 8,
	.p2p_chunk = EMU_ABSENT,
	.abort_flag = 32,
	.channels = 40,
	.work_consumed = EMU_ABSENT,
	.work_started = EMU_ABSENT,
	.work_completed = EMU_ABSENT,
};

const struct emu_channel_fields emu_channel_2_18 = {
	.bytes = 240,
	.peers = 0,
	.ring_prev = 8,
	.ring_next = 12,
	.ring_ranks = 16,
	.ring_index = 24,
	.tree_up = 36,
	.tree_down = 40,
	.work_done = 224,
	.work_counter = EMU_ABSENT,
};

static const struct emu_conn_fields conn = {
	.send = 0,
	.recv = 192,
	.bytes = 96,
	.buffs = 0,
	.tail = 24,
	.head = 32,
	.step = 80,
	.step_bytes = EMU_ABSENT,
	.slots = EMU_ABSENT,
	.sizes = 64,
	.offsets = 72,
};

const struct emu_args_fields emu_args_2_18 = {.bytes = 24, .comm = 0, .channel_mask = 8, .work_head = 16};

const struct emu_elem_fields emu_elem_2_18 = {
	.bytes = 56,
	.used = {0, 0, 1},
	.arg_is_pointer = {0, 1, 1},
	.registered = {0, 2, 1},
	.warps = {1, 0, 8},
	.root = 40,
	.sendbuff = 8,
	.recvbuff = 16,
	.count = 24,
	.arg = 48,
	.has_part = false,
	.bid = {44, 0, 8},
	.channels = {45, 0, 8},
	.tree_chunk = 32,
};

const struct emu_elem_p2p_fields emu_elem_p2p_2_18 = {
	.bytes = 28,
	.peer = {0, 0, 30},
	.proto = {3, 6, 2},
	.type = {4, 0, 8},
	.groups = {7, 0, 8},
	.buff_high = 8,
	.buff_low = 12,
	.count_high = 16,
	.count_low = 20,
	.chunk = 24,
};

const struct emu_layout emu_nccl_2_18 = {
	.first = 21801,
	.last = 21806,
	.era = EMU_WORK_FIFO,
	.comm = &comm,
	.channel = &emu_channel_2_18,
	.conn = &conn,
	.args = &emu_args_2_18,
	.functions = &functions,
	.elem = &emu_elem_2_18,
	.elem_p2p = &emu_elem_p2p_2_18,
};
