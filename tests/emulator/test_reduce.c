/* SPDX-License-Identifier: MIT
 *
 * The emulated kernels' arithmetic against single elements in double and wide integers, for every type and operation,
 * rounding, saturation and NaNs included. Pairs of 8-bit floats are complete.
 */
#include <stdlib.h>

#include "check.h"
#include "values.h"
#include "kernel/float8.h"
#include "kernel/kernel.h"

enum { MOST = 1500 };

static const size_t counts[] = {0, 1, 2, 3, 7, 8, 15, 16, 17, 31, 63, 65, 511, 512, 513, 1499};

/* ---- a float of any format, in double ---- */

static double decode(enum emu_type type, uint64_t bits)
{
	const struct value_format format = value_format(type);
	const int bias = (1 << (format.exponent_bits - 1)) - 1, most = (1 << format.exponent_bits) - 1;
	const uint64_t fraction = bits & ((UINT64_C(1) << format.fraction_bits) - 1);
	const int exponent = (int)(bits >> format.fraction_bits) & most;
	const double sign = bits >> (format.fraction_bits + format.exponent_bits) & 1 ? -1 : 1;

	if (type == EMU_FLOAT8E4M3) {
		if (exponent == most && fraction == 7)
			return NAN;
	} else if (exponent == most) {
		return fraction != 0 ? NAN : sign * INFINITY;
	}
	if (exponent == 0)
		return sign * ldexp((double)fraction, 1 - bias - format.fraction_bits);
	return sign * ldexp(1 + ldexp((double)fraction, -format.fraction_bits), exponent - bias);
}

static double largest(enum emu_type type)
{
	const struct value_format format = value_format(type);
	const int bias = (1 << (format.exponent_bits - 1)) - 1;

	if (type == EMU_FLOAT8E4M3)
		return 448;
	return ldexp(2 - ldexp(1, -format.fraction_bits), bias);
}

/* To the type's precision, to nearest even; the double is exact or rounded far below it. */
static double round_to(enum emu_type type, double value)
{
	const struct value_format format = value_format(type);
	const int bias = (1 << (format.exponent_bits - 1)) - 1;
	const bool saturates = type == EMU_FLOAT8E4M3 || type == EMU_FLOAT8E5M2;
	int exponent;
	double rounded;

	if (isnan(value) || value == 0 || type == EMU_FLOAT64)
		return value;
	if (isinf(value))
		return saturates ? copysign(largest(type), value) : value;
	frexp(value, &exponent);
	exponent = exponent - 1 < 1 - bias ? 1 - bias : exponent - 1;
	rounded = ldexp(nearbyint(ldexp(value, format.fraction_bits - exponent)), exponent - format.fraction_bits);
	if (fabs(rounded) <= largest(type))
		return rounded;
	return copysign(saturates ? largest(type) : INFINITY, value);
}

static double reduced(enum emu_type type, enum emu_op op, double a, double b)
{
	if (op == EMU_MIN || op == EMU_MAX) {
		if (isnan(a) || isnan(b))
			return isnan(a) ? b : a;
		if (a == b) /* zeros */
			return (op == EMU_MIN) == (signbit(a) != 0) ? a : b;
		return (op == EMU_MIN) == (a < b) ? a : b;
	}
	if (type == EMU_FLOAT32)
		return op == EMU_PROD ? (double)((float)a * (float)b) : (double)((float)a + (float)b);
	return round_to(type, op == EMU_PROD ? a * b : a + b);
}

static void check_float(enum emu_type type, uint64_t got, double want)
{
	const double value = decode(type, got);

	if (isnan(want) ? !isnan(value) : value != want || (value == 0 && signbit(value) != signbit(want))) {
		fprintf(stderr, "type %d: %a, expected %a\n", type, value, want);
		exit(1);
	}
}

/* ---- integers ---- */

static uint64_t mask_of(enum emu_type type)
{
	return UINT64_MAX >> (64 - 8 * emu_type_bytes(type));
}

/* The value's bits as the type has them, extended to 64. */
static int64_t extended(enum emu_type type, uint64_t bits)
{
	const int unused = 64 - 8 * (int)emu_type_bytes(type);

	return value_format(type).is_signed ? (int64_t)(bits << unused) >> unused : (int64_t)(bits & mask_of(type));
}

static bool below(enum emu_type type, uint64_t a, uint64_t b)
{
	return value_format(type).is_signed ? extended(type, a) < extended(type, b) : a < b;
}

static uint64_t integer(enum emu_type type, enum emu_op op, uint64_t a, uint64_t b)
{
	switch (op) {
	case EMU_PROD:
		return a * b & mask_of(type);
	case EMU_MIN:
		return below(type, a, b) ? a : b;
	case EMU_MAX:
		return below(type, b, a) ? a : b;
	default:
		return (a + b) & mask_of(type);
	}
}

/* ---- every type and operation ---- */

/* Also zeros, infinities, NaNs and subnormals, more often than by chance. */
static uint64_t random_bits(enum emu_type type, uint64_t seed, size_t i)
{
	const struct value_format format = value_format(type);
	const uint64_t bits = value_hash(seed, i), sign = UINT64_C(1) << (8 * emu_type_bytes(type) - 1);
	const uint64_t infinity = ((UINT64_C(1) << format.exponent_bits) - 1) << format.fraction_bits;

	if (format.exponent_bits == 0)
		return bits & mask_of(type);
	switch (bits >> 40 & 31) {
	case 0:
		return bits & sign;
	case 1:
		return infinity | (bits & sign);
	case 2:
		return infinity | (bits & (sign - 1) & ~infinity) | 1;
	case 3:
		return bits & ~infinity & mask_of(type);
	case 4:
		return bits & mask_of(type);
	default: /* near one, so that sums round */
		return (bits & ~infinity & mask_of(type)) |
		       ((infinity >> 1) + ((bits >> 50) % 5 << format.fraction_bits) -
			(UINT64_C(2) << format.fraction_bits));
	}
}

