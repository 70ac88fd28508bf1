/* SPDX-License-Identifier: MIT
 *
 * bnet_coll_reduce_local and bnet_coll_scale_local against arithmetic on single elements in double and wide integers.
 */
#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>

#include "bagua_net_host.h"
#include "check.h"

#define MAX_COUNT 1500 /* crosses the blocks of the 16-bit floats, with a tail */

static const size_t counts[] = {0, 1, 2, 3, 7, 8, 15, 16, 17, 31, 63, 65, 127, 511, 512, 513, 1021, 1499};
static const char *const dtype_names[] = {"int8",    "uint8",    "int32",   "int64",
					  "float16", "bfloat16", "float32", "float64"};

static uint64_t seed = 1;

static uint64_t next_random(void)
{
	seed ^= seed << 13;
	seed ^= seed >> 7;
	seed ^= seed << 17;
	return seed;
}

static bool is_float(int dtype)
{
	return dtype >= BNET_FLOAT16;
}

static int last_op(int dtype)
{
	return is_float(dtype) ? BNET_AVG : BNET_BXOR;
}

/* ---- conversion between floats of any format and double ---- */

struct format {
	int exponent_bits;
	int fraction_bits;
};

static struct format format_of(int dtype)
{
	if (dtype == BNET_FLOAT16)
		return (struct format){5, 10};
	if (dtype == BNET_BFLOAT16)
		return (struct format){8, 7};
	return dtype == BNET_FLOAT32 ? (struct format){8, 23} : (struct format){11, 52};
}

static uint64_t load(const void *buf, size_t i, int dtype)
{
	const size_t size = bnet_coll_dtype_size(dtype);
	uint64_t bits = 0;

	memcpy(&bits, (const char *)buf + i * size, size);
	return bits;
}

static void store(void *buf, size_t i, int dtype, uint64_t bits)
{
	const size_t size = bnet_coll_dtype_size(dtype);

	memcpy((char *)buf + i * size, &bits, size);
}

static double decode(uint64_t bits, int dtype)
{
	const struct format format = format_of(dtype);
	const int bias = (1 << (format.exponent_bits - 1)) - 1;
	const uint64_t fraction = bits & ((UINT64_C(1) << format.fraction_bits) - 1);
	const int exponent = (int)(bits >> format.fraction_bits) & ((1 << format.exponent_bits) - 1);
	const double sign = bits >> (format.fraction_bits + format.exponent_bits) & 1 ? -1.0 : 1.0;

	if (exponent == (1 << format.exponent_bits) - 1)
		return fraction != 0 ? NAN : sign * INFINITY;
	if (exponent == 0)
		return sign * ldexp((double)fraction, 1 - bias - format.fraction_bits);
	return sign *
	       ldexp((double)(fraction | UINT64_C(1) << format.fraction_bits), exponent - bias - format.fraction_bits);
}

/* The nearest number of the format, ties to even: by counting steps, not by shifting bits. */
static uint64_t encode(double value, int dtype)
{
	const struct format format = format_of(dtype);
	const int width = format.exponent_bits + format.fraction_bits;
	const int bias = (1 << (format.exponent_bits - 1)) - 1;
	const uint64_t sign = (uint64_t)(signbit(value) != 0) << width;
	const uint64_t infinity = (UINT64_C(1) << width) - (UINT64_C(1) << format.fraction_bits);
	int exponent;
	double unit, steps;

	if (isinf(value))
		return sign | infinity;
	if (value == 0)
		return sign;
	frexp(fabs(value), &exponent); /* value in [2^(exponent-1), 2^exponent) */
	if (exponent - 1 < 1 - bias)
		exponent = 2 - bias; /* subnormal */
	unit = ldexp(1.0, exponent - 1 - format.fraction_bits);
	steps = nearbyint(fabs(value) / unit); /* exact division by a power of two; ties to even */
	if (steps * unit > decode(infinity - 1, dtype))
		return sign | infinity;
	if (steps < ldexp(1.0, format.fraction_bits))
		return sign | (uint64_t)steps;
	return sign | (((uint64_t)(exponent - 2 + bias) << format.fraction_bits) + (uint64_t)steps);
}

