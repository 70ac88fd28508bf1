/* SPDX-License-Identifier: MIT
 *
 * The ring: every rank sends to the next and receives from the previous one. The group's own thread.
 *
 * The data is one block per rank. In step s a rank sends block (rank - shift - s) and receives block
 * (rank - shift - s - 1), which it reduces or keeps, and sends in step s + 1. Blocks travel in chunks, `width` of them
 * in flight. All steps are done for `width` chunks of every block before the next chunks begin: this bounds the
 * scratch, and a chunk that was just reduced is sent from the cache.
 *
 * Message i is thus chunk (i / width / steps) * width + i % width of the block of step (i / width) % steps. It depends
 * on message i - width of the other direction and on no later one, so there is no cycle.
 */
#include "coll/ring.h"

#include <errno.h>
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
	int rank;
	int nranks;
	const char *send;
	char *recv;
	char *scratch;
	size_t total;  /* bytes of all blocks; the last ones may be shorter than the others, or empty */
	size_t block;  /* bytes from one block to the next */
	size_t chunk;  /* bytes */
	size_t width;  /* chunks */
	size_t steps;
	int shift;
	int dtype;
	int op;
	size_t element;
};

static size_t step_of(const struct ring *ring, size_t i)
{
	return i / ring->width % ring->steps;
}

/* Offset in the buffer and length of the chunk that message i carries; delay 0: sent, 1: received. */
static void locate(const struct ring *ring, size_t i, size_t delay, size_t *at, size_t *bytes)
{
	const size_t nranks = (size_t)ring->nranks;
	const size_t back = (size_t)ring->shift + step_of(ring, i) + delay;
	const size_t block = ((size_t)ring->rank + 2 * nranks - back % nranks) % nranks;
	const size_t chunk = i / ring->width / ring->steps * ring->width + i % ring->width;
	const size_t end = bnet_coll_min((block + 1) * ring->block, ring->total);

	*at = block * ring->block + chunk * ring->chunk;
	*bytes = *at < end ? bnet_coll_min(ring->chunk, end - *at) : 0;
}

static struct bnet_coll_piece piece_in(const char *base, size_t at, size_t bytes)
{
	return (struct bnet_coll_piece){(char *)(uintptr_t)base + at, bytes};
}

static void reduce(const struct ring *ring, char *dst, const char *a, const char *b, size_t bytes, bool last)
{
	const size_t count = bytes / ring->element;

	bnet_coll_reduce_local(dst, a, b, count, ring->dtype, ring->op);
	if (last)
		bnet_coll_average(dst, count, ring->dtype, ring->op, ring->nranks);
}

/* A chunk is sent on after it was received and reduced; the first step sends this rank's input. */
static bool may_send(const struct bnet_coll_pipe *pipe, size_t i)
{
	const struct ring *ring = pipe->op;

	return step_of(ring, i) == 0 || pipe->recv.done > i - ring->width;
}

static int run(struct bnet_coll *coll, struct bnet_coll_pipe *pipe, const struct ring *ring)
{
	const size_t chunks = bnet_coll_chunks(ring->block, ring->chunk);
	const size_t rounds = bnet_coll_chunks(chunks, ring->width);

	pipe->op = ring;
	pipe->send.peer = bnet_coll_ring_rank(coll, 1);
	pipe->send.count = rounds * ring->steps * ring->width;
	pipe->send.may_post = may_send;
	pipe->recv.peer = bnet_coll_ring_rank(coll, -1);
	pipe->recv.count = pipe->send.count;
	return bnet_coll_pipes_run(coll, (struct bnet_coll_pipe *const[]){pipe}, 1);
}

