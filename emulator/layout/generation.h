/* SPDX-License-Identifier: MIT
 *
 * How a generation of NCCL releases describes itself: where the fields of its device structures are, in bytes from the
 * structure's start. A generation is one constant struct emu_layout, in a file of its own that defines the parts that
 * this generation changed and names those of earlier ones that still hold. Constants only; any thread may read them.
 */
#ifndef EMU_GENERATION_H
#define EMU_GENERATION_H

#include "layout/layout.h"

/* In place of an offset: the generation lacks the field. */
enum { EMU_ABSENT = -1 };

/* A bit field as x86-64 lays it out: width bits from bit (0: the lowest) of the byte at byte on. Width 0: there is
 * none, and it reads as 0. */
struct emu_bits {
	uint16_t byte;
	uint8_t bit, width;
};

/* ---- every generation ---- */

/* The device communicator. */
struct emu_comm_fields {
	int rank, ranks;
	int buffer_bytes; /* int[EMU_PROTOCOLS] */
	int p2p_chunk, abort_flag, channels;
	int work_consumed;                /* uint32_t *, one for each channel */
	int work_started, work_completed; /* counters for NCCL's profiler, see counters.c */
	bool counters_have_slots;
};

struct emu_channel_fields {
	int bytes;
	int peers;
	int ring_prev, ring_next, ring_ranks, ring_index;
	int tree_up, tree_down;
	int work_done;    /* uint32_t * */
	int work_counter; /* uint64_t */
};

/* A peer consists of its connections: two to send, two to receive. */
struct emu_conn_fields {
	int send, recv; /* in the peer */
	int bytes;
	int buffs, tail, head, step;
	int step_bytes; /* EMU_ABSENT: the kernel knows */
	int slots;      /* pointer to slots (struct emu_slot_fields), */
	int sizes;      /* or to an array of int with the sizes, */
	int offsets;    /* and to one with the offsets */
};

/* The slots by which proxy and kernel tell each other sizes and offsets. */
struct emu_slot_fields {
	int bytes;
	int mode, offset, size;
	int offset_bytes, size_bytes;
};

/* The kernel's arguments. */
struct emu_args_fields {
	int bytes;
	int comm, channel_mask;
	int work_head;                       /* EMU_WORK_FIFO */
	int storage, work_mask, work_buffer; /* EMU_WORK_BATCH */
};

/* ---- device functions ---- */

/* NCCL's algorithms by its own numbers. enum emu_algo has those that are emulated. */
enum emu_nccl_algo {
	EMU_NCCL_TREE,
	EMU_NCCL_RING,
	EMU_NCCL_COLLNET_DIRECT,
	EMU_NCCL_COLLNET_CHAIN,
	EMU_NCCL_NVLS,
	EMU_NCCL_NVLS_TREE,
	EMU_NCCL_PAT,
	EMU_NCCL_ALGOS
};

/* The operations that NCCL builds kernels for. MINMAX is one kernel for both: the scalar tells which. */
enum emu_kernel_op {
	EMU_KERNEL_SUM,
	EMU_KERNEL_PROD,
	EMU_KERNEL_MIN,
	EMU_KERNEL_MAX,
	EMU_KERNEL_MINMAX,
	EMU_KERNEL_PREMULSUM,
	EMU_KERNEL_SUMPOSTDIV
};

/* A run of rows in NCCL's list of functions: a row for each operation and type if the function has them, for each
 * algorithm, for each protocol. */
struct emu_rows {
	enum emu_func func;
	bool has_types;
	uint8_t skipped; /* rows before the run that are something else */
	uint8_t algos;   /* 0: the run is one row */
	uint8_t algo[EMU_NCCL_ALGOS];
};

struct emu_functions {
	const char *row_to_id; /* symbol of the table from rows to the numbers of functions; NULL: they are the same */
	const struct emu_rows *rows;
	int runs;
	const enum emu_kernel_op *ops;
	int op_count;
	int types;
	bool divisor_has_sign; /* the scalar of SUMPOSTDIV is twice the divisor, plus one for signed types */
};

/* ---- EMU_WORK_FIFO: up to 2.21 ---- */