static void check_element(enum emu_type type, enum emu_op op, uint64_t got, uint64_t a, uint64_t b)
{
	if (value_is_float(type))
		check_float(type, got, reduced(type, op, decode(type, a), decode(type, b)));
	else
		check_int(got, integer(type, op, a, b));
}

static void test_reduce(enum emu_type type, enum emu_op op, size_t count, int alias)
{
	static _Alignas(64) char left[MOST * 8], right[MOST * 8], out[MOST * 8 + 64];
	char *dst = alias == 0 ? out : alias == 1 ? left : right;
	uint64_t a[MOST], b[MOST];

	for (size_t i = 0; i < count; i++) {
		value_put(left, i, type, a[i] = random_bits(type, 2 * (uint64_t)op + 1, i));
		value_put(right, i, type, b[i] = random_bits(type, 77 + (uint64_t)op, i + count));
	}
	memset(out + count * emu_type_bytes(type), 0x5a, 64);
	emu_reduce(dst, left, right, count, type, op);
	for (size_t i = 0; i < count; i++)
		check_element(type, op, value_get(dst, i, type), a[i], b[i]);
	for (int i = 0; i < 64; i++)
		check_int(out[count * emu_type_bytes(type) + (size_t)i], 0x5a);
}

static void test_scale(enum emu_type type, size_t count, uint64_t scalar)
{
	static char src[MOST * 8], dst[MOST * 8];

	for (size_t i = 0; i < count; i++)
		value_put(src, i, type, random_bits(type, 5, i));
	emu_kernel_scale(dst, src, count, type, scalar);
	for (size_t i = 0; i < count; i++)
		check_element(type, EMU_PROD, value_get(dst, i, type), value_get(src, i, type), scalar);
	memcpy(dst, src, sizeof(dst));
	emu_scale(dst, dst, count, type, scalar);
	for (size_t i = 0; i < count; i++)
		check_element(type, EMU_PROD, value_get(dst, i, type), value_get(src, i, type), scalar);
}

static void test_divide(enum emu_type type, size_t count, uint64_t divisor)
{
	static char buf[MOST * 8], before[MOST * 8];

	for (size_t i = 0; i < count; i++)
		value_put(before, i, type, random_bits(type, 9, i));
	memcpy(buf, before, sizeof(buf));
	emu_divide(buf, count, type, divisor);
	for (size_t i = 0; i < count; i++) {
		const uint64_t bits = value_get(before, i, type);
		const uint64_t want = value_format(type).is_signed
					      ? (uint64_t)(extended(type, bits) / (int64_t)divisor) & mask_of(type)
					      : bits / divisor;

		check_int(value_get(buf, i, type), value_is_float(type) ? bits : want);
	}
}

static void test_type(enum emu_type type)
{
	for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++) {
		for (int op = EMU_SUM; op <= EMU_SUMPOSTDIV; op++)
			for (int alias = 0; alias < 3; alias++)
				test_reduce(type, (enum emu_op)op, counts[i], alias);
		test_scale(type, counts[i], value_bits(type, 3));
		test_scale(type, counts[i], value_is_float(type) ? value_bits(type, 0.375) : 251);
		for (uint64_t divisor = 1; divisor < 9; divisor++)
			test_divide(type, counts[i], divisor);
	}
}

/* ---- 8-bit floats, completely ---- */

static void test_float8(enum emu_type type)
{
	for (int a = 0; a < 256; a++) {
		check_float(type, (uint64_t)a, (double)emu_float8_widen((uint8_t)a, type));
		for (int b = 0; b < 256; b++) {
			for (int op = EMU_SUM; op <= EMU_MAX; op++) {
				const uint8_t left = (uint8_t)a, right = (uint8_t)b;
				uint8_t got;

				emu_reduce(&got, &left, &right, 1, type, (enum emu_op)op);
				check_element(type, (enum emu_op)op, got, left, right);
			}
		}
	}
}

/* All floats that matter: around every value of the type and every middle between two. */
static void test_narrow(enum emu_type type)
{
	for (int i = 0; i < 127; i++) {
		const double low = decode(type, (uint64_t)i), high = decode(type, (uint64_t)i + 1);
		const float middle = (float)((low + high) / 2);
		const float near[] = {(float)low, middle, nextafterf(middle, 0), nextafterf(middle, INFINITY), 1e30F};

		if (!isfinite(low) || !isfinite(high))
			continue;
		for (int n = 0; n < 5; n++) {
			check_float(type, emu_float8_narrow(near[n], type), round_to(type, (double)near[n]));
			check_float(type, emu_float8_narrow(-near[n], type), round_to(type, -(double)near[n]));
		}
	}
	check_float(type, emu_float8_narrow(NAN, type), NAN);
	check_float(type, emu_float8_narrow(-INFINITY, type), -largest(type));
}

int main(void)
{
	for (int type = 0; type < EMU_TYPES; type++)
		test_type((enum emu_type)type);
	test_float8(EMU_FLOAT8E4M3);
	test_float8(EMU_FLOAT8E5M2);
	test_narrow(EMU_FLOAT8E4M3);
	test_narrow(EMU_FLOAT8E5M2);
	return 0;
}