/* Chunks are multiples of 4 KiB, and therefore of every element. */
static void ring_init(struct ring *ring, const struct bnet_coll *coll, const void *send, void *recv, size_t block)
{
	const size_t chunk = bnet_coll_round_up(bnet_coll_chunks(block, WIDTH), 4096);

	*ring = (struct ring){.rank = coll->rank, .nranks = coll->nranks, .send = send, .recv = recv, .block = block};
	ring->total = block * (size_t)coll->nranks;
	ring->chunk = bnet_coll_min(bnet_coll_max(chunk, MIN_CHUNK), BNET_COLL_CHUNK);
	ring->width = bnet_coll_min(WIDTH, bnet_coll_chunks(block, ring->chunk));
	ring->steps = (size_t)coll->nranks - 1;
}

/* ---- allreduce: reduce-scatter, then all-gather of the reduced blocks: 2 (nranks - 1) steps ---- */

static bool gathers(const struct ring *ring, size_t i)
{
	return step_of(ring, i) >= (size_t)ring->nranks - 1;
}

static struct bnet_coll_piece allreduce_send(const struct bnet_coll_pipe *pipe, size_t i)
{
	const struct ring *ring = pipe->op;
	size_t at, bytes;

	locate(ring, i, 0, &at, &bytes);
	return piece_in(step_of(ring, i) == 0 ? ring->send : ring->recv, at, bytes);
}

/* A chunk is received into the slot of its number and reduced from there: at most BNET_COLL_DEPTH are in flight. */
static char *slot(const struct ring *ring, size_t i)
{
	return ring->scratch + i % BNET_COLL_DEPTH * ring->chunk;
}

static struct bnet_coll_piece allreduce_recv(const struct bnet_coll_pipe *pipe, size_t i)
{
	const struct ring *ring = pipe->op;
	size_t at, bytes;

	locate(ring, i, 1, &at, &bytes);
	return gathers(ring, i) ? piece_in(ring->recv, at, bytes) : piece_in(slot(ring, i), 0, bytes);
}

/* A gathered block is received where this rank's partial sum lay: that was sent nranks - 1 steps ago. */
static bool allreduce_may_recv(const struct bnet_coll_pipe *pipe, size_t i)
{
	const struct ring *ring = pipe->op;

	return !gathers(ring, i) || pipe->send.done > i - ((size_t)ring->nranks - 1) * ring->width;
}

static void allreduce_received(const struct bnet_coll_pipe *pipe, size_t i)
{
	const struct ring *ring = pipe->op;
	size_t at, bytes;

	if (gathers(ring, i))
		return;
	locate(ring, i, 1, &at, &bytes);
	reduce(ring, ring->recv + at, ring->send + at, slot(ring, i), bytes,
	       step_of(ring, i) == (size_t)ring->nranks - 2);
}

int bnet_coll_ring_allreduce(struct bnet_coll *coll, const void *send, void *recv, size_t count, int dtype, int op)
{
	const size_t element = bnet_coll_dtype_size(dtype), nranks = (size_t)coll->nranks;
	const size_t block = bnet_coll_round_up(bnet_coll_chunks(count, nranks) * element, 64);
	struct bnet_coll_pipe pipe = {.send.piece = allreduce_send,
				 .recv.piece = allreduce_recv,
				 .recv.may_post = allreduce_may_recv,
				 .received = allreduce_received};
	struct ring ring;

	ring_init(&ring, coll, send, recv, block);
	ring.total = count * element;
	ring.steps *= 2;
	ring.dtype = dtype;
	ring.op = op;
	ring.element = element;
	ring.scratch = bnet_coll_scratch(coll, BNET_COLL_DEPTH * ring.chunk);
	return ring.scratch != NULL ? run(coll, &pipe, &ring) : -ENOMEM;
}

/* ---- reduce-scatter: a partial sum stays in the slot that it was received into until it is sent on ---- */

static bool ends_here(const struct ring *ring, size_t i)
{
	return step_of(ring, i) == ring->steps - 1;
}

static struct bnet_coll_piece scatter_send(const struct bnet_coll_pipe *pipe, size_t i)
{
	const struct ring *ring = pipe->op;
	size_t at, bytes;

