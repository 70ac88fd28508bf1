/* SPDX-License-Identifier: MIT
 *
 * Arithmetic on sizes that the collectives and the tagged messages share. Pure.
 */
#ifndef BNET_COLL_SIZE_H
#define BNET_COLL_SIZE_H

#include <stddef.h>

/* A cache line: slots, and the parts of a buffer that several ranks work on, begin at one, and therefore at an
 * element. */
#define BNET_COLL_LINE ((size_t)64)

static inline size_t bnet_coll_min(size_t a, size_t b)
{
	return a < b ? a : b;
}

static inline size_t bnet_coll_max(size_t a, size_t b)
{
	return a > b ? a : b;
}

/* Bytes from offset `at` to the end of a block of `total` bytes, at most `most`. */
static inline size_t bnet_coll_left(size_t total, size_t at, size_t most)
{
	return at < total ? bnet_coll_min(most, total - at) : 0;
}

/* Chunks of at most `chunk` bytes that `bytes` bytes take. */
static inline size_t bnet_coll_chunks(size_t bytes, size_t chunk)
{
	return (bytes + chunk - 1) / chunk;
}

static inline size_t bnet_coll_round_up(size_t value, size_t unit)
{
	return bnet_coll_chunks(value, unit) * unit;
}

#endif
