/* SPDX-License-Identifier: MIT
 *
 * NCCL 2.30.3–2.30.7. New: a collective is padded.
 */
#include "layout/generation.h"

const struct emu_coll_fields emu_coll_2_30 = {
	.bytes = 128,
	.channel_low = {0, 0, 8},
	.channel_high = {1, 0, 8},
	.arg_is_pointer = {3, 0, 1},
	.registered = {3, 1, 2},
	.root = 4,
	.recvbuff = 24,
	.sendbuff = 32,
	.count_low = 80,
	.count_middle = 88,
	.count_high = 96,
	.arg = 112,
	.grains_low = {104, 0, 21},
	.grains_middle = {106, 5, 21},
	.grains_high = {109, 2, 21},
};

const struct emu_layout emu_nccl_2_30 = {
	.first = 23003,
	.last = 23007,
	.era = EMU_WORK_BATCH,
	.comm = &emu_comm_2_27,
	.channel = &emu_channel_2_29,
	.conn = &emu_conn_2_21,
	.slot = &emu_slot_2_20,
	.args = &emu_args_2_22,
	.functions = &emu_functions_2_29,
	.batch = &emu_batch_2_22,
	.coll = &emu_coll_2_30,
	.p2p = &emu_p2p_2_28,
	.bcast = &emu_bcast_2_29,
};