	locate(ring, i, 0, &at, &bytes);
	if (step_of(ring, i) == 0)
		return piece_in(ring->send, at, bytes);
	return piece_in(slot(ring, i - ring->width), 0, bytes);
}

static struct bnet_coll_piece scatter_recv(const struct bnet_coll_pipe *pipe, size_t i)
{
	const struct ring *ring = pipe->op;
	size_t at, bytes;

	locate(ring, i, 1, &at, &bytes);
	return piece_in(slot(ring, i), 0, bytes);
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
	size_t at, bytes;
	char *dst;

	locate(ring, i, 1, &at, &bytes);
	dst = ends_here(ring, i) ? ring->recv + (at - (size_t)ring->rank * ring->block) : slot(ring, i);
	reduce(ring, dst, ring->send + at, slot(ring, i), bytes, ends_here(ring, i));
}

static int ring_reduce_scatter(struct bnet_coll *coll, const void *send, void *recv, size_t block, int dtype, int op)
{
	struct bnet_coll_pipe pipe = {.send.piece = scatter_send,
				 .recv.piece = scatter_recv,
				 .recv.may_post = scatter_may_recv,
				 .received = scatter_received};
	struct ring ring;

	ring_init(&ring, coll, send, recv, block);
	ring.shift = 1; /* so that the last block received is this rank's own */
	ring.dtype = dtype;
	ring.op = op;
	ring.element = bnet_coll_dtype_size(dtype);
	ring.scratch = bnet_coll_scratch(coll, BNET_COLL_DEPTH * ring.chunk);
	return ring.scratch != NULL ? run(coll, &pipe, &ring) : -ENOMEM;
}

int bnet_coll_reduce_scatter(bnet_coll_t *coll, const void *send, void *recv, size_t count_per_rank, int dtype, int op)
{
	int rc = bnet_coll_check_count(coll, count_per_rank, dtype);
	size_t block;

	if (rc == 0)
		rc = bnet_coll_check_op(coll, dtype, op);
	if (rc != 0)
		return rc;
	block = count_per_rank * bnet_coll_dtype_size(dtype);
	rc = bnet_coll_begin(coll, "reduce_scatter", send, block * (size_t)coll->nranks, recv, block);
	if (rc != 0)
		return rc;
	if (coll->nranks == 1 && block > 0)
		memmove(recv, send, block);
	else if (block > 0)
		rc = ring_reduce_scatter(coll, send, recv, block, dtype, op);
	return bnet_coll_end(coll, rc);
}

/* ---- all-gather: every block is received at its final place ---- */

static struct bnet_coll_piece gather_send(const struct bnet_coll_pipe *pipe, size_t i)
{
	const struct ring *ring = pipe->op;
	size_t at, bytes;

	locate(ring, i, 0, &at, &bytes);
	return piece_in(ring->recv, at, bytes);
}

static struct bnet_coll_piece gather_recv(const struct bnet_coll_pipe *pipe, size_t i)
{
	const struct ring *ring = pipe->op;
	size_t at, bytes;

	locate(ring, i, 1, &at, &bytes);
	return piece_in(ring->recv, at, bytes);
}

int bnet_coll_all_gather(bnet_coll_t *coll, const void *send, void *recv, size_t count_per_rank, int dtype)
{
	struct bnet_coll_pipe pipe = {.send.piece = gather_send, .recv.piece = gather_recv};
	int rc = bnet_coll_check_count(coll, count_per_rank, dtype);
	struct ring ring;
	size_t block;

	if (rc != 0)
		return rc;
	block = count_per_rank * bnet_coll_dtype_size(dtype);
	rc = bnet_coll_begin(coll, "all_gather", send, block, recv, block * (size_t)coll->nranks);
	if (rc != 0)
		return rc;
	if (block > 0)
		memmove((char *)recv + (size_t)coll->rank * block, send, block);
	if (block > 0 && coll->nranks > 1) {
		ring_init(&ring, coll, send, recv, block);
		rc = run(coll, &pipe, &ring);
	}
	return bnet_coll_end(coll, rc);
}
