/* SPDX-License-Identifier: MIT
 *
 * Signs and magnitudes of float32: their bits, what they lose, values that are not finite, and shorter blocks.
 */
#include <errno.h>
#include <float.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#include "bagua_net_host.h"
#include "check.h"

#define MOST 5000
#define BLOCK ((size_t)64)

static float x[MOST], residual[MOST], sum[MOST], y[MOST];
static uint8_t signs[MOST];
static float magnitudes[MOST];

static uint32_t seed = 12345;

static float uniform(void)
{
	seed = seed * 1664525 + 1013904223;
	return (float)(int32_t)seed / 2147483648.0F;
}

/* Some elements of the sum are zeros, of both signs. */
static void fill(size_t count)
{
	for (size_t i = 0; i < count; i++) {
		x[i] = uniform();
		residual[i] = i % 7 == 0 ? -x[i] : uniform();
		if (i % 14 == 0)
			x[i] = residual[i] = -0.0F;
		sum[i] = x[i] + residual[i];
	}
}

static void encode(size_t block, size_t count)
{
	memset(signs, 0x55, sizeof(signs));
	for (size_t i = 0; i < MOST; i++)
		magnitudes[i] = 77;
	check_int(bnet_signs_encode(block, x, residual, count, signs, magnitudes), 0);
}

static float mean_of(size_t from, size_t end)
{
	double total = 0;
	int number = 0;

	for (size_t i = from; i < end; i++) {
		total += fabs((double)sum[i]);
		number += sum[i] != 0;
	}
	return (float)(total / (number > 0 ? number : 1));
}

static void means_and_bits(size_t block, size_t count)
{
	const size_t blocks = (count + block - 1) / block;

	fill(count);
	encode(block, count);
	check_int(signs[blocks * block / 8], 0x55);
	check(magnitudes[blocks] == 77);
	for (size_t b = 0; b < blocks; b++) {
		const size_t end = (b + 1) * block < count ? (b + 1) * block : count;
		const float mean = mean_of(b * block, end);

		check(fabsf(magnitudes[b] - mean) <= mean * 1e-5F);
		for (size_t i = b * block; i < (b + 1) * block; i++)
			check_int(signs[i / 8] >> i % 8 & 1, i < count && signbit(sum[i]));
	}
}

static void round_trip(size_t block, size_t count)
{
	for (size_t i = 0; i < MOST; i++)
		y[i] = 77;
	check_int(bnet_signs_decode(block, signs, magnitudes, y, count), 0);
	check(count == MOST || y[count] == 77);
	for (size_t i = 0; i < count; i++) {
		check(y[i] == (signbit(sum[i]) ? -magnitudes[i / block] : magnitudes[i / block]));
		check(residual[i] == sum[i] - y[i]);
	}
	check_int(bnet_signs_decode_add(block, signs, magnitudes, y, count), 0);
	check(count == MOST || y[count] == 77);
	for (size_t i = 0; i < count; i++)
		check(fabsf(y[i]) == 2 * magnitudes[i / block]);
}

static void all_sizes(void)
{
	static const size_t blocks[] = {32, 96, 512, 4096};
	static const size_t counts[] = {0, 1, 15, 16, 31, 32, 33, 511, 512, 513, 1024, 4900};

	for (size_t b = 0; b < sizeof(blocks) / sizeof(blocks[0]); b++)
		for (size_t n = 0; n < sizeof(counts) / sizeof(counts[0]); n++) {
			means_and_bits(blocks[b], counts[n]);
			round_trip(blocks[b], counts[n]);
		}
}

/* Of the inputs, or only of their sum or its magnitude. The other blocks are not touched by it. */
static void not_finite(void)
{
	static const float values[] = {NAN, INFINITY, -INFINITY, FLT_MAX};

	for (size_t v = 0; v < 4; v++) {
		fill(3 * BLOCK);
		x[BLOCK + 3] = residual[BLOCK + 3] = values[v];
		sum[BLOCK + 3] = values[v] + values[v];
		encode(BLOCK, 3 * BLOCK);
		check_int(bnet_signs_decode(BLOCK, signs, magnitudes, y, 3 * BLOCK), 0);
		for (size_t i = 0; i < 3 * BLOCK; i++) {
			check((isnan(y[i]) != 0) == (i / BLOCK == 1));
			check(residual[i] == (i / BLOCK == 1 ? 0 : sum[i] - y[i]));
		}
	}
}

static void nothing_but_zeros(void)
{
	memset(x, 0, sizeof(x));
	memset(residual, 0, sizeof(residual));
	encode(BLOCK, BLOCK);
	check(magnitudes[0] == 0);
	check_int(bnet_signs_decode(BLOCK, signs, magnitudes, y, BLOCK), 0);
	for (size_t i = 0; i < BLOCK; i++)
		check(y[i] == 0 && residual[i] == 0);
}

static void wrong_blocks(void)
{
	static const size_t wrong[] = {0, 8, 33, 8192};

	for (size_t b = 0; b < sizeof(wrong) / sizeof(wrong[0]); b++) {
		check_int(bnet_signs_encode(wrong[b], x, residual, 1, signs, magnitudes), -EINVAL);
		check_int(bnet_signs_decode(wrong[b], signs, magnitudes, y, 1), -EINVAL);
		check_int(bnet_signs_decode_add(wrong[b], signs, magnitudes, y, 1), -EINVAL);
	}
}

int main(void)
{
	all_sizes();
	not_finite();
	nothing_but_zeros();
	wrong_blocks();
	return 0;
}
