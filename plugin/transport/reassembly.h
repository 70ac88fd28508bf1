/* SPDX-License-Identifier: MIT
 *
 * The receiver's ticking off: one bit for each BNET_UNIT of a message, set when a slice is placed, and a count of the
 * units that have not arrived. A slice that is still arriving keeps its message unfinished, so that its memory cannot
 * be returned to the caller. No system call, no lock. The poster makes room, and the connection's owner does the rest.
 */
#ifndef BNET_REASSEMBLY_H
#define BNET_REASSEMBLY_H

#include <stdbool.h>
#include <stdint.h>

/* Small messages need no allocation. */
#define BNET_REASSEMBLY_INLINE 16 /* words: 4 MiB */
struct bnet_reassembly {
	uint64_t inline_words[BNET_REASSEMBLY_INLINE];
	uint64_t *words;   /* inline_words, or an allocation that only grows */
	uint64_t capacity; /* words */
	uint64_t units_left;
};

void bnet_reassembly_init(struct bnet_reassembly *reassembly);
void bnet_reassembly_destroy(struct bnet_reassembly *reassembly);
/* Makes room for a message of up to size bytes. -ENOMEM. */
int bnet_reassembly_reserve(struct bnet_reassembly *reassembly, uint64_t size);
/* Starts the count for a message of size bytes, which must fit. */
void bnet_reassembly_start(struct bnet_reassembly *reassembly, uint64_t size);
/* A slice begins to arrive. 0: it is new, and only its stream writes to its place; 1: a duplicate, which arrived or is
 * arriving on another stream and must not be written; -EBADMSG: it overlaps another slice in part, which no sender
 * does. */
int bnet_reassembly_place(struct bnet_reassembly *reassembly, uint64_t offset, uint64_t length);
/* A placed slice that has not arrived in full will not: another one may be placed there. */
void bnet_reassembly_take_back(struct bnet_reassembly *reassembly, uint64_t offset, uint64_t length);
/* A placed slice has arrived in full. True: and so has the message. */
bool bnet_reassembly_arrived(struct bnet_reassembly *reassembly, uint64_t length);

#endif
