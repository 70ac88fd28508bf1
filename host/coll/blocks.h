/* SPDX-License-Identifier: MIT
 *
 * A buffer with one block for each rank: contiguous in rank order, or anywhere. Pure.
 */
#ifndef BNET_COLL_BLOCKS_H
#define BNET_COLL_BLOCKS_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

struct bnet_coll_blocks {
	char *base;           /* the first block, or NULL with… */
	void *const *each;    /* … the address of each block */
	size_t bytes;         /* of every block, unless… */
	const size_t *counts; /* … NULL: of each block, in units of… */
	size_t unit;          /* … so many bytes, or… */
	size_t total;         /* … 0: of all blocks, of which the last ones may be shorter, or empty */
};

static inline size_t bnet_coll_block_bytes(const struct bnet_coll_blocks *blocks, int rank)
{
	const size_t at = (size_t)rank * blocks->bytes;

	if (blocks->counts != NULL)
		return blocks->counts[rank] * blocks->unit;
	if (blocks->total == 0 || at + blocks->bytes <= blocks->total)
		return blocks->bytes;
	return at < blocks->total ? blocks->total - at : 0;
}

static inline char *bnet_coll_block_at(const struct bnet_coll_blocks *blocks, int rank)
{
	size_t at = 0;

	if (blocks->each != NULL)
		return blocks->each[rank];
	if (blocks->counts == NULL)
		at = (size_t)rank * blocks->bytes;
	for (int before = 0; before < rank && blocks->counts != NULL; before++)
		at += blocks->counts[before] * blocks->unit;
	/* An empty buffer may have no address, which C does not let one add to. */
	return (char *)((uintptr_t)blocks->base + at);
}

/* From the first byte of any block to the last one: with other memory in between. end is 0 where all are empty. */
struct bnet_coll_span {
	uintptr_t first;
	uintptr_t end;
};

static inline struct bnet_coll_span bnet_coll_blocks_span(const struct bnet_coll_blocks *blocks, int nranks)
{
	struct bnet_coll_span span = {.first = UINTPTR_MAX, .end = 0};

	for (int rank = 0; rank < nranks; rank++) {
		const uintptr_t at = (uintptr_t)bnet_coll_block_at(blocks, rank);
		const size_t bytes = bnet_coll_block_bytes(blocks, rank);

		if (bytes == 0)
			continue;
		span.first = at < span.first ? at : span.first;
		span.end = at + bytes > span.end ? at + bytes : span.end;
	}
	return span;
}

/* Nothing, or from the same place: then nothing is done. Otherwise the two do not overlap. */
static inline void bnet_coll_copy_bytes(char *to, const char *from, size_t bytes)
{
	if (bytes > 0 && to != from)
		memcpy(to, from, bytes);
}

#endif
