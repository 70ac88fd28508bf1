/* SPDX-License-Identifier: MIT
 *
 * The collectives on a ring: every rank receives from the one before it and sends to the one after it. Called within a
 * channel's fiber.
 */
#include "kernel/kernel.h"
#include "kernel/prims.h"
#include "kernel/reduce.h"
#include "kernel/schedule.h"

struct ring {
	struct emu_prims prims;
	const struct emu_coll *coll;
	const struct emu_channel *channel;
	int rank, ranks;
	size_t element;
};

static const void *input(const struct ring *ring, ssize_t at)
{
	return (const char *)ring->coll->sendbuff + (size_t)at * ring->element;
}

static void *output(const struct ring *ring, ssize_t at)
{
	return (char *)ring->coll->recvbuff + (size_t)at * ring->element;
}

static void move(struct ring *ring, const struct emu_move *what)
{
	emu_prims_move(&ring->prims, what);
}

/* ---- one round of each collective ---- */

/* Chunk n of the round travels towards rank n; the chunks of a step differ between ranks, so all are on their way at
 * once. */
static void all_reduce(struct ring *ring, const struct emu_round *round)
{
	const int ranks = ring->ranks, own = ring->channel->ring_index;

	for (int step = 0; step < 2 * ranks - 1; step++) {
		const int chunk = (own + 2 * ranks - 1 - step) % ranks;
		const ssize_t at = round->base + chunk * round->distance;
		const bool reduces = step < ranks, last = step == 2 * ranks - 2;

		move(ring, &(struct emu_move){
				   .count = emu_round_count(round, chunk),
				   .receive = step > 0,
				   .send = !last,
				   .own = reduces,
				   .complete = step == ranks - 1,
				   .source = reduces ? input(ring, at) : NULL,
				   .destination = step >= ranks - 1 ? output(ring, at) : NULL,
			   });
	}
}

static void reduce_scatter(struct ring *ring, const struct emu_round *round)
{
	const int ranks = ring->ranks;

	for (int step = 0; step < ranks; step++) {
		const int rank = ring->channel->ring_ranks[ranks - 1 - step];
		const ssize_t at = round->base + rank * (ssize_t)ring->coll->count;
		const bool last = step == ranks - 1;

		move(ring, &(struct emu_move){
				   .count = emu_round_count(round, 0),
				   .receive = step > 0,
				   .send = !last,
				   .own = true,
				   .complete = last,
				   .source = input(ring, at),
				   .destination = last ? output(ring, round->base) : NULL,
			   });
	}
}

static void all_gather(struct ring *ring, const struct emu_round *round)
{
	const int ranks = ring->ranks;

	for (int step = 0; step < ranks; step++) {
		const int rank = ring->channel->ring_ranks[(ranks - step) % ranks];
		void *place = output(ring, round->base + rank * (ssize_t)ring->coll->count);
		const void *part = step == 0 ? input(ring, round->base) : NULL;

		move(ring, &(struct emu_move){
				   .count = emu_round_count(round, 0),
				   .receive = step > 0,
				   .send = step < ranks - 1,
				   .source = part,
				   .destination = place == part ? NULL : place,
			   });
	}
}

static void broadcast(struct ring *ring, const struct emu_round *round)
{
	const int *order = ring->channel->ring_ranks;
	const bool first = order[0] == ring->coll->root, last = order[1] == ring->coll->root;
	const void *source = first ? input(ring, round->base) : NULL;
	void *place = output(ring, round->base);

	move(ring, &(struct emu_move){
			   .count = emu_round_count(round, 0),
			   .receive = !first,
			   .send = !last || first,
			   .source = source,
			   .destination = first && ring->coll->sendbuff == ring->coll->recvbuff ? NULL : place,
		   });
}

static void reduce(struct ring *ring, const struct emu_round *round)
{
	const bool first = ring->channel->ring_ranks[ring->ranks - 1] == ring->coll->root;
	const bool last = ring->rank == ring->coll->root && !first;

	move(ring, &(struct emu_move){
			   .count = emu_round_count(round, 0),
			   .receive = !first,
			   .send = !last,
			   .own = true,
			   .complete = last,
			   .source = input(ring, round->base),
			   .destination = last ? output(ring, round->base) : NULL,
		   });
}

/* ---- all rounds ---- */

typedef void round_fn(struct ring *ring, const struct emu_round *round);

/* Broadcast and reduce have chunks of one step. */
static struct emu_kind kind_of(const struct emu_batch *batch, const struct emu_coll *coll)
{
	const bool sliced = batch->func != EMU_BROADCAST && batch->func != EMU_REDUCE;

	return (struct emu_kind){
		.proto = batch->proto,
		.type = batch->type,
		.op = batch->op,
		.scalar = coll->arg,
		.slices = sliced ? 2 : 1,
		.slice_steps = sliced ? 2 : 1,
	};
}

void emu_play_ring(struct emu_lane *lane, const struct emu_batch *batch, const struct emu_coll *coll)
{
	static round_fn *const rounds_of[] = {
		[EMU_BROADCAST] = broadcast,           [EMU_REDUCE] = reduce,         [EMU_ALL_GATHER] = all_gather,
		[EMU_REDUCE_SCATTER] = reduce_scatter, [EMU_ALL_REDUCE] = all_reduce,
	};
	const struct emu_launch *launch = lane->play->launch;
	const struct emu_kind kind = kind_of(batch, coll);
	const struct emu_peers peers = {&lane->channel.ring_prev, &lane->channel.ring_next, 1, 1};
	struct ring ring = {.coll = coll, .channel = &lane->channel, .rank = launch->rank, .ranks = launch->ranks};
	struct emu_rounds rounds;
	struct emu_round round;

	ring.element = emu_type_bytes(batch->type);
	emu_prims_open(&ring.prims, lane, &kind, &peers);
	emu_rounds_open(&rounds, launch, batch, &coll->schedule);
	while (emu_rounds_next(&rounds, &round))
		rounds_of[batch->func](&ring, &round);
	emu_prims_close(&ring.prims);
}
