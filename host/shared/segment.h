/* SPDX-License-Identifier: MIT
 *
 * Memory that the ranks of one host share: a line of counters and two banks of payload for each of them. It is a memfd,
 * so that nothing is left behind when its processes die, however they die. Each rank maps it for itself.
 *
 * A rank writes only its own line and its own banks. The others read a bank after its owner has published it, and the
 * owner writes to it again after all have read it: see wait.h.
 */
#ifndef BNET_SHARED_SEGMENT_H
#define BNET_SHARED_SEGMENT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define BNET_SHARED_BANKS 2
/* Ranks of a host. With a few hundred more, a bank would not have a cache line for each of them. */
#define BNET_SHARED_MAX 1024
#define BNET_SHARED_REASON 384

enum { BNET_SHARED_PRESENT = 1, BNET_SHARED_LEFT };

/* What the payload of a bank belongs to, in its owner's terms. Notes of more rounds than banks are kept: the others may
 * look at one two rounds later, when its owner may be a round ahead. */
#define BNET_SHARED_WORDS 4
#define BNET_SHARED_NOTES 4

struct bnet_shared_note {
	uint64_t words[BNET_SHARED_WORDS];
};

struct bnet_shared_line {
	_Alignas(64) _Atomic uint32_t put; /* rounds whose payload is in the bank */
	_Atomic uint32_t got;              /* rounds whose payload was taken out of the others' banks */
	_Atomic uint32_t state;
	_Atomic uint32_t sleepers; /* threads that may be asleep on put or got */
	_Atomic uint32_t moved;    /* changes while the rank's part of an operation goes on elsewhere, in the network */
	uint64_t process;          /* a random number of the process */
	/* A note: what the rank is doing. The first word is 0 while the others change. */
	_Atomic uint64_t call[BNET_SHARED_WORDS];
	_Alignas(64) struct bnet_shared_note notes[BNET_SHARED_NOTES];
	_Alignas(64) char reason[BNET_SHARED_REASON]; /* why the rank left; valid once the state says that it has */
};

struct bnet_segment {
	int fd; /* -1: none */
	int count;
	int index; /* this rank's */
	size_t bytes;
	size_t bank_bytes;
	char *base;
};

#define BNET_SEGMENT_NONE     \
	(struct bnet_segment) \
	{                     \
		.fd = -1      \
	}

/* Makes the memory, as rank 0 of the host. 0 or -errno; -EUSERS: there are too many ranks. */
int bnet_segment_create(struct bnet_segment *segment, int count);
/* Maps what another rank has made; takes fd over, also if it fails. -EPROTO: it is no such memory. */
int bnet_segment_attach(struct bnet_segment *segment, int fd, int count, int index);
/* Tells the others that this rank takes part no more, and why, and unmaps the memory. Repeated calls do nothing. */
void bnet_segment_leave(struct bnet_segment *segment, const char *reason);
/* Only the first half of that: the rank's own reads and writes go on. */
void bnet_segment_say_left(struct bnet_segment *segment, const char *reason);

struct bnet_shared_line *bnet_segment_line(const struct bnet_segment *segment, int index);
/* The bank for a round: rounds alternate. */
char *bnet_segment_bank(const struct bnet_segment *segment, int index, uint32_t round);
/* Has the rank's process ended without a word? The kernel knows by the lock that the process holds on a byte of the
 * memory. A system call. */
bool bnet_segment_process_gone(const struct bnet_segment *segment, int index);

#endif
