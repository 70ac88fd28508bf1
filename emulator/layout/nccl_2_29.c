/* SPDX-License-Identifier: MIT
 *
 * NCCL 2.29.2–2.29.7. New: batched broadcasts (the function allgatherv), a second table of ranks in the ring.
 */
#include "layout/generation.h"

static const struct emu_rows rows[] = {
	{EMU_SEND_RECV, false, 0, 0, {0}},
	{EMU_ALL_GATHER, false, 0, 4, {EMU_NCCL_RING, EMU_NCCL_COLLNET_DIRECT, EMU_NCCL_NVLS, EMU_NCCL_PAT}},
	{EMU_BROADCAST, false, 0, 1, {EMU_NCCL_RING}},
	{EMU_ALL_GATHER_V, false, 0, 1, {EMU_NCCL_RING}},
	{EMU_ALL_REDUCE,
	 true,
	 0,
	 6,
	 {EMU_NCCL_TREE, EMU_NCCL_RING, EMU_NCCL_COLLNET_DIRECT, EMU_NCCL_COLLNET_CHAIN, EMU_NCCL_NVLS,
	  EMU_NCCL_NVLS_TREE}},
	{EMU_REDUCE, true, 0, 1, {EMU_NCCL_RING}},
	{EMU_REDUCE_SCATTER, true, 0, 4, {EMU_NCCL_RING, EMU_NCCL_COLLNET_DIRECT, EMU_NCCL_NVLS, EMU_NCCL_PAT}},
};

const struct emu_functions emu_functions_2_29 = {
	.row_to_id = "ncclDevFuncRowToId",
	.rows = rows,
	.runs = sizeof(rows) / sizeof(rows[0]),
	.ops = emu_ops_2_19,
	.op_count = sizeof(emu_ops_2_19) / sizeof(emu_ops_2_19[0]),
	.types = 12,
	.divisor_has_sign = true,
};

const struct emu_channel_fields emu_channel_2_29 = {
	.bytes = 368,
	.peers = 0,
	.ring_prev = 8,
	.ring_next = 12,
	.ring_ranks = 16,
	.ring_index = 32,
	.tree_up = 44,
	.tree_down = 48,
	.work_done = EMU_ABSENT,
	.work_counter = 360,
};

const struct emu_bcast_fields emu_bcast_2_29 = {
	.bytes = 48,
	.ring_depth = 0,
	.chunk = 4,
	.sendbuff = 8,
	.recvbuff = 16,
	.size = 24,
};

const struct emu_layout emu_nccl_2_29 = {
	.first = 22902,
	.last = 22907,
	.era = EMU_WORK_BATCH,
	.comm = &emu_comm_2_27,
	.channel = &emu_channel_2_29,
	.conn = &emu_conn_2_21,
	.slot = &emu_slot_2_20,
	.args = &emu_args_2_22,
	.functions = &emu_functions_2_29,
	.batch = &emu_batch_2_22,
	.coll = &emu_coll_2_23,
	.p2p = &emu_p2p_2_28,
	.bcast = &emu_bcast_2_29,
};
