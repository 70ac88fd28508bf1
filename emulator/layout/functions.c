/* SPDX-License-Identifier: MIT
 *
 * What the number of an NCCL device function means. The table is filled once, when the layout is bound to the loaded
 * library, and only read after that: any thread may then look up.
 */
#include "layout/decode.h"

enum { FUNCTIONS = 5632 };

static struct emu_function functions[FUNCTIONS];

/* Every sentence exists, so that one may outlive the thread that met the function. */
#define WITH_ALGO(func)                                                                                        \
	{                                                                                                      \
		func " with TREE", func " with RING", func " with COLLNET_DIRECT", func " with COLLNET_CHAIN", \
			func " with NVLS", func " with NVLS_TREE", func " with PAT"                            \
	}

static const char *const descriptions[][EMU_NCCL_ALGOS] = {
	[EMU_BROADCAST] = WITH_ALGO("broadcast"),     [EMU_REDUCE] = WITH_ALGO("reduce"),
	[EMU_ALL_GATHER] = WITH_ALGO("allgather"),    [EMU_REDUCE_SCATTER] = WITH_ALGO("reducescatter"),
	[EMU_ALL_REDUCE] = WITH_ALGO("allreduce"),    [EMU_SEND_RECV] = WITH_ALGO("send and receive"),
	[EMU_ALL_GATHER_V] = WITH_ALGO("allgatherv"),
};

/* Enters the rows of one function, operation and type, from row on; returns the row after them. */
static int enter(int row, const struct emu_rows *run, enum emu_kernel_op op, int type, const int *row_to_id)
{
	const int count = run->algos ? run->algos * EMU_PROTOCOLS : 1;

	for (int i = 0; i < count; i++, row++) {
		const int id = row_to_id ? row_to_id[row] : row;

		/* Rows that share a function compute the same; the scalar tells where they do not. */
		if (id < 0 || id >= FUNCTIONS || functions[id].is_known)
			continue;
		functions[id] = (struct emu_function){
			.is_known = true,
			.func = (uint8_t)run->func,
			.algo = run->algos ? run->algo[i / EMU_PROTOCOLS] : EMU_NCCL_RING,
			.proto = (uint8_t)(run->algos ? i % EMU_PROTOCOLS : EMU_SIMPLE),
			.type = (uint8_t)type,
			.op = (uint8_t)op,
		};
	}
	return row;
}

static void enter_all(const struct emu_functions *list, const int *row_to_id)
{
	int row = 0;

	memset(functions, 0, sizeof(functions));
	for (const struct emu_rows *run = list->rows; run < list->rows + list->runs; run++) {
		row += run->skipped;
		if (!run->has_types) {
			row = enter(row, run, EMU_KERNEL_SUM, EMU_INT8, row_to_id);
			continue;
		}
		for (int op = 0; op < list->op_count; op++)
			for (int type = 0; type < list->types; type++)
				row = enter(row, run, list->ops[op], type, row_to_id);
	}
}

int emu_layout_bind(const struct emu_layout *layout, void *(*symbol)(const char *name), const char **missing)
{
	const char *name = layout->functions->row_to_id;
	const int *row_to_id = name ? symbol(name) : NULL;

	if (name && !row_to_id) {
		*missing = name;
		return -1;
	}
	enter_all(layout->functions, row_to_id);
	return 0;
}

static bool is_emulated(const struct emu_function *function)
{
	switch (function->algo) {
	case EMU_NCCL_RING:
		return true;
	case EMU_NCCL_TREE:
		return function->func == EMU_ALL_REDUCE;
	case EMU_NCCL_PAT:
		return function->func == EMU_ALL_GATHER || function->func == EMU_REDUCE_SCATTER;
	default:
		return false;
	}
}

const struct emu_function *emu_function_find(unsigned id, const char **what)
{
	const struct emu_function *function = id < FUNCTIONS ? &functions[id] : NULL;

	if (!function || !function->is_known) {
		*what = "a device function that NCCL's table does not list";
		return NULL;
	}
	if (!is_emulated(function)) {
		*what = descriptions[function->func][function->algo];
		return NULL;
	}
	return function;
}

static enum emu_algo algo_of(const struct emu_function *function)
{
	switch (function->algo) {
	case EMU_NCCL_TREE:
		return EMU_TREE;
	case EMU_NCCL_PAT:
		return EMU_PAT;
	default:
		return EMU_RING;
	}
}

static enum emu_op op_of(const struct emu_function *function)
{
	static const enum emu_op ops[] = {
		[EMU_KERNEL_SUM] = EMU_SUM,
		[EMU_KERNEL_PROD] = EMU_PROD,
		[EMU_KERNEL_MIN] = EMU_MIN,
		[EMU_KERNEL_MAX] = EMU_MAX,
		[EMU_KERNEL_MINMAX] = EMU_MIN,
		[EMU_KERNEL_PREMULSUM] = EMU_PREMULSUM,
		[EMU_KERNEL_SUMPOSTDIV] = EMU_SUMPOSTDIV,
	};

	return ops[function->op];
}

void emu_function_describe(const struct emu_function *function, struct emu_batch *batch)
{
	batch->func = function->func;
	batch->algo = algo_of(function);
	batch->proto = function->proto;
	batch->type = function->type;
	batch->op = op_of(function);
}

int emu_function_element_bytes(const struct emu_function *function)
{
	static const uint8_t bytes[EMU_TYPES] = {
		[EMU_INT8] = 1,    [EMU_UINT8] = 1,    [EMU_INT32] = 4,      [EMU_UINT32] = 4,
		[EMU_INT64] = 8,   [EMU_UINT64] = 8,   [EMU_FLOAT16] = 2,    [EMU_FLOAT32] = 4,
		[EMU_FLOAT64] = 8, [EMU_BFLOAT16] = 2, [EMU_FLOAT8E4M3] = 1, [EMU_FLOAT8E5M2] = 1,
	};

	return bytes[function->type];
}

uint64_t emu_function_load(const struct emu_function *function, uint64_t arg, bool is_pointer)
{
	uint64_t value = 0;

	if (!is_pointer)
		return arg;
	memcpy(&value, (const void *)(uintptr_t)arg, (size_t)emu_function_element_bytes(function));
	return value;
}

/* The signed or the unsigned integer of type's size: signed ones have the even numbers. */
static enum emu_type with_sign(unsigned type, bool is_signed)
{
	return (enum emu_type)(type / 2 * 2 + (is_signed ? 0 : 1));
}

/* The scalar of a minimum or maximum is what integers are xored with before unsigned minima are taken: the sign bit
 * for signed types, all bits for a maximum. Floats look at bit 0 only. */
static void read_minmax(const struct emu_function *function, uint64_t arg, enum emu_op *op, enum emu_type *type)
{
	const bool is_max = arg & 1;
	const bool high = arg >> (8 * emu_function_element_bytes(function) - 1) & 1;

	*op = is_max ? EMU_MAX : EMU_MIN;
	if (function->type <= EMU_UINT64)
		*type = with_sign(function->type, high != is_max);
}

void emu_function_scalar(const struct emu_layout *layout, const struct emu_function *function, uint64_t *arg,
			 enum emu_op *op, enum emu_type *type)
{
	*type = function->type;
	*op = op_of(function);
	if (function->op == EMU_KERNEL_MINMAX)
		read_minmax(function, *arg, op, type);
	if (function->op == EMU_KERNEL_SUMPOSTDIV && layout->functions->divisor_has_sign) {
		*type = with_sign(function->type, *arg & 1);
		*arg >>= 1;
	}
}
