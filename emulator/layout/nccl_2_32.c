/* SPDX-License-Identifier: MIT
 *
 * NCCL 2.32.3. New: a collective without padding, as before 2.30, and shorter numbers of functions. No source was
 * published: the offsets are from the library's own debug information.
 */
#include "layout/generation.h"

static const struct emu_batch_fields batch = {
	.bytes = 16,
	.next = {0, 0, 14},
	.extends = {1, 6, 1},
	.type = {1, 7, 2},
	.function = {2, 1, 11},
	.offset_base = 4,
	.offset_set = 8,
};

const struct emu_layout emu_nccl_2_32 = {
	.first = 23203,
	.last = 23203,
	.era = EMU_WORK_BATCH,
	.comm = &emu_comm_2_27,
	.channel = &emu_channel_2_29,
	.conn = &emu_conn_2_21,
	.slot = &emu_slot_2_31,
	.args = &emu_args_2_22,
	.functions = &emu_functions_2_29,
	.batch = &batch,
	.coll = &emu_coll_2_23,
	.p2p = &emu_p2p_2_28,
	.bcast = &emu_bcast_2_29,
};
