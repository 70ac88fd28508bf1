/* SPDX-License-Identifier: MIT
 *
 * The sender's cutting: up to where the streams of a connection have claimed its messages, and how large a slice is. No
 * system call, no lock; the connection's owner.
 */
#ifndef BNET_SLICE_H
#define BNET_SLICE_H

#include <stdatomic.h>
#include <stdint.h>

/* The next byte of a sender's messages that no stream has claimed. */
struct bnet_claim {
	_Atomic uint64_t message; /* the messages before it are claimed */
	uint64_t offset;
};

struct bnet_slice {
	uint64_t message;
	uint64_t offset;
	uint64_t length;
};

void bnet_claim_init(struct bnet_claim *claim);
/* How many messages are claimed. Any thread. */
static inline uint64_t bnet_claim_messages(const struct bnet_claim *claim)
{
	return atomic_load_explicit(&claim->message, memory_order_acquire);
}
/* Claims up to want bytes (rounded up to BNET_UNIT) of that message, which is posted and has so many bytes. */
struct bnet_slice bnet_claim_take(struct bnet_claim *claim, uint64_t size, uint64_t want);

/* The smallest slice of `size` bytes that `streams` streams share: an equal share, but at least `worth` (below which
 * the fixed cost of a slice dominates on this stream) and BNET_MIN_SLICE, and at most `most`. */
#define BNET_MIN_SLICE 16384
uint64_t bnet_slice_least(uint64_t size, int streams, uint64_t worth, uint64_t most);

/* Bytes that a stream should claim at a time: a share of the unclaimed bytes, so that all streams finish together,
 * between least and most. A lone stream claims most. */
uint64_t bnet_slice_want(uint64_t unclaimed, int streams, uint64_t least, uint64_t most);

#endif
