/* SPDX-License-Identifier: MIT
 *
 * float32 in one bit and back: the functions of bagua_net.h. Pure: any thread.
 */
#include <endian.h>
#include <errno.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#include "bagua_net_host.h"
#include "codec/codec.h"

#include "codec/clones.h"

/* Elements of a word of signs. */
#define WORD ((size_t)32)
/* Partial sums: their number, and so the order of the additions, is the same on every machine. */
#define LANES ((size_t)16)

/* x is followed by zeros up to a multiple of WORD. */
BNET_CLONES static float magnitude_of(const float *x, size_t count)
{
	float sums[LANES] = {0};
	int32_t counts[LANES] = {0};

	for (size_t at = 0; at < count; at += LANES) {
		BNET_INDEPENDENT
		for (size_t lane = 0; lane < LANES; lane++) {
			sums[lane] = sums[lane] + fabsf(x[at + lane]);
			counts[lane] += x[at + lane] != 0;
		}
	}
	for (size_t half = LANES / 2; half > 0; half /= 2)
		for (size_t lane = 0; lane < half; lane++) {
			sums[lane] = sums[lane] + sums[lane + half];
			counts[lane] += counts[lane + half];
		}
	return counts[0] > 1 ? sums[0] / (float)counts[0] : sums[0];
}

static uint32_t word_at(const uint8_t *signs)
{
	uint32_t word = 0;

	for (size_t i = 0; i < WORD / 8; i++)
		word |= (uint32_t)signs[i] << 8 * i;
	return word;
}

BNET_CLONES static void negative_of(const float *x, size_t count, uint8_t *negative)
{
	BNET_INDEPENDENT
	for (size_t i = 0; i < count; i++) {
		uint32_t bits;

		memcpy(&bits, &x[i], sizeof(bits));
		negative[i] = (uint8_t)(bits >> 31);
	}
}

/* Eight bytes of 0 or 1 at a time: the product has byte i in bit 56 + i, and no two meet in a bit. */
static void pack(const uint8_t *negative, size_t count, uint8_t *signs)
{
	for (size_t at = 0; at < count; at += 8) {
		uint64_t eight;

		memcpy(&eight, negative + at, sizeof(eight));
		signs[at / 8] = (uint8_t)(le64toh(eight) * 0x0102040810204080 >> 56);
	}
}

BNET_CLONES static void lost_of(const float *x, float magnitude, size_t count, float *lost)
{
	BNET_INDEPENDENT
	for (size_t i = 0; i < count; i++)
		lost[i] = x[i] - copysignf(magnitude, x[i]);
}

/* A whole number of words. */
BNET_CLONES static void values_of_signs(const uint8_t *signs, float magnitude, size_t count, float *x)
{
	uint32_t bits;

	memcpy(&bits, &magnitude, sizeof(bits));
	for (size_t at = 0; at < count; at += WORD) {
		const uint32_t word = word_at(signs + at / 8);
		uint32_t values[WORD];

		BNET_INDEPENDENT
		for (uint32_t i = 0; i < WORD; i++)
			values[i] = bits ^ (word >> i & 1) << 31;
		memcpy(x + at, values, sizeof(values));
	}
}

static size_t words_up(size_t count)
{
	return (count + WORD - 1) / WORD * WORD;
}

int bnet_signs_encode(size_t block, const float *x, float *residual, size_t count, uint8_t *signs, float *magnitudes)
{
	float sum[BNET_CODEC_MAX_BLOCK];
	uint8_t negative[BNET_CODEC_MAX_BLOCK];

	if (!bnet_codec_is_valid(BNET_CODEC_U8, block))
		return -EINVAL;
	for (size_t at = 0; at < count; at += block, signs += block / 8, magnitudes++) {
		const size_t here = bnet_codec_rest(count, at, block);

		bnet_codec_sum(x + at, residual + at, here, sum);
		memset(sum + here, 0, (block - here) * sizeof(*sum));
		*magnitudes = magnitude_of(sum, words_up(here));
		negative_of(sum, block, negative);
		pack(negative, block, signs);
		if (isfinite(*magnitudes)) {
			lost_of(sum, *magnitudes, here, residual + at);
		} else {
			*magnitudes = NAN;
			memset(residual + at, 0, here * sizeof(*residual));
		}
	}
	return 0;
}

static int decode(size_t block, const uint8_t *signs, const float *magnitudes, float *x, size_t count, bool adds)
{
	float values[BNET_CODEC_MAX_BLOCK];

	if (!bnet_codec_is_valid(BNET_CODEC_U8, block))
		return -EINVAL;
	for (size_t at = 0; at < count; at += block, signs += block / 8, magnitudes++) {
		const size_t here = bnet_codec_rest(count, at, block);

		values_of_signs(signs, *magnitudes, words_up(here), values);
		if (adds)
			bnet_codec_sum(x + at, values, here, x + at);
		else
			memcpy(x + at, values, here * sizeof(*x));
	}
	return 0;
}

int bnet_signs_decode(size_t block, const uint8_t *signs, const float *magnitudes, float *x, size_t count)
{
	return decode(block, signs, magnitudes, x, count, false);
}

int bnet_signs_decode_add(size_t block, const uint8_t *signs, const float *magnitudes, float *x, size_t count)
{
	return decode(block, signs, magnitudes, x, count, true);
}
