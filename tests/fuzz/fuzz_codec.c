/* SPDX-License-Identifier: MIT
 *
 * The decoder of codecs on arbitrary bytes: it stays within its buffers, and what it decodes can be encoded.
 */
#include <stdlib.h>
#include <string.h>

#include "codec/codec.h"

#define MOST 1024

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	const int codec = size > 0 && data[0] & 1 ? BNET_CODEC_U4 : BNET_CODEC_U8;
	const size_t block = size > 1 ? (size_t)(data[1] % 8 + 1) * 32 : 32;
	size_t count = 0;
	float *x;
	void *again;

	if (size < 2)
		return 0;
	data += 2;
	size -= 2;
	while (count < MOST && bnet_codec_bytes(codec, block, count) < size)
		count++;
	x = calloc(count + 1, sizeof(*x)); /* of exactly that size, so that the sanitizer sees what is beyond */
	again = malloc(size + 16);
	if (x == NULL || again == NULL)
		abort();
	if (bnet_codec_decode(codec, block, data, size, x, count) == 0) {
		if (bnet_codec_decode_add(codec, block, data, size, x, count) != 0)
			abort();
		bnet_codec_encode(codec, block, x, count, again);
	}
	free(x);
	free(again);
	return 0;
}
