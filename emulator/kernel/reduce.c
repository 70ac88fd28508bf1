/* SPDX-License-Identifier: MIT
 *
 * The arithmetic of the emulated kernels: sums and products are the plugin's, which has loops for each instruction set;
 * what those lack is here. Pure: any thread may call it.
 */
#include "kernel/reduce.h"

#include <stdbool.h>
#include <string.h>

#include "bagua_net_host.h"
#include "kernel/float8.h"
#include "kernel/kernel.h"

enum { BLOCK = 512 };

static const struct type {
	size_t bytes;
	int sum; /* the type with whose sums and products the plugin computes this one's */
} types[EMU_TYPES] = {
	[EMU_INT8] = {1, BNET_INT8},         [EMU_UINT8] = {1, BNET_UINT8},     [EMU_INT32] = {4, BNET_INT32},
	[EMU_UINT32] = {4, BNET_INT32},      [EMU_INT64] = {8, BNET_INT64},     [EMU_UINT64] = {8, BNET_INT64},
	[EMU_FLOAT16] = {2, BNET_FLOAT16},   [EMU_FLOAT32] = {4, BNET_FLOAT32}, [EMU_FLOAT64] = {8, BNET_FLOAT64},
	[EMU_BFLOAT16] = {2, BNET_BFLOAT16}, [EMU_FLOAT8E4M3] = {1, -1},        [EMU_FLOAT8E5M2] = {1, -1},
};

size_t emu_type_bytes(enum emu_type type)
{
	return types[type].bytes;
}

/* ---- minimum and maximum ---- */

typedef void choose_fn(void *dst, const void *lhs, const void *rhs, size_t count);

#define CHOOSE(name, type, condition)                                               \
	static void name(void *dst, const void *lhs, const void *rhs, size_t count) \
	{                                                                           \
		type *out = dst;                                                    \
		const type *left = lhs, *right = rhs;                               \
                                                                                    \
		for (size_t i = 0; i < count; i++) {                                \
			const type a = left[i], b = right[i];                       \
                                                                                    \
			out[i] = (condition) ? a : b;                               \
		}                                                                   \
	}

/* The bits of a float as a signed integer that sorts as the float does, -0 below +0. */
#define ORDER(type, value, bits) ((type)((value) ^ (((value) >> ((bits)-1)) & (type) ~((uint64_t)1 << ((bits)-1)))))
#define IS_NAN(value, infinity, bits) (((value) & ~((uint64_t)1 << ((bits)-1))) > (infinity))