/* ---- one element ---- */

static double float_op(double a, double b, int op)
{
	switch (op) {
	case BNET_PROD:
		return a * b;
	case BNET_MIN:
		return isnan(a) || isnan(b) ? NAN : a < b ? a : b;
	case BNET_MAX:
		return isnan(a) || isnan(b) ? NAN : a > b ? a : b;
	default:
		return a + b;
	}
}

static __int128 integer(uint64_t bits, int dtype)
{
	const int width = 8 * (int)bnet_coll_dtype_size(dtype);

	if (dtype == BNET_UINT8 || (bits >> (width - 1) & 1) == 0)
		return (__int128)bits;
	return (__int128)bits - ((__int128)1 << width);
}

static uint64_t integer_op(uint64_t a, uint64_t b, int dtype, int op)
{
	const __int128 x = integer(a, dtype), y = integer(b, dtype);
	const int width = 8 * (int)bnet_coll_dtype_size(dtype);
	const uint64_t mask = width == 64 ? UINT64_MAX : (UINT64_C(1) << width) - 1;

	switch (op) {
	case BNET_PROD:
		return (uint64_t)((unsigned __int128)x * (unsigned __int128)y) & mask;
	case BNET_MIN:
		return (x < y ? a : b);
	case BNET_MAX:
		return (x > y ? a : b);
	case BNET_BAND:
		return a & b;
	case BNET_BOR:
		return a | b;
	case BNET_BXOR:
		return a ^ b;
	default:
		return (uint64_t)(x + y) & mask;
	}
}

static void check_element(uint64_t got, uint64_t a, uint64_t b, int dtype, int op)
{
	bool same;

	if (!is_float(dtype)) {
		same = got == integer_op(a, b, dtype, op);
	} else if (dtype == BNET_FLOAT64 || dtype == BNET_FLOAT32) {
		const double x = decode(a, dtype), y = decode(b, dtype), value = float_op(x, y, op);
		/* double is the reference; for float32 its result is rounded a second time, which is exact here */
		const double rounded = dtype == BNET_FLOAT32 ? (double)(float)value : value;

		same = isnan(rounded) ? isnan(decode(got, dtype)) : decode(got, dtype) == rounded;
	} else {
		const double value = float_op(decode(a, dtype), decode(b, dtype), op);
		const double rounded = (double)(float)value; /* as documented: float32 first */

		same = isnan(rounded) ? isnan(decode(got, dtype))
				      : got == encode(rounded, dtype) || (rounded == 0 && decode(got, dtype) == 0);
	}
	if (!same)
		fprintf(stderr, "%s op %d: a %#llx b %#llx gives %#llx\n", dtype_names[dtype], op,
			(unsigned long long)a, (unsigned long long)b, (unsigned long long)got);
	check(same);
}

/* ---- all types, operations, lengths, in place or not ---- */

enum placement { APART, OVER_A, OVER_B };

static void check_reduce(int dtype, int op, size_t count, enum placement placement, size_t skip)
{
	static _Alignas(64) char a[8 * (MAX_COUNT + 8)], b[sizeof(a)], out[sizeof(a)];
	static char a_copy[sizeof(a)], b_copy[sizeof(a)];
	const size_t size = bnet_coll_dtype_size(dtype), at = skip * size;
	char *dst = placement == APART ? out : placement == OVER_A ? a : b;

	for (size_t i = 0; i < sizeof(a); i += 8) {
		const uint64_t x = next_random(), y = next_random();

		memcpy(a + i, &x, 8);
		memcpy(b + i, &y, 8);
	}
	memset(out, 0x5a, sizeof(out));
	memcpy(a_copy, a, sizeof(a));
	memcpy(b_copy, b, sizeof(b));
	check_int(bnet_coll_reduce_local(dst + at, a + at, b + at, count, dtype, op), 0);
	for (size_t i = 0; i < count; i++)
		check_element(load(dst + at, i, dtype), load(a_copy + at, i, dtype), load(b_copy + at, i, dtype), dtype,
			      op);
	if (placement == APART) { /* no byte before or after is written */
		for (size_t i = 0; i < at; i++)
			check_int(out[i], 0x5a);
		for (size_t i = at + count * size; i < sizeof(out); i++)
			check_int(out[i], 0x5a);
	}
}

