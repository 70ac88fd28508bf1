/* SPDX-License-Identifier: MIT
 *
 * NCCL 2.31.2. New: longer offsets in the slots. No source was published: the offsets are from the library's own debug
 * information.
 */
#include "layout/generation.h"

const struct emu_slot_fields emu_slot_2_31 = {
	.bytes = 32,
	.mode = 0,
	.offset = 8,
	.size = 16,
	.offset_bytes = 8,
	.size_bytes = 8,
};

const struct emu_layout emu_nccl_2_31 = {
	.first = 23102,
	.last = 23102,
	.era = EMU_WORK_BATCH,
	.comm = &emu_comm_2_27,
	.channel = &emu_channel_2_29,
	.conn = &emu_conn_2_21,
	.slot = &emu_slot_2_31,
	.args = &emu_args_2_22,
	.functions = &emu_functions_2_29,
	.batch = &emu_batch_2_22,
	.coll = &emu_coll_2_30,
	.p2p = &emu_p2p_2_28,
	.bcast = &emu_bcast_2_29,
};
