/* SPDX-License-Identifier: MIT
 *
 * See codec.h.
 */
#include "codec/codec.h"

#include <errno.h>
#include <float.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#include "codec/clones.h"

#define MIN_BLOCK 32

/* ---- sizes ---- */

bool bnet_codec_is_valid(int codec, size_t block)
{
	return (codec == BNET_CODEC_U8 || codec == BNET_CODEC_U4) && block >= MIN_BLOCK &&
	       block <= BNET_CODEC_MAX_BLOCK && block % MIN_BLOCK == 0;
}

static size_t blocks_of(size_t block, size_t count)
{
	return count / block + (count % block != 0);
}

/* Codes of a block of so many elements. A block begins with a whole byte: blocks have an even number of elements. */
static size_t code_bytes(int codec, size_t count)
{
	return codec == BNET_CODEC_U8 ? count : count / 2 + count % 2;
}

size_t bnet_codec_bytes(int codec, size_t block, size_t count)
{
	if (!bnet_codec_is_valid(codec, block))
		return 0;
	return blocks_of(block, count) * sizeof(struct bnet_codec_head) + code_bytes(codec, count);
}

/* ---- the range of a block ---- */

/* Integers in the order of the floats: comparing them vectorizes without leave to ignore NaN and signed zeros. */
static inline int32_t order_of(int32_t bits)
{
	return bits ^ (int32_t)((uint32_t)(bits >> 31) & 0x7fffffff);
}

static float float_of(int32_t order)
{
	const int32_t bits = order_of(order);
	float value;

	memcpy(&value, &bits, sizeof(value));
	return value;
}

struct range {
	int32_t least, most;
};

BNET_CLONES static struct range range_of(const float *x, size_t count)
{
	int32_t least = INT32_MAX, most = INT32_MIN;

	BNET_INDEPENDENT
	for (size_t i = 0; i < count; i++) {
		int32_t bits, order;

		memcpy(&bits, &x[i], sizeof(bits));
		order = order_of(bits);
		least = order < least ? order : least;
		most = order > most ? order : most;
	}
	return (struct range){least, most};
}

static struct bnet_codec_head head_of(const float *x, size_t count, float half)
{
	const struct range range = range_of(x, count);
	const float least = float_of(range.least), most = float_of(range.most);
	struct bnet_codec_head head;

	if (!isfinite(least) || !isfinite(most))
		return (struct bnet_codec_head){NAN, NAN};
	head.middle = least * 0.5F + most * 0.5F;
	head.step = (most * 0.5F - least * 0.5F) / half;
	if (head.step < FLT_MIN) /* its inverse would overflow */
		head.step = 0;
	return head;
}

/* ---- codes ---- */

/* Rounds to the nearest code. The numbers are small where the head is finite, and otherwise nobody reads the codes. */
BNET_CLONES static void codes_of(const float *x, size_t count, struct bnet_codec_head head, float half, uint8_t *codes)
{
	const float inverse = head.step > 0 ? 1 / head.step : 0, middle = head.middle, zero = half + 0.5F;
	const int32_t top = (int32_t)(2 * half);

	BNET_INDEPENDENT
	for (size_t i = 0; i < count; i++) {
		int32_t code = (int32_t)((x[i] - middle) * inverse + zero);

		code = code < 0 ? 0 : code;
		codes[i] = (uint8_t)(code > top ? top : code);
	}
}

BNET_CLONES static void pack(const uint8_t *codes, size_t count, uint8_t *packed)
{
	BNET_INDEPENDENT
	for (size_t i = 0; i < count / 2; i++)
		packed[i] = (uint8_t)(codes[2 * i] | codes[2 * i + 1] << 4);
	if (count % 2 != 0)
		packed[count / 2] = codes[count - 1];
}

BNET_CLONES static void unpack(const uint8_t *packed, size_t count, uint8_t *codes)
{
	BNET_INDEPENDENT
	for (size_t i = 0; i < count / 2; i++) {
		codes[2 * i] = packed[i] & 15;
		codes[2 * i + 1] = packed[i] >> 4;
	}
	if (count % 2 != 0)
		codes[count - 1] = packed[count / 2] & 15;
}

BNET_CLONES static void values_of(const uint8_t *codes, size_t count, struct bnet_codec_head head, float half, float *x)
{
	const float middle = head.middle, step = head.step;

	BNET_INDEPENDENT
	for (size_t i = 0; i < count; i++)
		x[i] = middle + ((float)codes[i] - half) * step;
}

BNET_CLONES static void add_values_of(const uint8_t *codes, size_t count, struct bnet_codec_head head, float half,
				      float *x)
{
	const float middle = head.middle, step = head.step;

	BNET_INDEPENDENT
	for (size_t i = 0; i < count; i++)
		x[i] = x[i] + (middle + ((float)codes[i] - half) * step);
}

BNET_CLONES static void sum_of(const float *a, const float *b, size_t count, float *sum)
{
	BNET_INDEPENDENT
	for (size_t i = 0; i < count; i++)
		sum[i] = a[i] + b[i];
}

/* clang 14 gives no other file a name of a function that has clones. */
void bnet_codec_sum(const float *a, const float *b, size_t count, float *sum)
{
	sum_of(a, b, count, sum);
}

