/* SPDX-License-Identifier: MIT
 *
 * Cutting messages and ticking them off; see claim.h. Any thread.
 */
#include "transport/slice.h"

#include <errno.h>
#include <stdlib.h>

static uint64_t pack(uint64_t message, uint64_t offset)
{
	return message << 32 | (offset / BNET_UNIT & UINT32_MAX);
}

static uint64_t units(uint64_t bytes)
{
	return (bytes + BNET_UNIT - 1) / BNET_UNIT;
}

void bnet_claim_init(struct bnet_claim *claim)
{
	atomic_init(&claim->word, 0);
}

struct bnet_claim_view bnet_claim_look(const struct bnet_claim *claim, uint64_t posted)
{
	uint64_t word = atomic_load_explicit(&claim->word, memory_order_acquire);
	/* The word is never ahead of posted and never 2^32 messages behind it. */
	uint32_t behind = (uint32_t)posted - (uint32_t)(word >> 32);

	return (struct bnet_claim_view){
		.word = word,
		.message = posted - behind,
		.offset = (word & UINT32_MAX) * BNET_UNIT,
	};
}

bool bnet_claim_take(struct bnet_claim *claim, const struct bnet_claim_view *view, uint64_t size, uint64_t want,
		     struct bnet_slice *slice)
{
	uint64_t left = size - view->offset;
	uint64_t length = units(want) * BNET_UNIT;
	bool last = length >= left;
	uint64_t expected = view->word;
	uint64_t next;

	if (last)
		length = left;
	next = last ? pack(view->message + 1, 0) : pack(view->message, view->offset + length);
	if (!atomic_compare_exchange_strong_explicit(&claim->word, &expected, next, memory_order_acq_rel,
						     memory_order_relaxed))
		return false;
	*slice = (struct bnet_slice){view->message, view->offset, length, last};
	return true;
}

uint64_t bnet_slice_least(uint64_t size, int streams, uint64_t worth, uint64_t most)
{
	uint64_t least = size / (uint64_t)streams;

	if (least < worth)
		least = worth;
	if (least < BNET_LEAST_SLICE)
		least = BNET_LEAST_SLICE;
	return least < most ? least : most;
}

uint64_t bnet_slice_want(uint64_t unclaimed, int streams, uint64_t least, uint64_t most)
{
	uint64_t want;

	if (streams <= 1)
		return most;
	/* Half of an equal share: what a faster stream does not leave to the others, it comes back for. */
	want = unclaimed / (2 * (uint64_t)streams);
	if (want < least)
		want = least;
	return want > most ? most : want;
}

void bnet_reassembly_init(struct bnet_reassembly *map)
{
	map->words = map->inline_words;
	map->capacity = BNET_REASSEMBLY_INLINE;
	atomic_init(&map->units_left, 0);
}

void bnet_reassembly_destroy(struct bnet_reassembly *map)
{
	if (map->words != map->inline_words)
		free(map->words);
	bnet_reassembly_init(map);
}

int bnet_reassembly_reserve(struct bnet_reassembly *map, uint64_t size)
{
	uint64_t words = (units(size) + 63) / 64;
	_Atomic uint64_t *grown;

	if (words <= map->capacity)
		return 0;
	grown = calloc(words, sizeof(*grown));
	if (!grown)
		return -ENOMEM;
	bnet_reassembly_destroy(map);
	map->words = grown;
	map->capacity = words;
	return 0;
}

void bnet_reassembly_start(struct bnet_reassembly *map, uint64_t size)
{
	uint64_t n = units(size);

	for (uint64_t i = 0; i < (n + 63) / 64; i++)
		atomic_store_explicit(&map->words[i], 0, memory_order_relaxed);
	/* An empty message is one slice of no unit: it counts as one. */
	atomic_store_explicit(&map->units_left, n ? n : 1, memory_order_release);
}

/* The bits of units first … first+count-1 that lie in word w. */
static uint64_t mask(uint64_t w, uint64_t first, uint64_t count)
{
	uint64_t from = first > w * 64 ? first - w * 64 : 0;
	uint64_t to = first + count - w * 64; /* exclusive */
	uint64_t high = to >= 64 ? UINT64_MAX : (UINT64_C(1) << to) - 1;

	return high & ~((UINT64_C(1) << from) - 1);
}

int bnet_reassembly_place(struct bnet_reassembly *map, uint64_t offset, uint64_t length)
{
	uint64_t first = offset / BNET_UNIT, count = units(length);
	bool some = false, all = true;

	if (count == 0)
		return 0; /* an empty message: its one slice is over as soon as it begins */
	for (uint64_t w = first / 64; w <= (first + count - 1) / 64; w++) {
		uint64_t want = mask(w, first, count);
		uint64_t have = atomic_load_explicit(&map->words[w], memory_order_acquire) & want;

		some |= have != 0;
		all &= have == want;
	}
	if (some)
		return all ? 1 : -EBADMSG;
	for (uint64_t w = first / 64; w <= (first + count - 1) / 64; w++)
		atomic_fetch_or_explicit(&map->words[w], mask(w, first, count), memory_order_relaxed);
	return 0;
}

bool bnet_reassembly_arrived(struct bnet_reassembly *map, uint64_t length)
{
	uint64_t count = length ? units(length) : 1;

	return atomic_fetch_sub_explicit(&map->units_left, count, memory_order_acq_rel) == count;
}
