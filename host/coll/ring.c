/* SPDX-License-Identifier: MIT
 *
 * The ring: every rank sends to the next and receives from the previous one. The group's own thread.
 *
 * The data is one block per place. In step s the rank at place p sends block (p - shift - s) and receives block
 * (p - shift - s - 1), which it reduces or keeps, and sends in step s + 1. Blocks travel in chunks, `width` of them
 * in flight. All steps are done for `width` chunks of every block before the next chunks begin: this bounds the
 * scratch, and a chunk that was just reduced is sent from the cache.
 *
 * Message i is thus chunk (i / width / steps) * width + i % width of the block of step (i / width) % steps. It depends
 * on message i - width of the other direction and on no later one, so there is no cycle.
 */
#include "coll/ring.h"

#include <errno.h>
#include <stdint.h>
#include <string.h>

#include "coll/pipe.h"
#include "coll/reduce.h"
#include "coll/size.h"

/* Chunks of one block in flight: enough for one to be on the wire while another is reduced, on both sides. */
#define WIDTH 4
/* Blocks are cut into chunks to overlap transfer and reduction. Below this size the fixed cost of a message outweighs
 * the overlap. */
#define MIN_CHUNK ((size_t)64 * 1024)

struct ring {
	const struct bnet_coll_subgroup *subgroup;
	int averaged;                 /* ranks whose values an average is of */
	struct bnet_coll_blocks from; /* what is reduced, or NULL */
	struct bnet_coll_blocks to;   /* what is gathered, or NULL */
	char *recv;                   /* reduce-scatter: this rank's block */
	char *scratch;
	size_t chunk; /* bytes */
	size_t width; /* chunks */
	size_t steps;
	int shift;
	int dtype;
	int op;
	size_t element;
};

/* A chunk of a block. */
struct place {
	int block;
	size_t at; /* offset in the block */
	size_t bytes;
};

static size_t step_of(const struct ring *ring, size_t i)
{
	return i / ring->width % ring->steps;
}

/* The chunk that message i carries. */
static struct place locate(const struct ring *ring, size_t i, bool received)
{
	const struct bnet_coll_blocks *blocks = ring->from.bytes > 0 ? &ring->from : &ring->to;
	const int count = ring->subgroup->count;
	const int back = (int)(((size_t)ring->shift + step_of(ring, i) + received) % (size_t)count);
	const size_t chunk = i / ring->width / ring->steps * ring->width + i % ring->width;
	struct place place = {.block = (ring->subgroup->index - back + count) % count, .at = chunk * ring->chunk};
	const size_t block = bnet_coll_block_bytes(blocks, place.block);

	place.bytes = bnet_coll_left(block, place.at, ring->chunk);
	return place;
}

static char *in(const struct bnet_coll_blocks *blocks, struct place place)
{
	return bnet_coll_block_at(blocks, place.block) + place.at;
}

static struct bnet_coll_piece piece_in(const struct bnet_coll_blocks *blocks, struct place place)
{
	if (place.bytes == 0)
		return (struct bnet_coll_piece){NULL, 0};
	return (struct bnet_coll_piece){in(blocks, place), place.bytes};
}

static void reduce(const struct ring *ring, char *dst, const char *a, const char *b, size_t bytes, bool last)
{
	const size_t count = bytes / ring->element;

	bnet_coll_reduce_local(dst, a, b, count, ring->dtype, ring->op);
	if (last)
		bnet_coll_average(dst, count, ring->dtype, ring->op, ring->averaged);
}

/* A chunk is sent on after it was received and reduced; the first step sends this rank's input. */
static bool may_send(const struct bnet_coll_pipe *pipe, size_t i)
{
	const struct ring *ring = pipe->op;

	return step_of(ring, i) == 0 || pipe->recv.done > i - ring->width;
}

