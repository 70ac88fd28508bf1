/* SPDX-License-Identifier: MIT
 *
 * NCCL 2.28.3–2.28.9. New: the parts of a transfer lie on consecutive channels.
 */
#include "layout/generation.h"

const struct emu_p2p_fields emu_p2p_2_28 = {
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
	.is_reversed = false,
};

const struct emu_layout emu_nccl_2_28 = {
	.first = 22803,
	.last = 22809,
	.era = EMU_WORK_BATCH,
	.comm = &emu_comm_2_27,
	.channel = &emu_channel_2_26,
	.conn = &emu_conn_2_21,
	.slot = &emu_slot_2_20,
	.args = &emu_args_2_22,
	.functions = &emu_functions_2_24,
	.batch = &emu_batch_2_22,
	.coll = &emu_coll_2_23,
	.p2p = &emu_p2p_2_28,
};
