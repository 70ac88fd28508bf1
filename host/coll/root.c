/* SPDX-License-Identifier: MIT
 *
 * The operations with a root: reduce and gather, whose result only the root gets, and scatter, whose input only the
 * root has. The group's own thread.
 *
 * A place is a rank counted from the root.
 */
#include "coll/root.h"

#include <errno.h>
#include <string.h>

#include "coll/transfer.h"
#include "coll/reduce.h"
#include "coll/size.h"

/* Peers that the root exchanges messages with at the same time: up to three slow ones do not hold up the others. */
#define PEERS_AT_ONCE 4

static int place_of(const struct bnet_coll *coll, int root)
{
	return (coll->rank - root + coll->nranks) % coll->nranks;
}

static int rank_at(const struct bnet_coll *coll, int place, int root)
{
	return (place + root) % coll->nranks;
}

/* ---- reduce, small: up a binomial tree ---- */

struct reduction {
	const char *send;
	char *recv; /* the root's; else NULL */
	size_t bytes;
	size_t element;
	int dtype;
	int op;
	int nranks;
	int place;
};

static void reduce(const struct reduction *red, char *dst, const char *a, const char *b, size_t bytes)
{
	const size_t count = bytes / red->element;

	bnet_coll_reduce_local(dst, a, b, count, red->dtype, red->op);
}

static void average(const struct reduction *red, char *buf, size_t bytes)
{
	bnet_coll_average(buf, bytes / red->element, red->dtype, red->op, red->nranks);
}

/* A place has the sum of its own input and of the bit - 1 places behind it, and adds that of the next bit places. */
static int up_tree(struct bnet_coll *coll, const struct reduction *red, int root)
{
	const size_t room = bnet_coll_round_up(red->bytes, BNET_COLL_LINE);
	char *sum = bnet_coll_scratch(coll, 2 * room), *other = sum + room;
	int bit;

	if (sum == NULL)
		return -ENOMEM;
	memcpy(sum, red->send, red->bytes);
	for (bit = 1; bit < coll->nranks && (red->place & bit) == 0; bit *= 2) {
		int rc;

		if (red->place + bit >= coll->nranks)
			continue;
		rc = bnet_coll_exchange(coll, NULL, 0, -1, other, red->bytes, rank_at(coll, red->place + bit, root));
		if (rc != 0)
			return rc;
		reduce(red, sum, sum, other, red->bytes);
	}
	if (red->place != 0)
		return bnet_coll_exchange(coll, sum, red->bytes, rank_at(coll, red->place - bit, root), NULL, 0, -1);
	memcpy(red->recv, sum, red->bytes);
	average(red, red->recv, red->bytes);
	return 0;
}

/* ---- reduce, large: down a chain from the last place, chunk by chunk ---- */

struct chain {
	struct reduction red;
	size_t chunk; /* bytes */
	char *slots;  /* BNET_COLL_DEPTH chunks: a partial sum stays where it was received until it is sent on */
};

static char *slot(const struct chain *chain, size_t i)
{
	return chain->slots + i % BNET_COLL_DEPTH * chain->chunk;
}

static size_t chunk_bytes(const struct chain *chain, size_t i)
{
	return bnet_coll_min(chain->chunk, chain->red.bytes - i * chain->chunk);
}

static struct bnet_coll_piece chain_send(const struct bnet_coll_pipe *pipe, size_t i)
{
	const struct chain *chain = pipe->op;

	if (pipe->recv.count == 0)
		return (struct bnet_coll_piece){(char *)(uintptr_t)chain->red.send + i * chain->chunk,
						chunk_bytes(chain, i)};
	return (struct bnet_coll_piece){slot(chain, i), chunk_bytes(chain, i)};
}

static bool chain_may_send(const struct bnet_coll_pipe *pipe, size_t i)
{
	return pipe->recv.count == 0 || pipe->recv.done > i;
}

static struct bnet_coll_piece chain_recv(const struct bnet_coll_pipe *pipe, size_t i)
{
	const struct chain *chain = pipe->op;

	return (struct bnet_coll_piece){slot(chain, i), chunk_bytes(chain, i)};
}

static bool chain_may_recv(const struct bnet_coll_pipe *pipe, size_t i)
{
	return i < BNET_COLL_DEPTH || pipe->send.count == 0 || pipe->send.done > i - BNET_COLL_DEPTH;
}