static int run(struct bnet_coll *coll, struct bnet_coll_pipe *pipe, const struct ring *ring, size_t block)
{
	const size_t chunks = bnet_coll_chunks(block, ring->chunk);
	const size_t rounds = bnet_coll_chunks(chunks, ring->width);

	pipe->op = ring;
	pipe->send.peer = bnet_coll_subgroup_step(ring->subgroup, 1);
	pipe->send.count = rounds * ring->steps * ring->width;
	pipe->send.may_post = may_send;
	pipe->recv.peer = bnet_coll_subgroup_step(ring->subgroup, -1);
	pipe->recv.count = pipe->send.count;
	return bnet_coll_pipes_run(coll, (struct bnet_coll_pipe *const[]){pipe}, 1);
}

/* Chunks are multiples of 4 KiB, and therefore of every element. */
static struct ring ring_of(const struct bnet_coll *coll, const struct bnet_coll_subgroup *subgroup, size_t block)
{
	const size_t chunk = bnet_coll_round_up(bnet_coll_chunks(block, WIDTH), 4096);
	struct ring ring = {.subgroup = subgroup, .averaged = coll->nranks, .steps = (size_t)subgroup->count - 1};

	ring.chunk = bnet_coll_min(bnet_coll_max(chunk, MIN_CHUNK), coll->chunk);
	ring.width = bnet_coll_min(WIDTH, bnet_coll_chunks(block, ring.chunk));
	return ring;
}

/* ---- allreduce: reduce-scatter, then all-gather of the reduced blocks: 2 (count - 1) steps ---- */

static bool gathers(const struct ring *ring, size_t i)
{
	return step_of(ring, i) >= (size_t)ring->subgroup->count - 1;
}

static struct bnet_coll_piece allreduce_send(const struct bnet_coll_pipe *pipe, size_t i)
{
	const struct ring *ring = pipe->op;

	return piece_in(step_of(ring, i) == 0 ? &ring->from : &ring->to, locate(ring, i, false));
}

/* A chunk is received into the slot of its number and reduced from there: at most BNET_COLL_DEPTH are in flight. */
static char *slot(const struct ring *ring, size_t i)
{
	return ring->scratch + i % BNET_COLL_DEPTH * ring->chunk;
}

static struct bnet_coll_piece allreduce_recv(const struct bnet_coll_pipe *pipe, size_t i)
{
	const struct ring *ring = pipe->op;
	const struct place place = locate(ring, i, true);

	return gathers(ring, i) ? piece_in(&ring->to, place) : (struct bnet_coll_piece){slot(ring, i), place.bytes};
}

/* A gathered block is received where this rank's partial sum lay: that was sent count - 1 steps ago. */
static bool allreduce_may_recv(const struct bnet_coll_pipe *pipe, size_t i)
{
	const struct ring *ring = pipe->op;

	return !gathers(ring, i) || pipe->send.done > i - ((size_t)ring->subgroup->count - 1) * ring->width;
}

static void allreduce_received(const struct bnet_coll_pipe *pipe, size_t i)
{
	const struct ring *ring = pipe->op;
	const struct place place = locate(ring, i, true);

	if (!gathers(ring, i))
		reduce(ring, in(&ring->to, place), in(&ring->from, place), slot(ring, i), place.bytes,
		       step_of(ring, i) == (size_t)ring->subgroup->count - 2);
}

int bnet_coll_ring_allreduce(struct bnet_coll *coll, const struct bnet_coll_subgroup *subgroup, const char *send,
			     char *recv, size_t count, int dtype, int op)
{
	const size_t element = bnet_coll_dtype_size(dtype), places = (size_t)subgroup->count;
	const size_t block = bnet_coll_round_up(bnet_coll_chunks(count, places) * element, BNET_COLL_LINE);
	struct bnet_coll_pipe pipe = {.send.piece = allreduce_send,
				      .recv.piece = allreduce_recv,
				      .recv.may_post = allreduce_may_recv,
				      .received = allreduce_received};
	struct ring ring = ring_of(coll, subgroup, block);

	ring.from =
		(struct bnet_coll_blocks){.base = (char *)(uintptr_t)send, .bytes = block, .total = count * element};
	ring.to = (struct bnet_coll_blocks){.base = recv, .bytes = block, .total = count * element};
	ring.steps *= 2;
	ring.dtype = dtype;
	ring.op = op;
	ring.element = element;
	ring.scratch = bnet_coll_scratch(coll, BNET_COLL_DEPTH * ring.chunk);
	return ring.scratch != NULL ? run(coll, &pipe, &ring, block) : -ENOMEM;
}

