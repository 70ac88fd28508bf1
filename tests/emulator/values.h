/* SPDX-License-Identifier: MIT
 *
 * Elements of every type for tests of the emulated kernels: numbers whose sums and products are exact in the type, so
 * that a result does not depend on the order of the operations.
 */
#ifndef EMU_VALUES_H
#define EMU_VALUES_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "kernel/reduce.h"

struct value_format {
	int exponent_bits, fraction_bits; /* 0: an integer */
	bool is_signed;
};

static inline struct value_format value_format(enum emu_type type)
{
	static const struct value_format formats[EMU_TYPES] = {
		[EMU_INT8] = {0, 0, true},     [EMU_INT32] = {0, 0, true},      [EMU_INT64] = {0, 0, true},
		[EMU_FLOAT16] = {5, 10, true}, [EMU_FLOAT32] = {8, 23, true},   [EMU_FLOAT64] = {11, 52, true},
		[EMU_BFLOAT16] = {8, 7, true}, [EMU_FLOAT8E4M3] = {4, 3, true}, [EMU_FLOAT8E5M2] = {5, 2, true},
	};

	return formats[type];
}

static inline bool value_is_float(enum emu_type type)
{
	return value_format(type).exponent_bits > 0;
}

/* The bits of a number that the type has exactly; integers wrap. */
static inline uint64_t value_bits(enum emu_type type, double value)
{
	const struct value_format format = value_format(type);
	const uint64_t sign = signbit(value) ? 1 : 0;
	int exponent, bias;
	double fraction;

	if (format.exponent_bits == 0)
		return (uint64_t)(int64_t)value;
	bias = (1 << (format.exponent_bits - 1)) - 1;
	if (value == 0)
		return sign << (format.exponent_bits + format.fraction_bits);
	fraction = frexp(fabs(value), &exponent) * 2 - 1;
	return sign << (format.exponent_bits + format.fraction_bits) |
	       (uint64_t)(exponent - 1 + bias) << format.fraction_bits |
	       (uint64_t)ldexp(fraction, format.fraction_bits);
}

static inline void value_put(void *buffer, size_t i, enum emu_type type, uint64_t bits)
{
	memcpy((char *)buffer + i * emu_type_bytes(type), &bits, emu_type_bytes(type));
}

static inline uint64_t value_get(const void *buffer, size_t i, enum emu_type type)
{
	uint64_t bits = 0;

	memcpy(&bits, (const char *)buffer + i * emu_type_bytes(type), emu_type_bytes(type));
	return bits;
}

static inline uint64_t value_hash(uint64_t a, uint64_t b)
{
	uint64_t x = a * UINT64_C(0x9e3779b97f4a7c15) + b;

	x ^= x >> 31;
	x *= UINT64_C(0xbf58476d1ce4e5b9);
	return x ^ x >> 29;
}

/* Element i of a rank: up to eight of them add up exactly, and multiply exactly for products. */
static inline double value_of(enum emu_type type, enum emu_op op, int rank, size_t i)
{
	const uint64_t hash = value_hash((uint64_t)rank + 1, i);
	const bool narrow = type == EMU_FLOAT8E4M3 || type == EMU_FLOAT8E5M2;

	if (op == EMU_PROD)
		return hash % 3 == 0 ? 2 : 1;
	if (op == EMU_MIN || op == EMU_MAX)
		return (double)(narrow ? hash % 5 : hash % 100) - (value_format(type).is_signed ? 2 : 0);
	if (narrow)
		return (double)(hash % 2);
	switch (emu_type_bytes(type)) {
	case 1:
		return (double)(hash % 16);
	case 2:
		return (double)(hash % 8);
	default:
		return (double)(hash % 65536);
	}
}

/* What op makes of element i of all ranks. scalar: EMU_PREMULSUM's factor or EMU_SUMPOSTDIV's divisor. */
static inline double value_reduced(enum emu_type type, enum emu_op op, double scalar, int ranks, size_t i)
{
	double result = value_of(type, op, 0, i);

	for (int rank = 1; rank < ranks; rank++) {
		const double value = value_of(type, op, rank, i);

		if (op == EMU_PROD)
			result *= value;
		else if (op == EMU_MIN)
			result = fmin(result, value);
		else if (op == EMU_MAX)
			result = fmax(result, value);
		else
			result += value;
	}
	if (op == EMU_PREMULSUM)
		return result * scalar;
	return op == EMU_SUMPOSTDIV ? trunc(result / scalar) : result;
}

#endif