static void chain_received(const struct bnet_coll_pipe *pipe, size_t i)
{
	const struct chain *chain = pipe->op;
	const size_t at = i * chain->chunk, bytes = chunk_bytes(chain, i);
	char *dst = chain->red.place == 0 ? chain->red.recv + at : slot(chain, i);

	reduce(&chain->red, dst, chain->red.send + at, slot(chain, i), bytes);
	if (chain->red.place == 0)
		average(&chain->red, dst, bytes);
}

static int down_chain(struct bnet_coll *coll, const struct reduction *red)
{
	const size_t chunks = bnet_coll_chunks(red->bytes, coll->chunk);
	const struct chain chain = {.red = *red,
				    .chunk = coll->chunk,
				    .slots = bnet_coll_scratch(coll, BNET_COLL_DEPTH * coll->chunk)};
	struct bnet_coll_pipe pipe = {
		.send = {.peer = -1, .piece = chain_send, .may_post = chain_may_send},
		.recv = {.peer = -1, .piece = chain_recv, .may_post = chain_may_recv},
		.received = chain_received,
		.op = &chain,
	};

	if (chain.slots == NULL)
		return -ENOMEM;
	if (red->place != 0) {
		pipe.send.peer = bnet_coll_ring_rank(coll, -1);
		pipe.send.count = chunks;
	}
	if (red->place != coll->nranks - 1) {
		pipe.recv.peer = bnet_coll_ring_rank(coll, 1);
		pipe.recv.count = chunks;
	}
	return bnet_coll_pipes_run(coll, (struct bnet_coll_pipe *const[]){&pipe}, 1);
}

int bnet_coll_net_reduce(struct bnet_coll *coll, const char *send, char *recv, size_t bytes, int dtype, int op,
			 int root)
{
	const struct reduction red = {.send = send,
				      .recv = coll->rank == root ? recv : NULL,
				      .bytes = bytes,
				      .element = bnet_coll_dtype_size(dtype),
				      .dtype = dtype,
				      .op = op,
				      .nranks = coll->nranks,
				      .place = place_of(coll, root)};

	/* As in broadcast: a single chunk cannot overlap with others along a chain, and log2 N steps are fewer than
	 * N - 1. */
	return bytes <= coll->chunk ? up_tree(coll, &red, root) : down_chain(coll, &red);
}

/* ---- gather and scatter: the root has one block for each rank ---- */

/* The root's side. Blocks are sent or received, except for the root's own. */
struct everyone {
	const struct bnet_coll *coll;
	const struct bnet_coll_blocks *blocks;
	struct bnet_coll_transfer transfers[PEERS_AT_ONCE];
	bool sends;
	int step; /* to the next peer around the ring */
};

static bool next_peer(void *op, int place)
{
	struct everyone *all = op;
	struct bnet_coll_transfer *transfer = &all->transfers[place];
	int peer;
	char *at;

	if (all->step == all->coll->nranks)
		return false;
	peer = bnet_coll_ring_rank(all->coll, all->step++);
	at = bnet_coll_block_at(all->blocks, peer);
	if (all->sends)
		bnet_coll_transfer_init(all->coll, transfer, at, all->blocks->bytes, peer, NULL, 0, -1, NULL);
	else
		bnet_coll_transfer_init(all->coll, transfer, NULL, 0, -1, at, all->blocks->bytes, peer, NULL);
	return true;
}

static int with_everyone(struct bnet_coll *coll, const struct bnet_coll_blocks *blocks, bool sends)
{
	struct everyone all = {.coll = coll, .blocks = blocks, .sends = sends, .step = 1};
	struct bnet_coll_pipe *pipes[PEERS_AT_ONCE];

	for (int i = 0; i < PEERS_AT_ONCE; i++)
		pipes[i] = &all.transfers[i].pipe;
	return bnet_coll_pipes_run_on(coll, pipes, PEERS_AT_ONCE, next_peer, &all);
}

int bnet_coll_net_gather(struct bnet_coll *coll, const char *send, size_t bytes, const struct bnet_coll_blocks *to,
			 int root)
{
	if (coll->rank != root)
		return bnet_coll_exchange(coll, send, bytes, root, NULL, 0, -1);
	memmove(bnet_coll_block_at(to, root), send, bytes);
	return with_everyone(coll, to, false);
}

int bnet_coll_net_scatter(struct bnet_coll *coll, const struct bnet_coll_blocks *from, char *recv, size_t bytes,
			  int root)
{
	if (coll->rank != root)
		return bnet_coll_exchange(coll, NULL, 0, -1, recv, bytes, root);
	memmove(recv, bnet_coll_block_at(from, root), bytes);
	return with_everyone(coll, from, true);
}
