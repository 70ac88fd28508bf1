/* SPDX-License-Identifier: MIT
 *
 * See slice.h.
 */
#include "transport/slice.h"

#include "wire/wire.h"

static uint64_t pack(uint64_t message, uint64_t offset)
{
	return message << 32 | (offset / BNET_UNIT & UINT32_MAX);
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
	uint64_t length = bnet_units(want) * BNET_UNIT;
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
	if (least < BNET_MIN_SLICE)
		least = BNET_MIN_SLICE;
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