static void test_reduce(void)
{
	for (int dtype = BNET_INT8; dtype <= BNET_FLOAT64; dtype++)
		for (int op = BNET_SUM; op <= last_op(dtype); op++)
			for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++)
				for (int placement = APART; placement <= OVER_B; placement++)
					check_reduce(dtype, op, counts[i], (enum placement)placement, i % 5);
}

/* ---- special values ---- */

static void check_special(int dtype, const uint64_t *values, size_t n)
{
	char a[8 * 32 * 32], b[sizeof(a)], out[sizeof(a)];

	for (size_t i = 0; i < n * n; i++) {
		store(a, i, dtype, values[i / n]);
		store(b, i, dtype, values[i % n]);
	}
	for (int op = BNET_SUM; op <= last_op(dtype); op++) {
		check_int(bnet_coll_reduce_local(out, a, b, n * n, dtype, op), 0);
		for (size_t i = 0; i < n * n; i++)
			check_element(load(out, i, dtype), values[i / n], values[i % n], dtype, op);
	}
}

static void test_special(void)
{
	/* zeros, subnormals, the edges of normal, ties, the largest, infinities, NaNs (quiet, signalling, payload) */
	static const uint64_t half[] = {0,      0x8000, 1,      2,      3,      0x3ff,  0x400,  0x401,
					0x8001, 0x83ff, 0x3c00, 0x3c01, 0xbc00, 0x4bff, 0x6800, 0x6801,
					0x77ff, 0x7bff, 0xfbff, 0x7c00, 0xfc00, 0x7e00, 0x7c01, 0xfe55};
	static const uint64_t bfloat[] = {0,      0x8000, 1,      2,      0x7f,   0x80,   0x81,
					  0x8001, 0x3f80, 0x3f81, 0xbf80, 0x4b80, 0x7f7f, 0xff7f,
					  0x7f7e, 0x7f80, 0xff80, 0x7fc0, 0x7f81, 0x7fff, 0xffff};
	static const uint64_t single[] = {0,          0x80000000, 1,          0x7fffff,   0x800000,   0x3f800000,
					  0xbf800000, 0x7f7fffff, 0x7f800000, 0xff800000, 0x7fc00000, 0x7f800001};
	static const uint64_t int32[] = {0, 1, 0xffffffff, 0x7fffffff, 0x80000000, 0x80000001, 0x10000};
	static const uint64_t int64[] = {0, 1, UINT64_MAX, INT64_MAX, UINT64_C(1) << 63, UINT64_C(1) << 32};
	static const uint64_t int8[] = {0, 1, 2, 0x7f, 0x80, 0x81, 0xff};

	check_special(BNET_FLOAT16, half, sizeof(half) / sizeof(half[0]));
	check_special(BNET_BFLOAT16, bfloat, sizeof(bfloat) / sizeof(bfloat[0]));
	check_special(BNET_FLOAT32, single, sizeof(single) / sizeof(single[0]));
	check_special(BNET_INT32, int32, sizeof(int32) / sizeof(int32[0]));
	check_special(BNET_INT64, int64, sizeof(int64) / sizeof(int64[0]));
	check_special(BNET_INT8, int8, sizeof(int8) / sizeof(int8[0]));
	check_special(BNET_UINT8, int8, sizeof(int8) / sizeof(int8[0]));
}

/* Every 16-bit float survives the conversion to float32 and back; a NaN stays a NaN with its sign. The two lengths test
 * the tail and the vector part of the conversion. */