/* ---- reduce-scatter: a partial sum stays in the slot that it was received into until it is sent on ---- */

static bool ends_here(const struct ring *ring, size_t i)
{
	return step_of(ring, i) == ring->steps - 1;
}

static struct bnet_coll_piece scatter_send(const struct bnet_coll_pipe *pipe, size_t i)
{
	const struct ring *ring = pipe->op;
	const struct place place = locate(ring, i, false);

	if (step_of(ring, i) == 0)
		return piece_in(&ring->from, place);
	return (struct bnet_coll_piece){slot(ring, i - ring->width), place.bytes};
}

static struct bnet_coll_piece scatter_recv(const struct bnet_coll_pipe *pipe, size_t i)
{
	const struct ring *ring = pipe->op;

	return (struct bnet_coll_piece){slot(ring, i), locate(ring, i, true).bytes};
}

/* The slot is free once its last content was sent on as message (i - BNET_COLL_DEPTH) + width. That is before i,
 * because width is less than BNET_COLL_DEPTH, so there is no cycle. */
static bool scatter_may_recv(const struct bnet_coll_pipe *pipe, size_t i)
{
	const struct ring *ring = pipe->op;

	return i < BNET_COLL_DEPTH || ends_here(ring, i - BNET_COLL_DEPTH) ||
	       pipe->send.done > i - BNET_COLL_DEPTH + ring->width;
}

static void scatter_received(const struct bnet_coll_pipe *pipe, size_t i)
{
	const struct ring *ring = pipe->op;
	const struct place place = locate(ring, i, true);
	char *dst = ends_here(ring, i) ? ring->recv + place.at : slot(ring, i);

	reduce(ring, dst, in(&ring->from, place), slot(ring, i), place.bytes, ends_here(ring, i));
}

int bnet_coll_ring_reduce_scatter(struct bnet_coll *coll, const struct bnet_coll_subgroup *subgroup,
				  const struct bnet_coll_blocks *from, char *recv, int dtype, int op)
{
	struct bnet_coll_pipe pipe = {.send.piece = scatter_send,
				      .recv.piece = scatter_recv,
				      .recv.may_post = scatter_may_recv,
				      .received = scatter_received};
	struct ring ring = ring_of(coll, subgroup, from->bytes);

	ring.from = *from;
	ring.recv = recv;
	ring.shift = 1; /* so that the last block received is this rank's own */
	ring.dtype = dtype;
	ring.op = op;
	ring.element = bnet_coll_dtype_size(dtype);
	ring.scratch = bnet_coll_scratch(coll, BNET_COLL_DEPTH * ring.chunk);
	return ring.scratch != NULL ? run(coll, &pipe, &ring, from->bytes) : -ENOMEM;
}

/* ---- all-gather: every block is received at its final place ---- */

static struct bnet_coll_piece gather_send(const struct bnet_coll_pipe *pipe, size_t i)
{
	const struct ring *ring = pipe->op;

	return piece_in(&ring->to, locate(ring, i, false));
}

static struct bnet_coll_piece gather_recv(const struct bnet_coll_pipe *pipe, size_t i)
{
	const struct ring *ring = pipe->op;

	return piece_in(&ring->to, locate(ring, i, true));
}

int bnet_coll_ring_all_gather(struct bnet_coll *coll, const struct bnet_coll_subgroup *subgroup, const char *send,
			      const struct bnet_coll_blocks *to)
{
	struct bnet_coll_pipe pipe = {.send.piece = gather_send, .recv.piece = gather_recv};
	struct ring ring = ring_of(coll, subgroup, to->bytes);

	ring.to = *to;
	memmove(bnet_coll_block_at(to, subgroup->index), send, to->bytes);
	return run(coll, &pipe, &ring, to->bytes);
}