BNET_CLONES static void add_loss_of(const uint8_t *codes, size_t count, struct bnet_codec_head head, float half,
				    const float *x, float factor, float *residual)
{
	const float middle = head.middle, step = head.step;

	BNET_INDEPENDENT
	for (size_t i = 0; i < count; i++) {
		const float lost = x[i] - (middle + ((float)codes[i] - half) * step);

		residual[i] = residual[i] + lost * factor;
	}
}

/* ---- one block ---- */

static float half_of(int codec)
{
	return codec == BNET_CODEC_U8 ? 127.5F : 7.5F;
}

static struct bnet_codec_head encode_block(int codec, const float *x, size_t count, char *head_at, uint8_t *codes)
{
	const float half = half_of(codec);
	const struct bnet_codec_head head = head_of(x, count, half);
	uint8_t wide[BNET_CODEC_MAX_BLOCK];

	memcpy(head_at, &head, sizeof(head));
	if (isnan(head.step)) {
		memset(codes, 0, code_bytes(codec, count));
		return head;
	}
	codes_of(x, count, head, half, codec == BNET_CODEC_U4 ? wide : codes);
	if (codec == BNET_CODEC_U4)
		pack(wide, count, codes);
	return head;
}

/* The codes of a block, one in each byte: where they are, or in `wide`. */
static const uint8_t *codes_at(int codec, const uint8_t *codes, size_t count, uint8_t wide[BNET_CODEC_MAX_BLOCK])
{
	if (codec == BNET_CODEC_U8)
		return codes;
	unpack(codes, count, wide);
	return wide;
}

/* ---- all blocks ---- */

static uint8_t *codes_after_heads(const void *encoded, size_t block, size_t count)
{
	return (uint8_t *)(uintptr_t)encoded + blocks_of(block, count) * sizeof(struct bnet_codec_head);
}

void bnet_codec_encode(int codec, size_t block, const float *x, size_t count, void *encoded)
{
	char *head_at = encoded;
	uint8_t *codes = codes_after_heads(encoded, block, count);

	for (size_t at = 0; at < count; at += block, head_at += sizeof(struct bnet_codec_head)) {
		const size_t here = bnet_codec_rest(count, at, block);

		encode_block(codec, x + at, here, head_at, codes);
		codes += code_bytes(codec, here);
	}
}

void bnet_codec_encode_keeping(int codec, size_t block, const float *x, float *residual, size_t count, void *encoded)
{
	char *head_at = encoded;
	uint8_t *codes = codes_after_heads(encoded, block, count);
	uint8_t wide[BNET_CODEC_MAX_BLOCK];
	float sum[BNET_CODEC_MAX_BLOCK];

	for (size_t at = 0; at < count; at += block, head_at += sizeof(struct bnet_codec_head)) {
		const size_t here = bnet_codec_rest(count, at, block);
		struct bnet_codec_head head;

		bnet_codec_sum(x + at, residual + at, here, sum);
		head = encode_block(codec, sum, here, head_at, codes);
		if (!isnan(head.step)) {
			memset(residual + at, 0, here * sizeof(*residual));
			add_loss_of(codes_at(codec, codes, here, wide), here, head, half_of(codec), sum, 1,
				    residual + at);
		}
		codes += code_bytes(codec, here);
	}
}

void bnet_codec_add_loss(int codec, size_t block, const void *encoded, const float *x, size_t count, float factor,
			 float *residual)
{
	const char *head_at = encoded;
	const uint8_t *codes = codes_after_heads(encoded, block, count);
	uint8_t wide[BNET_CODEC_MAX_BLOCK];

	for (size_t at = 0; at < count; at += block, head_at += sizeof(struct bnet_codec_head)) {
		const size_t here = bnet_codec_rest(count, at, block);
		struct bnet_codec_head head;

		memcpy(&head, head_at, sizeof(head));
		if (!isnan(head.step))
			add_loss_of(codes_at(codec, codes, here, wide), here, head, half_of(codec), x + at, factor,
				    residual + at);
		codes += code_bytes(codec, here);
	}
}

static int decode(int codec, size_t block, const void *encoded, size_t bytes, float *x, size_t count, bool adds)
{
	const float half = half_of(codec);
	const char *head_at = encoded;
	const uint8_t *codes;
	uint8_t wide[BNET_CODEC_MAX_BLOCK];

	if (!bnet_codec_is_valid(codec, block))
		return -EINVAL;
	if (bytes != bnet_codec_bytes(codec, block, count))
		return -EMSGSIZE;
	codes = codes_after_heads(encoded, block, count);
	for (size_t at = 0; at < count; at += block, head_at += sizeof(struct bnet_codec_head)) {
		const size_t here = bnet_codec_rest(count, at, block);
		const uint8_t *from = codes_at(codec, codes, here, wide);
		struct bnet_codec_head head;

		memcpy(&head, head_at, sizeof(head));
		if (adds)
			add_values_of(from, here, head, half, x + at);
		else
			values_of(from, here, head, half, x + at);
		codes += code_bytes(codec, here);
	}
	return 0;
}

int bnet_codec_decode(int codec, size_t block, const void *encoded, size_t bytes, float *x, size_t count)
{
	return decode(codec, block, encoded, bytes, x, count, false);
}

int bnet_codec_decode_add(int codec, size_t block, const void *encoded, size_t bytes, float *x, size_t count)
{
	return decode(codec, block, encoded, bytes, x, count, true);
}
