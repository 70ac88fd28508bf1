/* SPDX-License-Identifier: MIT
 *
 * The codecs of float32: their bound, their bits, values that are not finite, and arguments that do not fit.
 */
#include <errno.h>
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "codec/codec.h"

#define MOST 5000

static const int codecs[] = {BNET_CODEC_U8, BNET_CODEC_U4};
static const size_t blocks[] = {32, 512, 4096};
static const size_t counts[] = {0, 1, 2, 31, 32, 33, 511, 512, 513, 1024, MOST};

static float x[MOST], y[MOST];
static char encoded[8 * MOST];

static uint32_t seed = 12345;

static float uniform(void)
{
	seed = seed * 1664525 + 1013904223;
	return (float)(int32_t)seed / 2147483648.0F;
}

/* Blocks of different ranges: what layers of a network have. */
static void fill(size_t count)
{
	for (size_t i = 0; i < count; i++)
		x[i] = uniform() * (i / 700 % 3 == 0 ? 1e-4F : 30.0F) + (i / 900 % 2 == 0 ? 0.0F : 5.0F);
}

static void round_trip(int codec, size_t block, size_t count)
{
	const size_t bytes = bnet_codec_bytes(codec, block, count);

	memset(encoded, 0x55, sizeof(encoded));
	bnet_codec_encode(codec, block, x, count, encoded);
	check_int(encoded[bytes], 0x55);
	for (size_t i = 0; i < MOST; i++)
		y[i] = 77;
	check_int(bnet_codec_decode(codec, block, encoded, bytes, y, count), 0);
	check(count == MOST || y[count] == 77);
}

/* Half a step, and what float32 rounds. */
static void check_bound(int codec, size_t block, size_t count)
{
	const float top = codec == BNET_CODEC_U8 ? 255 : 15;

	for (size_t at = 0; at < count; at += block) {
		const size_t end = at + block < count ? at + block : count;
		float least = x[at], most = x[at];

		for (size_t i = at; i < end; i++) {
			least = fminf(least, x[i]);
			most = fmaxf(most, x[i]);
		}
		for (size_t i = at; i < end; i++)
			check(fabsf(y[i] - x[i]) <=
			      (most - least) / top / 2 * 1.001F + 8 * FLT_EPSILON * fmaxf(fabsf(least), fabsf(most)));
	}
}

static void bounds(void)
{
	for (size_t c = 0; c < 2; c++)
		for (size_t b = 0; b < sizeof(blocks) / sizeof(blocks[0]); b++)
			for (size_t n = 0; n < sizeof(counts) / sizeof(counts[0]); n++) {
				fill(counts[n]);
				round_trip(codecs[c], blocks[b], counts[n]);
				check_bound(codecs[c], blocks[b], counts[n]);
			}
}

static void sizes(void)
{
	check_int(bnet_codec_bytes(BNET_CODEC_U8, 512, 1024), 2 * 8 + 1024);
	check_int(bnet_codec_bytes(BNET_CODEC_U4, 512, 1025), 3 * 8 + 513);
	check_int(bnet_codec_bytes(BNET_CODEC_U8, 512, 0), 0);
	check_int(bnet_codec_bytes(BNET_CODEC_U8, 500, 1), 0);
	check_int(bnet_codec_bytes(BNET_CODEC_U8, 8192, 1), 0);
	check_int(bnet_codec_bytes(7, 512, 1), 0);
	check_int(bnet_codec_decode(BNET_CODEC_U8, 512, encoded, 1023, y, 1024), -EMSGSIZE);
	check_int(bnet_codec_decode(BNET_CODEC_U8, 0, encoded, 1024, y, 1024), -EINVAL);
}

/* Every rank decodes the bytes of the others: the bits may not depend on the instruction set or on the position in a
 * vector. The expression, element by element. */
