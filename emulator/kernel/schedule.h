/* SPDX-License-Identifier: MIT
 *
 * Which elements of a collective a channel moves in which order: rounds, for both kinds of struct emu_schedule. Pure.
 */
#ifndef EMU_KERNEL_SCHEDULE_H
#define EMU_KERNEL_SCHEDULE_H

#include "layout/layout.h"

/* One pass over the ring or tree, in elements. A ring's allreduce has one chunk for each rank: chunk n starts at base +
 * n * distance. The others have one chunk, at base. */
struct emu_round {
	ssize_t base, distance;
	ssize_t chunk; /* elements, fewer where end comes first */
	ssize_t end;
};

struct emu_rounds {
	const struct emu_launch *launch;
	const struct emu_batch *batch;
	const struct emu_schedule *schedule;
	ssize_t element; /* bytes */
	ssize_t parts;   /* chunks of a round */
	ssize_t chunk;   /* of a full round */
	ssize_t at;
};

void emu_rounds_open(struct emu_rounds *rounds, const struct emu_launch *launch, const struct emu_batch *batch,
		     const struct emu_schedule *schedule);
/* false after the last one. */
bool emu_rounds_next(struct emu_rounds *rounds, struct emu_round *round);

/* Elements of the round's chunk n; may be negative. */
static inline ssize_t emu_round_count(const struct emu_round *round, ssize_t n)
{
	const ssize_t left = round->end - round->base - n * round->distance;

	return left < round->chunk ? left : round->chunk;
}

#endif
