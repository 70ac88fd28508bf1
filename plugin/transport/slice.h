/* SPDX-License-Identifier: MIT
 *
 * The sender's cutting: the claim word that the streams of a connection advance, and how large a slice is. No system
 * call, no lock; any number of threads.
 */
#ifndef BNET_SLICE_H
#define BNET_SLICE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* {message number (low 32 bits), offset / BNET_UNIT}: the next unclaimed byte. It is one word so that a thread that was
 * preempted between reading a message and claiming a slice of it fails the exchange once anything has moved, and cannot
 * claim from the message that now occupies the same slot. */
struct bnet_claim {
	_Atomic uint64_t word;
};

struct bnet_slice {
	uint64_t message; /* full number */
	uint64_t offset;
	uint64_t length;
	bool last; /* the message has no further slice */
};

/* A reading of the claim word. */
struct bnet_claim_view {
	uint64_t word;
	uint64_t message;
	uint64_t offset;
};

void bnet_claim_init(struct bnet_claim *claim);
/* The state now. posted: how many messages have been posted, at least as many as the word has seen. */
struct bnet_claim_view bnet_claim_look(const struct bnet_claim *claim, uint64_t posted);
/* Claims up to want bytes (rounded up to BNET_UNIT) of the message under view, whose size the caller read after view.
 * False: another thread moved the word; look again. */
bool bnet_claim_take(struct bnet_claim *claim, const struct bnet_claim_view *view, uint64_t size, uint64_t want,
		     struct bnet_slice *slice);

/* The smallest slice of `size` bytes that `streams` streams share: an equal share, but at least `worth` (below which
 * the fixed cost of a slice dominates on this stream) and BNET_MIN_SLICE, and at most `most`. */
#define BNET_MIN_SLICE 16384
uint64_t bnet_slice_least(uint64_t size, int streams, uint64_t worth, uint64_t most);

/* Bytes that a stream should claim at a time: a share of the unclaimed bytes, so that all streams finish together,
 * between least and most. A lone stream claims most. */
uint64_t bnet_slice_want(uint64_t unclaimed, int streams, uint64_t least, uint64_t most);

#endif
