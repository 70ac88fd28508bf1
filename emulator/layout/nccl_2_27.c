/* SPDX-License-Identifier: MIT
 *
 * NCCL 2.27.3–2.27.7. New: the kernel no longer tells what it consumed; the profiler's counters have slots.
 */
#include "layout/generation.h"

const struct emu_comm_fields emu_comm_2_27 = {
	.rank = 0,
	.ranks = 4,
	.buffer_bytes = 16,
	.p2p_chunk = 28,
	.abort_flag = 48,
	.channels = 56,
	.work_consumed = EMU_ABSENT,
	.work_started = 72,
	.work_completed = 80,
	.counters_have_slots = true,
};

const struct emu_layout emu_nccl_2_27 = {
	.first = 22703,
	.last = 22707,
	.era = EMU_WORK_BATCH,
	.comm = &emu_comm_2_27,
	.channel = &emu_channel_2_26,
	.conn = &emu_conn_2_21,
	.slot = &emu_slot_2_20,
	.args = &emu_args_2_22,
	.functions = &emu_functions_2_24,
	.batch = &emu_batch_2_22,
	.coll = &emu_coll_2_23,
	.p2p = &emu_p2p_2_23,
};
