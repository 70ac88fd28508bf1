/* SPDX-License-Identifier: MIT
 *
 * See reassembly.h.
 */
#include "transport/reassembly.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "wire/wire.h"

void bnet_reassembly_init(struct bnet_reassembly *reassembly)
{
	reassembly->words = reassembly->inline_words;
	reassembly->capacity = BNET_REASSEMBLY_INLINE;
	reassembly->units_left = 0;
}

void bnet_reassembly_destroy(struct bnet_reassembly *reassembly)
{
	if (reassembly->words != reassembly->inline_words)
		free(reassembly->words);
	bnet_reassembly_init(reassembly);
}

int bnet_reassembly_reserve(struct bnet_reassembly *reassembly, uint64_t size)
{
	uint64_t words = (bnet_units(size) + 63) / 64;
	uint64_t *grown;

	if (words <= reassembly->capacity)
		return 0;
	grown = calloc(words, sizeof(*grown));
	if (!grown)
		return -ENOMEM;
	bnet_reassembly_destroy(reassembly);
	reassembly->words = grown;
	reassembly->capacity = words;
	return 0;
}

void bnet_reassembly_start(struct bnet_reassembly *reassembly, uint64_t size)
{
	uint64_t n = bnet_units(size);

	memset(reassembly->words, 0, (n + 63) / 64 * sizeof(*reassembly->words));
	/* An empty message is one slice of no unit: it counts as one. */
	reassembly->units_left = n ? n : 1;
}

/* The bits of units first … first+count-1 that lie in word w. */
static uint64_t mask(uint64_t w, uint64_t first, uint64_t count)
{
	uint64_t from = first > w * 64 ? first - w * 64 : 0;
	uint64_t to = first + count - w * 64; /* exclusive */
	uint64_t high = to >= 64 ? UINT64_MAX : (UINT64_C(1) << to) - 1;

	return high & ~((UINT64_C(1) << from) - 1);
}

int bnet_reassembly_place(struct bnet_reassembly *reassembly, uint64_t offset, uint64_t length)
{
	uint64_t first = offset / BNET_UNIT, count = bnet_units(length);
	bool some = false, all = true;

	if (count == 0)
		return 0; /* an empty message: its one slice is over as soon as it begins */
	for (uint64_t w = first / 64; w <= (first + count - 1) / 64; w++) {
		uint64_t want = mask(w, first, count);
		uint64_t have = reassembly->words[w] & want;

		some |= have != 0;
		all &= have == want;
	}
	if (some)
		return all ? 1 : -EBADMSG;
	for (uint64_t w = first / 64; w <= (first + count - 1) / 64; w++)
		reassembly->words[w] |= mask(w, first, count);
	return 0;
}

void bnet_reassembly_take_back(struct bnet_reassembly *reassembly, uint64_t offset, uint64_t length)
{
	uint64_t first = offset / BNET_UNIT, count = bnet_units(length);

	for (uint64_t w = first / 64; count && w <= (first + count - 1) / 64; w++)
		reassembly->words[w] &= ~mask(w, first, count);
}

bool bnet_reassembly_arrived(struct bnet_reassembly *reassembly, uint64_t length)
{
	reassembly->units_left -= length ? bnet_units(length) : 1;
	return reassembly->units_left == 0;
}
