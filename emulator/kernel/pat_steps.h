/* SPDX-License-Identifier: MIT
 *
 * The order of PAT's steps (parallel aggregated trees): every rank sends to and receives from the ranks 2^n away, and
 * small messages share a slot. NCCL's proxies count the same steps, so their order must be NCCL's. Pure.
 */
#ifndef EMU_KERNEL_PAT_STEPS_H
#define EMU_KERNEL_PAT_STEPS_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

enum { EMU_PAT_PARALLEL = 16, EMU_PAT_DIMENSIONS = 32 };

/* Offsets are in elements. */
struct emu_pat_step {
	bool skip;
	bool last;              /* the launch's last one */
	bool complete;          /* reducescatter: the chunk's last one to the own output */
	int from, to;           /* the peers' dimensions; -1: the own buffer */
	ssize_t from_at, to_at; /* within the slots */
	int ahead; /* reduce: the slot to send, allgather: the one to receive, counted from the current one */
	bool post_from, post_to; /* the slot is complete with this step */
	ssize_t count;
	size_t input, output; /* within the own buffers */
};

struct emu_pat_config {
	int rank, ranks;
	size_t offset, end; /* the channel's part */
	size_t stride;      /* between the ranks' parts */
	ssize_t chunk;
	size_t element; /* bytes */
	bool reduces;   /* reducescatter; otherwise allgather */
	bool compact; /* before 2.26: steps that fall away for some ranks leave no gap in the slots, and come one by one */
};

struct emu_pat {
	struct emu_pat_config config;
	size_t at;
	ssize_t count;   /* of the current chunk */
	int width;       /* ranks, rounded up to a power of two */
	int groups, gap; /* a step is done for so many distances at once, which are so far apart */
	int per_slot;    /* chunks that share a slot */
	int parallel;    /* steps that NCCL's warps do at once */
	int phase, scale;
	int distance; /* of the first group */
	int group, last_group;
	/* reducescatter */
	int skipped_to, skipped_from; /* steps that take no room */
	int received;                 /* by dimension 0, in the phases that halve the groups */
	int ahead;
	/* allgather: the distances' order */
	int bits, value;
	int turns[EMU_PAT_DIMENSIONS], zeros[EMU_PAT_DIMENSIONS];
};

void emu_pat_open(struct emu_pat *pat, const struct emu_pat_config *config);
/* Up to pat->parallel steps that are done together: all wait, all move data, all post. Returns how many. */
int emu_pat_next(struct emu_pat *pat, struct emu_pat_step *steps);

/* ---- for the two directions ---- */

/* One step each. Every group of pat->parallel calls is one round. */
void emu_pat_reduce_reset(struct emu_pat *pat);
void emu_pat_reduce_step(struct emu_pat *pat, struct emu_pat_step *step);
void emu_pat_gather_reset(struct emu_pat *pat);
void emu_pat_gather_step(struct emu_pat *pat, struct emu_pat_step *step);

/* The lowest bit that is set in value, none if it is 0. */
static inline int emu_pat_lowest_bit(int value, int none)
{
	return value == 0 ? none : __builtin_ctz((unsigned)value);
}

#endif
