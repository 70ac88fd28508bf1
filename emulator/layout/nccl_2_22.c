/* SPDX-License-Identifier: MIT
 *
 * NCCL 2.22.3. New: batches of works in place of linked ones, in one buffer of arguments.
 */
#include "layout/generation.h"

static const struct emu_comm_fields comm = {
	.rank = 0,
	.ranks = 4,
	.buffer_bytes = 16,
	.p2p_chunk = 28,
	.abort_flag = 48,
	.channels = 56,
	.work_consumed = 32,
	.work_started = EMU_ABSENT,
	.work_completed = EMU_ABSENT,
};

const struct emu_args_fields emu_args_2_22 = {
	.bytes = 32,
	.comm = 0,
	.channel_mask = 8,
	.storage = 16,
	.work_mask = 20,
	.work_buffer = 24,
};

const struct emu_batch_fields emu_batch_2_22 = {
	.bytes = 16,
	.next = {0, 0, 14},
	.extends = {1, 6, 1},
	.type = {1, 7, 2},
	.function = {2, 1, 15},
	.offset_base = 4,
	.offset_set = 8,
};

static const struct emu_coll_fields coll = {
	.bytes = 64,
	.channel_low = {0, 0, 8},
	.channel_high = {1, 0, 8},
	.arg_is_pointer = {3, 0, 1},
	.registered = {3, 1, 2},
	.root = 4,
	.recvbuff = 8,
	.sendbuff = 16,
	.count_low = 24,
	.count_middle = 32,
	.count_high = 40,
	.arg = 56,
	.grains_low = {48, 0, 21},
	.grains_middle = {50, 5, 21},
	.grains_high = {53, 2, 21},
};

static const struct emu_p2p_fields p2p = {
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
	.registered = {46, 2, 2},
	.is_reversed = true,
};

const struct emu_layout emu_nccl_2_22 = {
	.first = 22203,
	.last = 22203,
	.era = EMU_WORK_BATCH,
	.comm = &comm,
	.channel = &emu_channel_2_21,
	.conn = &emu_conn_2_21,
	.slot = &emu_slot_2_20,
	.args = &emu_args_2_22,
	.functions = &emu_functions_2_20,
	.batch = &emu_batch_2_22,
	.coll = &coll,
	.p2p = &p2p,
};
