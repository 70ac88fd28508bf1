/* SPDX-License-Identifier: MIT
 *
 * Element-wise reductions on host memory, for every element type of the collectives. Pure: any thread may call them.
 *
 * Semantics, the same on every machine: integers wrap; a minimum or maximum with a NaN is a NaN; 16-bit floats are
 * widened to float32, reduced there and rounded once, to nearest even.
 */
#include "coll/reduce.h"

#include <errno.h>
#include <stdint.h>
#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "codec/clones.h"

typedef void (*reduce_fn)(void *dst, const void *lhs, const void *rhs, size_t count);

/* ---- types that the machine has instructions for ---- */

#define REDUCE(name, type, expression)                                                          \
	BNET_CLONES static void name(void *dst, const void *lhs, const void *rhs, size_t count) \
	{                                                                                       \
		type *out = dst;                                                                \
		const type *left = lhs, *right = rhs;                                           \
                                                                                                \
		BNET_INDEPENDENT                                                                \
		for (size_t i = 0; i < count; i++) {                                            \
			const type a = left[i], b = right[i];                                   \
                                                                                                \
			out[i] = (type)(expression);                                            \
		}                                                                               \
	}

/* The formatter would take the operators for pointers. */
/* clang-format off */

/* wrap: the unsigned type at least as wide as int, in which sums and products wrap. */
#define REDUCE_INTEGER(prefix, type, wrap)                     \
	REDUCE(prefix##_sum, type, (wrap)a + (wrap)b)          \
	REDUCE(prefix##_prod, type, (wrap)a * (wrap)b)         \
	REDUCE(prefix##_min, type, a < b ? a : b)              \
	REDUCE(prefix##_max, type, a > b ? a : b)              \
	REDUCE(prefix##_band, type, a & b)                     \
	REDUCE(prefix##_bor, type, a | b)                      \
	REDUCE(prefix##_bxor, type, a ^ b)

#define REDUCE_FLOAT(prefix, type)                             \
	REDUCE(prefix##_sum, type, a + b)                      \
	REDUCE(prefix##_prod, type, a * b)                     \
	REDUCE(prefix##_min, type, (a < b || a != a) ? a : b)  \
	REDUCE(prefix##_max, type, (a > b || a != a) ? a : b)

/* clang-format on */

REDUCE_INTEGER(int8, int8_t, unsigned)
REDUCE_INTEGER(uint8, uint8_t, unsigned)
REDUCE_INTEGER(int32, int32_t, uint32_t)
REDUCE_INTEGER(int64, int64_t, uint64_t)
REDUCE_FLOAT(float32, float)
REDUCE_FLOAT(float64, double)

#define SCALE(name, type, divisor)                                   \
	BNET_CLONES static void name(void *buf, size_t count, int n) \
	{                                                            \
		type *out = buf;                                     \
		const divisor by = (divisor)n;                       \
                                                                     \
		BNET_INDEPENDENT                                     \
		for (size_t i = 0; i < count; i++)                   \
			out[i] = (type)(out[i] / by);                \
	}

SCALE(int8_scale, int8_t, int)
SCALE(uint8_scale, uint8_t, int)
SCALE(int32_scale, int32_t, int32_t)
SCALE(int64_scale, int64_t, int64_t)
SCALE(float32_scale, float, float)
SCALE(float64_scale, double, double)

/* ---- 16-bit floats, converted a block at a time ---- */

#define BLOCK 512 /* two blocks of float32 are 4 KiB: they stay in the first-level cache */

struct half_format {
	void (*widen)(float *dst, const uint16_t *src, size_t count);
	void (*narrow)(uint16_t *dst, const float *src, size_t count);
};

static inline uint32_t float_bits(float value)
{
	uint32_t bits;

	memcpy(&bits, &value, sizeof(bits));
	return bits;
}

static inline float bits_float(uint32_t bits)
{
	float value;

	memcpy(&value, &bits, sizeof(value));
	return value;
}

static inline float bfloat16_to_float(uint16_t value)
{
	return bits_float((uint32_t)value << 16);
}

static inline uint16_t float_to_bfloat16(float value)
{
	const uint32_t bits = float_bits(value);
	const uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
	const uint32_t quiet_nan = (bits >> 16) | 0x40; /* rounding could carry a NaN over into infinity */

	return (uint16_t)((bits & 0x7fffffff) > 0x7f800000 ? quiet_nan : rounded);
}

/* Without branches, so that the loops below vectorize: every case is computed and one is selected. */
static inline float float16_to_float(uint16_t value)
{
	const uint32_t sign = (uint32_t)(value & 0x8000) << 16;
	const uint32_t magnitude = value & 0x7fff;
	const uint32_t normal = (magnitude << 13) + ((127 - 15) << 23);
	const uint32_t special = (magnitude << 13) | 0x7f800000; /* infinity and NaN */
	/* Subnormal: put the fraction below a leading 2^-14 and subtract that again, which is exact. */
	const float subnormal = bits_float((magnitude << 13) + ((127 - 14) << 23)) - bits_float((127 - 14) << 23);
	uint32_t bits = magnitude < 0x400 ? float_bits(subnormal) : normal;

	bits = magnitude >= 0x7c00 ? special : bits;
	bits |= magnitude > 0x7c00 ? 0x400000 : 0; /* quiet, as the hardware does it */
	return bits_float(bits | sign);
}

static inline uint16_t float_to_float16(float value)
{
	const uint32_t bits = float_bits(value);
	const uint32_t sign = (bits >> 16) & 0x8000;
	const uint32_t magnitude = bits & 0x7fffffff;
	const uint32_t normal = (magnitude - ((127 - 15) << 23) + 0xfff + ((magnitude >> 13) & 1)) >> 13;
	/* Subnormal: in a sum with 0.5 the last place is 2^-24, the smallest float16, so the addition rounds. */
	const uint32_t subnormal = float_bits(bits_float(magnitude) + 0.5F) - float_bits(0.5F);
	const uint32_t nan = 0x7e00 | ((magnitude >> 13) & 0x3ff);
	uint32_t half = magnitude < ((127 - 14) << 23) ? subnormal : normal;

	half = magnitude >= ((127 + 16) << 23) ? 0x7c00 : half; /* 65520 and more round up to infinity above */
	half = magnitude > 0x7f800000 ? nan : half;
	return (uint16_t)(half | sign);
}

#define CONVERT(name, to, from, function)                                    \
	BNET_CLONES static void name(to *dst, const from *src, size_t count) \
	{                                                                    \
		BNET_INDEPENDENT                                             \
		for (size_t i = 0; i < count; i++)                           \
			dst[i] = function(src[i]);                           \
	}

CONVERT(bfloat16_widen, float, uint16_t, bfloat16_to_float)
CONVERT(bfloat16_narrow, uint16_t, float, float_to_bfloat16)
CONVERT(float16_widen, float, uint16_t, float16_to_float)
CONVERT(float16_narrow, uint16_t, float, float_to_float16)

static const struct half_format bfloat16 = {bfloat16_widen, bfloat16_narrow};
static const struct half_format float16_portable = {float16_widen, float16_narrow};

#if defined(__x86_64__)
__attribute__((target("avx,f16c"))) static void float16_widen_f16c(float *dst, const uint16_t *src, size_t count)
{
	size_t i = 0;

	for (; i + 8 <= count; i += 8)
		_mm256_storeu_ps(dst + i, _mm256_cvtph_ps(_mm_loadu_si128((const void *)(src + i))));
	for (; i < count; i++)
		dst[i] = float16_to_float(src[i]);
}

__attribute__((target("avx,f16c"))) static void float16_narrow_f16c(uint16_t *dst, const float *src, size_t count)
{
	size_t i = 0;

	for (; i + 8 <= count; i += 8)
		_mm_storeu_si128((void *)(dst + i),
				 _mm256_cvtps_ph(_mm256_loadu_ps(src + i), _MM_FROUND_TO_NEAREST_INT));
	for (; i < count; i++)
		dst[i] = float_to_float16(src[i]);
}

static const struct half_format *float16(void)
{
	static const struct half_format with_f16c = {float16_widen_f16c, float16_narrow_f16c};

	/* AVX2 stands in for F16C, whose name clang 14 does not know: every processor with AVX2 has it. */
	return __builtin_cpu_supports("avx2") ? &with_f16c : &float16_portable;
}
#else
static const struct half_format *float16(void)
{
	return &float16_portable;
}
#endif

static void reduce_half(const struct half_format *format, reduce_fn reduce, uint16_t *dst, const uint16_t *lhs,
			const uint16_t *rhs, size_t count)
{
	float left[BLOCK], right[BLOCK];

	for (size_t at = 0; at < count; at += BLOCK) {
		const size_t n = count - at < BLOCK ? count - at : BLOCK;

		format->widen(left, lhs + at, n);
		format->widen(right, rhs + at, n);
		reduce(left, left, right, n);
		format->narrow(dst + at, left, n);
	}
}

static void scale_half(const struct half_format *format, uint16_t *buf, size_t count, int n)
{
	float block[BLOCK];

	for (size_t at = 0; at < count; at += BLOCK) {
		const size_t length = count - at < BLOCK ? count - at : BLOCK;

		format->widen(block, buf + at, length);
		float32_scale(block, length, n);
		format->narrow(buf + at, block, length);
	}
}

/* ---- one row per element type ---- */

/* clang-format off */
#define OF_NUMBERS(prefix) prefix##_sum, prefix##_prod, prefix##_min, prefix##_max, prefix##_sum
#define OF_INTEGERS(prefix) {OF_NUMBERS(prefix), prefix##_band, prefix##_bor, prefix##_bxor}
#define OF_FLOATS(prefix) {OF_NUMBERS(prefix)}
/* clang-format on */

static const struct element_type {
	size_t size;
	reduce_fn reduce[BNET_BXOR + 1]; /* 16-bit floats: those of float32. NULL: not for this type */
	void (*scale)(void *buf, size_t count, int n);
} types[] = {
	[BNET_INT8] = {1, OF_INTEGERS(int8), int8_scale},
	[BNET_UINT8] = {1, OF_INTEGERS(uint8), uint8_scale},
	[BNET_INT32] = {4, OF_INTEGERS(int32), int32_scale},
	[BNET_INT64] = {8, OF_INTEGERS(int64), int64_scale},
	[BNET_FLOAT16] = {2, OF_FLOATS(float32), NULL},
	[BNET_BFLOAT16] = {2, OF_FLOATS(float32), NULL},
	[BNET_FLOAT32] = {4, OF_FLOATS(float32), float32_scale},
	[BNET_FLOAT64] = {8, OF_FLOATS(float64), float64_scale},
};

static bool known_type(int dtype)
{
	return dtype >= 0 && dtype < (int)(sizeof(types) / sizeof(types[0]));
}

static const struct half_format *half_format_of(int dtype)
{
	if (dtype == BNET_BFLOAT16)
		return &bfloat16;
	return dtype == BNET_FLOAT16 ? float16() : NULL;
}

size_t bnet_coll_dtype_size(int dtype)
{
	return known_type(dtype) ? types[dtype].size : 0;
}

bool bnet_coll_is_integer(int dtype)
{
	return known_type(dtype) && types[dtype].reduce[BNET_BAND] != NULL;
}

int bnet_coll_reduce_local(void *dst, const void *a, const void *b, size_t count, int dtype, int op)
{
	const struct half_format *half = half_format_of(dtype);

	if (!known_type(dtype) || op < 0 || op > BNET_BXOR || types[dtype].reduce[op] == NULL)
		return -EINVAL;
	if (half != NULL)
		reduce_half(half, types[dtype].reduce[op], dst, a, b, count);
	else
		types[dtype].reduce[op](dst, a, b, count);
	return 0;
}

int bnet_coll_scale_local(void *buf, size_t count, int dtype, int n)
{
	const struct half_format *half = half_format_of(dtype);

	if (!known_type(dtype) || n <= 0)
		return -EINVAL;
	if (half != NULL)
		scale_half(half, buf, count, n);
	else
		types[dtype].scale(buf, count, n);
	return 0;
}

void bnet_coll_average(void *buf, size_t count, int dtype, int op, int n)
{
	if (op == BNET_AVG)
		bnet_coll_scale_local(buf, count, dtype, n);
}