/* clang-format off */
#define CHOOSE_INTEGER(prefix, type)          \
	CHOOSE(prefix##_min, type, a < b)     \
	CHOOSE(prefix##_max, type, a > b)

#define CHOOSE_FLOAT(prefix, type, unsigned_type, infinity, bits)                                            \
	CHOOSE(prefix##_min, type,                                                                           \
	       IS_NAN((unsigned_type)b, infinity, bits) ||                                                   \
		       (!IS_NAN((unsigned_type)a, infinity, bits) &&                                         \
			ORDER(type, a, bits) < ORDER(type, b, bits)))                                        \
	CHOOSE(prefix##_max, type,                                                                           \
	       IS_NAN((unsigned_type)b, infinity, bits) ||                                                   \
		       (!IS_NAN((unsigned_type)a, infinity, bits) &&                                         \
			ORDER(type, a, bits) > ORDER(type, b, bits)))
/* clang-format on */

CHOOSE_INTEGER(int8, int8_t)
CHOOSE_INTEGER(uint8, uint8_t)
CHOOSE_INTEGER(int32, int32_t)
CHOOSE_INTEGER(uint32, uint32_t)
CHOOSE_INTEGER(int64, int64_t)
CHOOSE_INTEGER(uint64, uint64_t)
CHOOSE_FLOAT(float16, int16_t, uint16_t, 0x7c00, 16)
CHOOSE_FLOAT(bfloat16, int16_t, uint16_t, 0x7f80, 16)
CHOOSE_FLOAT(float32, int32_t, uint32_t, 0x7f800000, 32)
CHOOSE_FLOAT(float64, int64_t, uint64_t, 0x7ff0000000000000, 64)
CHOOSE_FLOAT(float8e4m3, int8_t, uint8_t, 0x7e, 8)
CHOOSE_FLOAT(float8e5m2, int8_t, uint8_t, 0x7c, 8)

static choose_fn *const choose[EMU_TYPES][2] = {
	[EMU_INT8] = {int8_min, int8_max},
	[EMU_UINT8] = {uint8_min, uint8_max},
	[EMU_INT32] = {int32_min, int32_max},
	[EMU_UINT32] = {uint32_min, uint32_max},
	[EMU_INT64] = {int64_min, int64_max},
	[EMU_UINT64] = {uint64_min, uint64_max},
	[EMU_FLOAT16] = {float16_min, float16_max},
	[EMU_FLOAT32] = {float32_min, float32_max},
	[EMU_FLOAT64] = {float64_min, float64_max},
	[EMU_BFLOAT16] = {bfloat16_min, bfloat16_max},
	[EMU_FLOAT8E4M3] = {float8e4m3_min, float8e4m3_max},
	[EMU_FLOAT8E5M2] = {float8e5m2_min, float8e5m2_max},
};

/* ---- sums and products ---- */

void emu_reduce(void *dst, const void *a, const void *b, size_t count, enum emu_type type, enum emu_op op)
{
	const bool product = op == EMU_PROD;

	if (op == EMU_MIN || op == EMU_MAX)
		choose[type][op == EMU_MAX](dst, a, b, count);
	else if (type == EMU_FLOAT8E4M3 || type == EMU_FLOAT8E5M2)
		emu_float8_reduce(dst, a, b, count, type, product);
	else
		bnet_coll_reduce_local(dst, a, b, count, types[type].sum, product ? BNET_PROD : BNET_SUM);
}

void emu_scale(void *dst, const void *src, size_t count, enum emu_type type, uint64_t scalar)
{
	const size_t bytes = types[type].bytes;
	_Alignas(64) char factors[BLOCK * sizeof(uint64_t)];

	for (size_t i = 0; i < BLOCK && i < count; i++)
		memcpy(factors + i * bytes, &scalar, bytes);
	for (size_t at = 0; at < count; at += BLOCK) {
		const size_t n = count - at < BLOCK ? count - at : BLOCK;

		emu_reduce((char *)dst + at * bytes, (const char *)src + at * bytes, factors, n, type, EMU_PROD);
	}
}

void emu_kernel_scale(void *out, const void *src, size_t count, enum emu_type type, uint64_t scalar)
{
	emu_scale(out, src, count, type, scalar);
}

/* ---- quotients ---- */

#define DIVIDE(name, type, wide)                                    \
	static void name(void *buf, size_t count, uint64_t divisor) \
	{                                                           \
		type *out = buf;                                    \
		const wide by = (wide)divisor;                      \
                                                                    \
		for (size_t i = 0; i < count; i++)                  \
			out[i] = (type)((wide)out[i] / by);         \
	}

DIVIDE(divide_int8, int8_t, int64_t)
DIVIDE(divide_uint8, uint8_t, uint64_t)
DIVIDE(divide_int32, int32_t, int64_t)
DIVIDE(divide_uint32, uint32_t, uint64_t)
DIVIDE(divide_int64, int64_t, int64_t)
DIVIDE(divide_uint64, uint64_t, uint64_t)

void emu_divide(void *buf, size_t count, enum emu_type type, uint64_t divisor)
{
	static void (*const divide[EMU_TYPES])(void *, size_t, uint64_t) = {
		[EMU_INT8] = divide_int8,     [EMU_UINT8] = divide_uint8, [EMU_INT32] = divide_int32,
		[EMU_UINT32] = divide_uint32, [EMU_INT64] = divide_int64, [EMU_UINT64] = divide_uint64,
	};

	if (divide[type] != NULL && divisor > 1)
		divide[type](buf, count, divisor);
}
