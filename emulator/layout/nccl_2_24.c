/* SPDX-License-Identifier: MIT
 *
 * NCCL 2.24.3. New: 8-bit floats, and the sign of a divisor in its scalar.
 */
#include "layout/generation.h"

const struct emu_functions emu_functions_2_24 = {
	.row_to_id = "ncclDevFuncRowToId",
	.rows = emu_rows_2_23,
	.runs = sizeof(emu_rows_2_23) / sizeof(emu_rows_2_23[0]),
	.ops = emu_ops_2_19,
	.op_count = sizeof(emu_ops_2_19) / sizeof(emu_ops_2_19[0]),
	.types = 12,
	.divisor_has_sign = true,
};

const struct emu_layout emu_nccl_2_24 = {
	.first = 22403,
	.last = 22403,
	.era = EMU_WORK_BATCH,
	.comm = &emu_comm_2_23,
	.channel = &emu_channel_2_21,
	.conn = &emu_conn_2_21,
	.slot = &emu_slot_2_20,
	.args = &emu_args_2_22,
	.functions = &emu_functions_2_24,
	.batch = &emu_batch_2_22,
	.coll = &emu_coll_2_23,
	.p2p = &emu_p2p_2_23,
};