static void bits(void)
{
	for (size_t c = 0; c < 2; c++) {
		const float half = codecs[c] == BNET_CODEC_U8 ? 127.5F : 7.5F;
		struct bnet_codec_head head;
		const unsigned char *codes = (const unsigned char *)encoded + sizeof(head);

		fill(509);
		round_trip(codecs[c], 512, 509);
		memcpy(&head, encoded, sizeof(head));
		for (size_t i = 0; i < 509; i++) {
			const unsigned code = c == 0 ? codes[i] : codes[i / 2] >> (i % 2 * 4) & 15;
			volatile float scaled = ((float)code - half) * head.step; /* rounded, whatever the compiler */

			check(y[i] == head.middle + scaled);
		}
	}
}

static void adds(void)
{
	for (size_t c = 0; c < 2; c++) {
		const size_t bytes = bnet_codec_bytes(codecs[c], 64, 1000);
		float sum[1000];

		fill(1000);
		round_trip(codecs[c], 64, 1000);
		for (size_t i = 0; i < 1000; i++)
			sum[i] = (float)i;
		check_int(bnet_codec_decode_add(codecs[c], 64, encoded, bytes, sum, 1000), 0);
		for (size_t i = 0; i < 1000; i++)
			check(sum[i] == (float)i + y[i]);
	}
}

/* The residual is added first, and is then what the code lacks; another code's loss can be added to it. */
static void residuals(void)
{
	enum { COUNT = 1000 };
	float residual[COUNT], sum[COUNT];

	for (size_t c = 0; c < 2; c++) {
		const size_t bytes = bnet_codec_bytes(codecs[c], 64, COUNT);

		fill(COUNT);
		x[70] = INFINITY;
		for (size_t i = 0; i < COUNT; i++) {
			residual[i] = uniform();
			sum[i] = x[i] + residual[i];
		}
		residual[71] = 5;
		bnet_codec_encode_keeping(codecs[c], 64, x, residual, COUNT, encoded);
		check_int(bnet_codec_decode(codecs[c], 64, encoded, bytes, y, COUNT), 0);
		for (size_t i = 0; i < COUNT; i++)
			check(i / 64 == 1 ? isnan(y[i]) : residual[i] == sum[i] - y[i]);
		check(residual[71] == 5);
		bnet_codec_add_loss(codecs[c], 64, encoded, sum, COUNT, 2, residual);
		for (size_t i = 0; i < COUNT; i++)
			check(i / 64 == 1 || residual[i] == 3 * (sum[i] - y[i]));
		check(residual[71] == 5);
	}
}

/* Who looks for an overflow, as a gradient scaler does, finds it on every rank; other blocks are not touched by it. */
static void not_finite(void)
{
	static const float values[] = {NAN, -NAN, INFINITY, -INFINITY};

	for (size_t c = 0; c < 2; c++)
		for (size_t v = 0; v < 4; v++) {
			fill(1000);
			x[600] = values[v];
			round_trip(codecs[c], 512, 1000);
			for (size_t i = 0; i < 1000; i++)
				check((isnan(y[i]) != 0) == (i >= 512));
		}
}

static void extremes(void)
{
	static const float pairs[][2] = {{-FLT_MAX, FLT_MAX}, {FLT_MAX, FLT_MAX}, {0, FLT_TRUE_MIN}, {-0.0F, 0}, {1, 1},
					 {1e-39F, -1e-39F}};

	for (size_t c = 0; c < 2; c++)
		for (size_t p = 0; p < sizeof(pairs) / sizeof(pairs[0]); p++) {
			for (size_t i = 0; i < 64; i++)
				x[i] = pairs[p][i % 2];
			round_trip(codecs[c], 64, 64);
			for (size_t i = 0; i < 64; i++) {
				check(isfinite(y[i]));
				check(fabsf(y[i] - x[i]) <= fabsf(pairs[p][1]) * 1e-6F + FLT_MIN);
			}
		}
}

int main(void)
{
	sizes();
	bounds();
	bits();
	adds();
	residuals();
	not_finite();
	extremes();
	return 0;
}
