/* SPDX-License-Identifier: MIT
 *
 * NCCL 2.19.1–2.19.4. New: a table from rows to functions, one kernel for minimum and maximum, a chunk size for send
 * and receive in the communicator, memory handles in the connections.
 */
#include "layout/generation.h"

static const struct emu_rows rows[] = {
	{EMU_SEND_RECV, false, 0, 0, {0}},
	{EMU_ALL_GATHER, false, 0, 2, {EMU_NCCL_RING, EMU_NCCL_NVLS}},
	{EMU_BROADCAST, false, 0, 1, {EMU_NCCL_RING}},
	{EMU_ALL_REDUCE,
	 true,
	 0,
	 6,
	 {EMU_NCCL_TREE, EMU_NCCL_RING, EMU_NCCL_COLLNET_DIRECT, EMU_NCCL_COLLNET_CHAIN, EMU_NCCL_NVLS,
	  EMU_NCCL_NVLS_TREE}},
	{EMU_REDUCE, true, 0, 1, {EMU_NCCL_RING}},
	{EMU_REDUCE_SCATTER, true, 0, 2, {EMU_NCCL_RING, EMU_NCCL_NVLS}},
};

const enum emu_kernel_op emu_ops_2_19[5] = {
	EMU_KERNEL_SUM, EMU_KERNEL_PROD, EMU_KERNEL_MINMAX, EMU_KERNEL_PREMULSUM, EMU_KERNEL_SUMPOSTDIV,
};

static const struct emu_functions functions = {
	.row_to_id = "ncclDevFuncRowToId",
	.rows = rows,
	.runs = sizeof(rows) / sizeof(rows[0]),
	.ops = emu_ops_2_19,
	.op_count = sizeof(emu_ops_2_19) / sizeof(emu_ops_2_19[0]),
	.types = 10,
};

static const struct emu_comm_fields comm = {
	.rank = 0,
	.ranks = 4,
	.buffer_bytes = 8,
	.p2p_chunk = 20,
	.abort_flag = 40,
	.channels = 48,
	.work_consumed = EMU_ABSENT,
	.work_started = EMU_ABSENT,
	.work_completed = EMU_ABSENT,
};

static const struct emu_conn_fields conn = {
	.send = 0,
	.recv = 304,
	.bytes = 152,
	.buffs = 0,
	.tail = 48,
	.head = 56,
	.step = 104,
	.step_bytes = EMU_ABSENT,
	.slots = EMU_ABSENT,
	.sizes = 88,
	.offsets = 96,
};

const struct emu_layout emu_nccl_2_19 = {
	.first = 21901,
	.last = 21904,
	.era = EMU_WORK_FIFO,
	.comm = &comm,
	.channel = &emu_channel_2_18,
	.conn = &conn,
	.args = &emu_args_2_18,
	.functions = &functions,
	.elem = &emu_elem_2_18,
	.elem_p2p = &emu_elem_p2p_2_18,
};