/* One collective of a work. */
struct emu_elem_fields {
	int bytes;
	struct emu_bits used, arg_is_pointer, registered;
	int root, sendbuff, recvbuff, count, arg;
	bool has_part; /* the channel's part is in the element (2.20, 2.21): */
	struct emu_bits offset, part, chunk, last_chunk;
	struct emu_bits warps, bid, channels; /* or it follows from these */
	int tree_chunk;
};

struct emu_elem_p2p_fields {
	int bytes;
	struct emu_bits peer, proto, type, groups, registered;
	int buff_high, buff_low, count_high, count_low, chunk;
};

/* ---- EMU_WORK_BATCH: since 2.22 ---- */

struct emu_batch_fields {
	int bytes;
	struct emu_bits next, extends, type, function;
	int offset_base, offset_set;
};

struct emu_coll_fields {
	int bytes;
	struct emu_bits channel_low, channel_high, arg_is_pointer, registered;
	int root, recvbuff, sendbuff, count_low, count_middle, count_high, arg;
	struct emu_bits grains_low, grains_middle, grains_high;
};

struct emu_p2p_fields {
	int bytes;
	int send_addr, recv_addr, send_bytes, recv_bytes, send_rank, recv_rank;
	struct emu_bits channels, channel_base, send_channels, recv_channels;
	struct emu_bits send_chunk, recv_chunk, send_ll, recv_ll, registered;
	bool is_reversed; /* a channel's distance from the base is its part's number with the bits reversed */
};

struct emu_bcast_fields {
	int bytes;
	int ring_depth, chunk, sendbuff, recvbuff, size;
};

/* ---- a generation ---- */

struct emu_layout {
	int first, last; /* releases, as ncclGetVersion counts */
	enum { EMU_WORK_FIFO, EMU_WORK_BATCH } era;
	const struct emu_comm_fields *comm;
	const struct emu_channel_fields *channel;
	const struct emu_conn_fields *conn;
	const struct emu_slot_fields *slot;
	const struct emu_args_fields *args;
	const struct emu_functions *functions;
	/* EMU_WORK_FIFO */
	const struct emu_elem_fields *elem;
	const struct emu_elem_p2p_fields *elem_p2p;
	/* EMU_WORK_BATCH */
	const struct emu_batch_fields *batch;
	const struct emu_coll_fields *coll;
	const struct emu_p2p_fields *p2p;
	const struct emu_bcast_fields *bcast; /* NULL: there are none */
};

extern const struct emu_layout emu_nccl_2_18, emu_nccl_2_19, emu_nccl_2_20, emu_nccl_2_21, emu_nccl_2_22, emu_nccl_2_23,
	emu_nccl_2_24, emu_nccl_2_25, emu_nccl_2_26, emu_nccl_2_27, emu_nccl_2_28, emu_nccl_2_29, emu_nccl_2_30,
	emu_nccl_2_31, emu_nccl_2_32;

/* Parts that later generations share, by the generation that introduced them. */
extern const struct emu_slot_fields emu_slot_2_20, emu_slot_2_31;
extern const struct emu_channel_fields emu_channel_2_18, emu_channel_2_21, emu_channel_2_26, emu_channel_2_29;
extern const struct emu_comm_fields emu_comm_2_20, emu_comm_2_23, emu_comm_2_27;
extern const struct emu_conn_fields emu_conn_2_21;
extern const struct emu_args_fields emu_args_2_18, emu_args_2_22;
extern const struct emu_functions emu_functions_2_20, emu_functions_2_24, emu_functions_2_29;
extern const struct emu_elem_fields emu_elem_2_18;
extern const struct emu_elem_p2p_fields emu_elem_p2p_2_18, emu_elem_p2p_2_20;
extern const struct emu_batch_fields emu_batch_2_22;
extern const struct emu_coll_fields emu_coll_2_23, emu_coll_2_30;
extern const struct emu_p2p_fields emu_p2p_2_23, emu_p2p_2_28;
extern const struct emu_bcast_fields emu_bcast_2_29;
extern const enum emu_kernel_op emu_ops_2_19[5];
extern const struct emu_rows emu_rows_2_23[6];

#endif
