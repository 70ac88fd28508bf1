/* SPDX-License-Identifier: MIT
 *
 * See slice.h.
 */
#include "transport/slice.h"

#include "wire/wire.h"

void bnet_claim_init(struct bnet_claim *claim)
{
	atomic_init(&claim->message, 0);
	claim->offset = 0;
}

struct bnet_slice bnet_claim_take(struct bnet_claim *claim, uint64_t size, uint64_t want)
{
	struct bnet_slice slice = {
		.message = atomic_load_explicit(&claim->message, memory_order_relaxed),
		.offset = claim->offset,
		.length = bnet_units(want) * BNET_UNIT,
	};

	claim->offset += slice.length;
	if (claim->offset < size)
		return slice;
	slice.length = size - slice.offset;
	claim->offset = 0;
	atomic_store_explicit(&claim->message, slice.message + 1, memory_order_release);
	return slice;
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
