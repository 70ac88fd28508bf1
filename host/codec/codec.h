/* SPDX-License-Identifier: MIT
 *
 * Codecs of float32: a code of 8 or 4 bits for each element, and a range for each block of elements. Pure: any thread.
 * The functions of bagua_net.h, and what the library itself needs besides.
 *
 * Encoded elements are all heads (two floats for each block), then all codes. A code q of a block means
 * middle + (q - top / 2) * step, where top is the largest code. Computed in float32 in this order, without fused
 * operations, that has the same bits on every machine. The middle instead of the least element: no intermediate value
 * overflows, whatever the range.
 */
#ifndef BNET_CODEC_H
#define BNET_CODEC_H

#include <stdbool.h>
#include <stddef.h>

#include "bagua_net_host.h"

struct bnet_codec_head {
	float middle;
	float step; /* NaN: an element was not finite, and all of the block decode to NaN */
};

/* The largest block, in elements. */
#define BNET_CODEC_MAX_BLOCK 4096

/* Elements of the block that begins with element `at`. */
static inline size_t bnet_codec_rest(size_t count, size_t at, size_t block)
{
	return count - at < block ? count - at : block;
}

/* sum = a + b. Each may be the same memory. */
void bnet_codec_sum(const float *a, const float *b, size_t count, float *sum);
bool bnet_codec_is_valid(int codec, size_t block);
/* Encodes x + residual; residual becomes what the code has lost of this sum. A block of it with an element that is not
 * finite leaves its residual as it was. */
void bnet_codec_encode_keeping(int codec, size_t block, const float *x, float *residual, size_t count, void *encoded);
/* residual += factor * what the code of x has lost, except where a block decodes to NaN. */
void bnet_codec_add_loss(int codec, size_t block, const void *encoded, const float *x, size_t count, float factor,
			 float *residual);

#endif
