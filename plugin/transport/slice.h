/* SPDX-License-Identifier: MIT
 *
 * How a message is cut and who takes what: the claim word that senders' streams advance, and the map in which a
 * receiver ticks off what has arrived. No system call, no lock; any number of threads.
 */
#ifndef BNET_CLAIM_H
#define BNET_CLAIM_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "wire/wire.h"

/* {message number (low 32 bits), offset / BNET_UNIT}: the next byte that nobody has taken. One word, so that a thread
 * that was preempted between reading a message and taking a piece of it fails the exchange once anything moved, and
 * cannot take a piece of the message that now lives in the same slot. */
struct bnet_claim {
	_Atomic uint64_t word;
};

struct bnet_slice {
	uint64_t message; /* full number */
	uint64_t offset;
	uint64_t length;
	bool last;        /* the message has no further slice */
};

/* What the claimant needs to know of the message under the word. */
struct bnet_claim_view {
	uint64_t word;
	uint64_t message;
	uint64_t offset;
};

void bnet_claim_init(struct bnet_claim *claim);
/* The state now. posted: how many messages have been posted, at least as many as the word has seen. */
struct bnet_claim_view bnet_claim_look(const struct bnet_claim *claim, uint64_t posted);
/* Takes up to want bytes (rounded up to BNET_UNIT) of the message under view, whose size the caller read after
 * view. False: somebody else was faster, look again. */
bool bnet_claim_take(struct bnet_claim *claim, const struct bnet_claim_view *view, uint64_t size, uint64_t want,
		     struct bnet_slice *slice);

/* The smallest slice where so many bytes are to go: an equal share, but no less than is worth a slice on this stream,
 * or on any; and no more than most. */
#define BNET_LEAST_SLICE 16384
uint64_t bnet_slice_least(uint64_t size, int streams, uint64_t worth, uint64_t most);

/* Bytes that a stream should take at a time: a share of what is unclaimed, so that all streams finish together,
 * between least and most. One stream has nobody to wait for and takes most. */
uint64_t bnet_slice_want(uint64_t unclaimed, int streams, uint64_t least, uint64_t most);

/* ---- the receiver's map ---- */

/* One bit for each BNET_UNIT of a message, set when a slice is placed, and a count of what has arrived. A slice that is
 * still coming keeps its message unfinished, so that its place cannot be given back under it. Small messages need no
 * allocation. */
#define BNET_REASSEMBLY_INLINE 16 /* words: 4 MiB */
struct bnet_reassembly {
	_Atomic uint64_t inline_words[BNET_REASSEMBLY_INLINE];
	_Atomic uint64_t *words; /* inline_words, or memory that only grows */
	uint64_t capacity;       /* words */
	_Atomic uint64_t units_left;
};

void bnet_reassembly_init(struct bnet_reassembly *map);
void bnet_reassembly_destroy(struct bnet_reassembly *map);
/* Makes room for a message of up to size bytes. -ENOMEM. */
int bnet_reassembly_reserve(struct bnet_reassembly *map, uint64_t size);
/* Starts the count for a message of size bytes, which fits. */
void bnet_reassembly_start(struct bnet_reassembly *map, uint64_t size);
/* A slice begins to arrive. 0: it is new, and its place is its stream's alone; 1: it has come before or is coming by
 * another stream, and must not be written; -EBADMSG: a part of it has, which no sender does. One thread at a time. */
int bnet_reassembly_place(struct bnet_reassembly *map, uint64_t offset, uint64_t length);
/* A placed slice has arrived whole. True for exactly one caller: the message is complete. */
bool bnet_reassembly_arrived(struct bnet_reassembly *map, uint64_t length);

#endif
