/* SPDX-License-Identifier: MIT
 *
 * NCCL 2.23.4. New: the algorithm PAT, remote addresses in collectives, more marks of registered buffers.
 */
#include "layout/generation.h"

const struct emu_rows emu_rows_2_23[6] = {
	{EMU_SEND_RECV, false, 0, 0, {0}},
	{EMU_ALL_GATHER, false, 0, 4, {EMU_NCCL_RING, EMU_NCCL_COLLNET_DIRECT, EMU_NCCL_NVLS, EMU_NCCL_PAT}},
	{EMU_BROADCAST, false, 0, 1, {EMU_NCCL_RING}},
	{EMU_ALL_REDUCE,
	 true,
	 0,
	 6,
	 {EMU_NCCL_TREE, EMU_NCCL_RING, EMU_NCCL_COLLNET_DIRECT, EMU_NCCL_COLLNET_CHAIN, EMU_NCCL_NVLS,
	  EMU_NCCL_NVLS_TREE}},
	{EMU_REDUCE, true, 0, 1, {EMU_NCCL_RING}},
	{EMU_REDUCE_SCATTER, true, 0, 4, {EMU_NCCL_RING, EMU_NCCL_COLLNET_DIRECT, EMU_NCCL_NVLS, EMU_NCCL_PAT}},
};

static const struct emu_functions functions = {
	.row_to_id = "ncclDevFuncRowToId",
	.rows = emu_rows_2_23,
	.runs = sizeof(emu_rows_2_23) / sizeof(emu_rows_2_23[0]),
	.ops = emu_ops_2_19,
	.op_count = sizeof(emu_ops_2_19) / sizeof(emu_ops_2_19[0]),
	.types = 10,
};

const struct emu_comm_fields emu_comm_2_23 = {
	.rank = 0,
	.ranks = 4,
	.buffer_bytes = 16,
	.p2p_chunk = 28,
	.abort_flag = 56,
	.channels = 64,
	.work_consumed = 40,
	.work_started = EMU_ABSENT,
	.work_completed = EMU_ABSENT,
};

const struct emu_coll_fields emu_coll_2_23 = {
	.bytes = 96,
	.channel_low = {0, 0, 8},
	.channel_high = {1, 0, 8},
	.arg_is_pointer = {3, 0, 1},
	.registered = {3, 1, 2},
	.root = 4,
	.recvbuff = 8,
	.sendbuff = 16,
	.count_low = 56,
	.count_middle = 64,
	.count_high = 72,
	.arg = 88,
	.grains_low = {80, 0, 21},
	.grains_middle = {82, 5, 21},
	.grains_high = {85, 2, 21},
};

const struct emu_p2p_fields emu_p2p_2_23 = {
	.bytes = 48,
	.send_addr = 0,
	.recv_addr = 8,
	.send_bytes = 16,
	.recv_bytes = 24,
	.send_rank = 32,
	.recv_rank = 36,
	.channels = {40, 0, 8},
	.channel_base = {41, 0, 8},
	.send_channels = {42, 0, 8},
	.recv_channels = {43, 0, 8},
	.send_chunk = {44, 0, 8},
	.recv_chunk = {45, 0, 8},
	.send_ll = {46, 0, 1},
	.recv_ll = {46, 1, 1},
	.registered = {46, 2, 4},
	.is_reversed = true,
};

const struct emu_layout emu_nccl_2_23 = {
	.first = 22304,
	.last = 22304,
	.era = EMU_WORK_BATCH,
	.comm = &emu_comm_2_23,
	.channel = &emu_channel_2_21,
	.conn = &emu_conn_2_21,
	.slot = &emu_slot_2_20,
	.args = &emu_args_2_22,
	.functions = &functions,
	.batch = &emu_batch_2_22,
	.coll = &emu_coll_2_23,
	.p2p = &emu_p2p_2_23,
};
