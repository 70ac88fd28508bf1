/* SPDX-License-Identifier: MIT
 *
 * What the files of this folder share: reading NCCL's memory, where fields may lie at any address, and the meaning of
 * functions and scalars. Any thread.
 */
#ifndef EMU_DECODE_H
#define EMU_DECODE_H

#include <string.h>

#include "layout/generation.h"

static inline int emu_read_int(const char *base, int offset)
{
	int value;

	memcpy(&value, base + offset, sizeof(value));
	return value;
}

static inline uint64_t emu_read_u64(const char *base, int offset)
{
	uint64_t value;

	memcpy(&value, base + offset, sizeof(value));
	return value;
}

/* NULL if the generation lacks the field. */
static inline void *emu_read_pointer(const char *base, int offset)
{
	void *value = NULL;

	if (offset != EMU_ABSENT)
		memcpy(&value, base + offset, sizeof(value));
	return value;
}

static inline uint64_t emu_read_bits(const char *base, struct emu_bits bits)
{
	uint64_t value = 0;

	memcpy(&value, base + bits.byte, (size_t)(bits.bit + bits.width + 7) / 8);
	return value >> bits.bit & ((UINT64_C(1) << bits.width) - 1);
}

/* ---- functions.c ---- */

/* What a function's number stands for. */
struct emu_function {
	bool is_known;
	uint8_t func, algo /* enum emu_nccl_algo */, proto, type, op /* enum emu_kernel_op */;
};

/* NULL, with a description in *what, for a function that is unknown or not emulated. */
const struct emu_function *emu_function_find(unsigned id, const char **what);

/* Sets what the works of a function have in common; op and type are a guess until emu_function_scalar. */
void emu_function_describe(const struct emu_function *function, struct emu_batch *batch);

/* What one work's scalar says: its operation, the sign of its type, and in *arg what kernels take. */
void emu_function_scalar(const struct emu_layout *layout, const struct emu_function *function, uint64_t *arg,
			 enum emu_op *op, enum emu_type *type);

/* The bits of a scalar: arg itself, or what it points to. */
uint64_t emu_function_load(const struct emu_function *function, uint64_t arg, bool is_pointer);

int emu_function_element_bytes(const struct emu_function *function);

/* ---- counters.c ---- */

/* Channel id starts to play works; it has played them. */
void emu_counters_start(const struct emu_launch *launch, int id, int works);
void emu_counters_stop(const struct emu_launch *launch, int id, int works);

/* ---- emu_launch_next of the eras ---- */

int emu_work_fifo_next(const struct emu_launch *launch, int index, struct emu_cursor *cursor, struct emu_batch *batch,
		       const char **what);
int emu_work_batch_next(const struct emu_launch *launch, int index, struct emu_cursor *cursor, struct emu_batch *batch,
			const char **what);

/* ---- layout.c ---- */

char *emu_launch_channel_at(const struct emu_launch *launch, int id);

#endif
