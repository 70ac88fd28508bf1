/* SPDX-License-Identifier: MIT
 *
 * All-to-all and barrier over the network. The group's own thread.
 *
 * In round k, two ranks whose sum is k modulo nranks exchange their blocks. Both blocks move at the same time (in
 * place, one is received over the other), and every two ranks have exactly one round.
 */
#include "coll/all_to_all.h"

#include <errno.h>
#include <string.h>

#include "coll/transfer.h"
#include "coll/size.h"

/* Peers that all-to-all exchanges with at the same time: up to three slow ones do not hold up the others. */
#define PEERS 4

struct all_to_all {
	const struct bnet_coll *coll;
	const struct bnet_coll_blocks *send;
	const struct bnet_coll_blocks *recv;
	struct bnet_coll_transfer transfers[PEERS];
	char *stage; /* NULL, or a stage for each of them, of so many bytes */
	size_t stage_bytes;
	int round; /* the next one */
};

/* No deadlock: the two ranks of the earliest unfinished round have both reached it, so one exchange always proceeds. */
static bool next_round(void *op, int place)
{
	struct all_to_all *all = op;
	const int rank = all->coll->rank, nranks = all->coll->nranks;
	int peer = rank;

	while (peer == rank && all->round < nranks)
		peer = (all->round++ - rank + nranks) % nranks;
	if (peer == rank)
		return false;
	bnet_coll_transfer_init(all->coll, &all->transfers[place], bnet_coll_block_at(all->send, peer),
				bnet_coll_block_bytes(all->send, peer), peer, bnet_coll_block_at(all->recv, peer),
				bnet_coll_block_bytes(all->recv, peer), peer,
				all->stage != NULL ? all->stage + (size_t)place * all->stage_bytes : NULL);
	return true;
}

static void copy_own_block(const struct bnet_coll *coll, const struct bnet_coll_blocks *send,
			   const struct bnet_coll_blocks *recv)
{
	bnet_coll_copy_bytes(bnet_coll_block_at(recv, coll->rank), bnet_coll_block_at(send, coll->rank),
			     bnet_coll_block_bytes(send, coll->rank));
}

static bool in_place(const struct bnet_coll *coll, const struct bnet_coll_blocks *send,
		     const struct bnet_coll_blocks *recv)
{
	for (int rank = 0; rank < coll->nranks; rank++)
		if (bnet_coll_block_bytes(send, rank) > 0 &&
		    bnet_coll_block_at(send, rank) == bnet_coll_block_at(recv, rank))
			return true;
	return false;
}

static size_t largest(const struct bnet_coll *coll, const struct bnet_coll_blocks *blocks)
{
	size_t bytes = 0;

	for (int rank = 0; rank < coll->nranks; rank++)
		bytes = bnet_coll_max(bytes, bnet_coll_block_bytes(blocks, rank));
	return bytes;
}

int bnet_coll_net_all_to_all(struct bnet_coll *coll, const struct bnet_coll_blocks *send,
			     const struct bnet_coll_blocks *recv)
{
	struct all_to_all all = {.coll = coll, .send = send, .recv = recv};
	struct bnet_coll_pipe *pipes[PEERS];

	copy_own_block(coll, send, recv);
	if (in_place(coll, send, recv)) {
		all.stage_bytes = bnet_coll_stage_bytes(coll, largest(coll, send));
		all.stage = bnet_coll_scratch(coll, PEERS * all.stage_bytes);
		if (all.stage == NULL)
			return -ENOMEM;
	}
	for (int i = 0; i < PEERS; i++)
		pipes[i] = &all.transfers[i].pipe;
	return bnet_coll_pipes_run_on(coll, pipes, PEERS, next_round, &all);
}

/* ---- barrier: after distance d, a rank has heard, directly or not, from the 2 d - 1 ranks before it ---- */

int bnet_coll_net_barrier(struct bnet_coll *coll)
{
	char *token = bnet_coll_scratch(coll, 2); /* a byte each way: empty messages are not sent */

	if (token == NULL)
		return -ENOMEM;
	token[0] = 0;
	for (int distance = 1; distance < coll->nranks; distance *= 2) {
		int rc = bnet_coll_exchange(coll, token, 1, bnet_coll_ring_rank(coll, distance), token + 1, 1,
					    bnet_coll_ring_rank(coll, -distance));

		if (rc != 0)
			return rc;
	}
	return 0;
}
