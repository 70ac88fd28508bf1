/* SPDX-License-Identifier: MIT
 *
 * From NCCL's schedule to rounds. Up to 2.19 the kernel computes its chunks itself, from the number of its threads, by
 * rules that differ between collectives and protocols; the proxies count on the same numbers. Pure.
 */
#include "kernel/schedule.h"

#include "kernel/reduce.h"

enum {
	WARP = 32,
	GRAIN_LL = 8,     /* data bytes of a thread's line */
	GRAIN_LL128 = 60, /* a thread's 64 bytes of lines, less the flags */
	CHUNK_STEPS = 4   /* of Simple, for the collectives that cut chunks into slices */
};

static ssize_t min(ssize_t a, ssize_t b)
{
	return a < b ? a : b;
}

static ssize_t divide_up(ssize_t a, ssize_t b)
{
	return (a + b - 1) / b;
}

static ssize_t round_up(ssize_t a, ssize_t b)
{
	return divide_up(a, b) * b;
}

/* Data bytes of a step. */
static ssize_t step_bytes(const struct emu_launch *launch, enum emu_proto proto)
{
	const ssize_t bytes = launch->buffer_bytes[proto] / EMU_STEPS;

	if (proto == EMU_LL)
		return bytes / 2;
	return proto == EMU_LL128 ? bytes * 15 / 16 : bytes;
}

static bool is_sliced(enum emu_func func)
{
	return func == EMU_ALL_REDUCE || func == EMU_ALL_GATHER || func == EMU_REDUCE_SCATTER;
}

static ssize_t strided_chunk(const struct emu_rounds *rounds)
{
	const struct emu_batch *batch = rounds->batch;
	const ssize_t step = step_bytes(rounds->launch, batch->proto) / rounds->element;
	const bool tree = batch->algo == EMU_TREE;

	if (tree)
		return batch->proto == EMU_LL ? step : rounds->schedule->tree_chunk;
	return batch->proto == EMU_SIMPLE && is_sliced(batch->func) ? step * CHUNK_STEPS : step;
}

void emu_rounds_open(struct emu_rounds *rounds, const struct emu_launch *launch, const struct emu_batch *batch,
		     const struct emu_schedule *schedule)
{
	*rounds = (struct emu_rounds){
		.launch = launch,
		.batch = batch,
		.schedule = schedule,
		.element = (ssize_t)emu_type_bytes(batch->type),
		.parts = batch->func == EMU_ALL_REDUCE && batch->algo == EMU_RING ? launch->ranks : 1,
		.chunk = schedule->chunk,
	};
	if (schedule->kind == EMU_STRIDED)
		rounds->chunk = strided_chunk(rounds);
}

/* ---- 2.20 and later ---- */

static bool next_contiguous(struct emu_rounds *rounds, struct emu_round *round)
{
	const struct emu_schedule *schedule = rounds->schedule;
	const ssize_t left = schedule->count - rounds->at, full = rounds->parts * rounds->chunk;
	ssize_t chunk = rounds->chunk;

	if (left <= 0)
		return false;
	if (rounds->parts > 1 && left < full)
		chunk = schedule->last_chunk > 0 ? schedule->last_chunk
						 : round_up(divide_up(left, rounds->parts), 16 / rounds->element);
	*round = (struct emu_round){
		.base = schedule->offset + rounds->at,
		.distance = chunk,
		.chunk = chunk,
		.end = schedule->offset + schedule->count,
	};
	rounds->at += full;
	return true;
}

/* ---- before ---- */

/* The smallest chunk of LL and LL128, of which every shorter one is a multiple. */
static ssize_t smallest_chunk(const struct emu_rounds *rounds)
{
	const struct emu_batch *batch = rounds->batch;
	const ssize_t threads = rounds->schedule->threads;

	if (batch->algo == EMU_TREE && batch->proto == EMU_SIMPLE)
		return (threads - 2 * WARP) * 8 * ((ssize_t)sizeof(uint64_t) / rounds->element);
	if (batch->proto == EMU_LL)
		return threads * (GRAIN_LL / rounds->element);
	if (batch->algo == EMU_TREE)
		return threads * (GRAIN_LL128 / rounds->element) / 8;
	return threads * (GRAIN_LL128 / rounds->element) / (is_sliced(batch->func) ? 2 : 1);
}

static ssize_t tree_chunk(const struct emu_rounds *rounds)
{
	const struct emu_schedule *schedule = rounds->schedule;
	const ssize_t smallest = smallest_chunk(rounds);

	if (schedule->channels * rounds->chunk <= schedule->size)
		return rounds->chunk;
	return divide_up(schedule->size, schedule->channels * smallest) * smallest;
}

static ssize_t ring_chunk(const struct emu_rounds *rounds, ssize_t left)
{
	const struct emu_schedule *schedule = rounds->schedule;
	const ssize_t sharers = schedule->channels * rounds->parts;
	ssize_t smallest;

	if (rounds->batch->proto == EMU_SIMPLE)
		return round_up(min(rounds->chunk, divide_up(left, sharers)),
				(schedule->threads - WARP) * (ssize_t)sizeof(uint64_t) / rounds->element);
	if (rounds->batch->proto == EMU_LL && rounds->parts == 1)
		return left < sharers * rounds->chunk ? schedule->tree_chunk : rounds->chunk;
	smallest = smallest_chunk(rounds);
	return min(rounds->chunk, divide_up(left, sharers * smallest) * smallest);
}

static bool next_strided(struct emu_rounds *rounds, struct emu_round *round)
{
	const struct emu_schedule *schedule = rounds->schedule;
	const ssize_t left = schedule->size - rounds->at;
	ssize_t chunk, own, distance;

	if (left <= 0)
		return false;
	chunk = rounds->batch->algo == EMU_TREE ? tree_chunk(rounds) : ring_chunk(rounds, left);
	/* With the Simple protocol a channel's chunks of a ring allreduce lie side by side; otherwise the channels'. */
	own = rounds->batch->proto == EMU_SIMPLE ? rounds->parts * chunk : chunk;
	distance = rounds->batch->proto == EMU_SIMPLE ? chunk : schedule->channels * chunk;
	*round = (struct emu_round){.base = rounds->at + schedule->bid * own,
				    .distance = distance,
				    .chunk = chunk,
				    .end = schedule->size};
	rounds->at += schedule->channels * rounds->parts * rounds->chunk;
	return true;
}

bool emu_rounds_next(struct emu_rounds *rounds, struct emu_round *round)
{
	return rounds->schedule->kind == EMU_STRIDED ? next_strided(rounds, round) : next_contiguous(rounds, round);
}
