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

#include "bagua_net.h"

struct bnet_codec_head {
	float middle;
	float step; /* NaN: an element was not finite, and all of the block decode to NaN */
};

bool bnet_codec_is_valid(int codec, size_t block);
/* x[i] += the decoded element, instead of x[i] = it. The same arguments and results as bnet_codec_decode. */
int bnet_codec_decode_add(int codec, size_t block, const void *encoded, size_t bytes, float *x, size_t count);

#endif