static void test_every_half(void)
{
	static uint16_t values[65536], out[65536];

	for (int dtype = BNET_FLOAT16; dtype <= BNET_BFLOAT16; dtype++) {
		for (size_t length = 1; length <= 65536; length *= 65536) {
			for (size_t i = 0; i < 65536; i++)
				values[i] = out[i] = (uint16_t)i;
			for (size_t i = 0; i < 65536; i += length)
				check_int(bnet_coll_scale_local(out + i, length, dtype, 1), 0);
			for (size_t i = 0; i < 65536; i++) {
				if (isnan(decode(values[i], dtype)))
					check(isnan(decode(out[i], dtype)) && (out[i] ^ values[i]) < 0x8000);
				else
					check_int(out[i], values[i]);
			}
		}
	}
}

/* ---- the division of an average ---- */

static void test_scale(void)
{
	static const int divisors[] = {1, 2, 3, 5, 64, 1000};
	static char buf[8 * MAX_COUNT], copy[sizeof(buf)];

	for (int dtype = BNET_INT8; dtype <= BNET_FLOAT64; dtype++) {
		const size_t size = bnet_coll_dtype_size(dtype);

		for (size_t d = 0; d < sizeof(divisors) / sizeof(divisors[0]); d++) {
			const int n = divisors[d];

			for (size_t i = 0; i + 8 <= sizeof(buf); i += 8) {
				const uint64_t x = next_random();

				memcpy(buf + i, &x, 8);
			}
			memcpy(copy, buf, sizeof(buf));
			check_int(bnet_coll_scale_local(buf, 1021, dtype, n), 0);
			for (size_t i = 0; i < 1021; i++) {
				const uint64_t was = load(copy, i, dtype), is = load(buf, i, dtype);

				if (!is_float(dtype)) {
					check(integer(is, dtype) == integer(was, dtype) / n);
				} else if (isnan(decode(was, dtype))) {
					check(isnan(decode(is, dtype)));
				} else if (dtype == BNET_FLOAT64) {
					check(decode(is, dtype) == decode(was, dtype) / n);
				} else {
					const float value = (float)decode(was, dtype) / (float)n;

					check(decode(is, dtype) == decode(encode((double)value, dtype), dtype));
				}
			}
			check(memcmp(buf + 1021 * size, copy + 1021 * size, size) == 0);
		}
	}
}

static void test_bad_arguments(void)
{
	double x = 1;

	check_int(bnet_coll_dtype_size(-1), 0);
	check_int(bnet_coll_dtype_size(BNET_FLOAT64 + 1), 0);
	check_int(bnet_coll_dtype_size(BNET_BFLOAT16), 2);
	check_int(bnet_coll_reduce_local(&x, &x, &x, 1, BNET_FLOAT64 + 1, BNET_SUM), -EINVAL);
	check_int(bnet_coll_reduce_local(&x, &x, &x, 1, -1, BNET_SUM), -EINVAL);
	check_int(bnet_coll_reduce_local(&x, &x, &x, 1, BNET_INT64, BNET_BXOR + 1), -EINVAL);
	for (int dtype = BNET_FLOAT16; dtype <= BNET_FLOAT64; dtype++)
		for (int op = BNET_BAND; op <= BNET_BXOR; op++)
			check_int(bnet_coll_reduce_local(&x, &x, &x, 1, dtype, op), -EINVAL);
	check_int(bnet_coll_reduce_local(&x, &x, &x, 1, BNET_FLOAT64, -1), -EINVAL);
	check_int(bnet_coll_scale_local(&x, 1, BNET_FLOAT64, 0), -EINVAL);
	check_int(bnet_coll_scale_local(&x, 1, 99, 2), -EINVAL);
	check(x == 1);
}

int main(void)
{
	test_bad_arguments();
	test_special();
	test_every_half();
	test_reduce();
	test_scale();
	return 0;
}
