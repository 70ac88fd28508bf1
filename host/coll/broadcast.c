/* SPDX-License-Identifier: MIT
 *
 * Broadcast: a binomial tree for small messages, a pipelined chain for large ones. The group's own thread.
 */
#include "coll/broadcast.h"

#include "coll/transfer.h"

#define MAX_CHILDREN 31

/* ---- tree ---- */

/* A place is a rank counted from the root. The parent of a place lacks its lowest set bit; its children have one more
 * bit, below that one. */
static int tree(struct bnet_coll *coll, char *buf, size_t bytes, int root)
{
	const int place = (coll->rank - root + coll->nranks) % coll->nranks;
	struct bnet_coll_transfer transfers[MAX_CHILDREN];
	struct bnet_coll_pipe *pipes[MAX_CHILDREN];
	int bit = 1, npipes = 0, rc = 0;

	while (bit < coll->nranks && (place & bit) == 0)
		bit *= 2;
	if (place != 0)
		rc = bnet_coll_exchange(coll, NULL, 0, -1, buf, bytes, (place - bit + root) % coll->nranks);
	if (rc != 0)
		return rc;
	for (bit /= 2; bit > 0; bit /= 2) { /* the largest subtree first */
		if (place + bit >= coll->nranks)
			continue;
		bnet_coll_transfer_init(coll, &transfers[npipes], buf, bytes, (place + bit + root) % coll->nranks, NULL,
					0, -1, NULL);
		pipes[npipes] = &transfers[npipes].pipe;
		npipes++;
	}
	return bnet_coll_pipes_run(coll, pipes, npipes);
}

/* ---- chain ---- */

static bool chain_may_send(const struct bnet_coll_pipe *pipe, size_t i)
{
	return pipe->recv.count == 0 || pipe->recv.done > i;
}

static int chain(struct bnet_coll *coll, char *buf, size_t bytes, int root)
{
	const int place = (coll->rank - root + coll->nranks) % coll->nranks;
	const int to = place == coll->nranks - 1 ? -1 : bnet_coll_ring_rank(coll, 1);
	const int from = place == 0 ? -1 : bnet_coll_ring_rank(coll, -1);
	struct bnet_coll_transfer transfer;

	bnet_coll_transfer_init(coll, &transfer, buf, bytes, to, buf, bytes, from, NULL);
	transfer.pipe.send.may_post = chain_may_send;
	return bnet_coll_pipes_run(coll, (struct bnet_coll_pipe *const[]){&transfer.pipe}, 1);
}

int bnet_coll_net_broadcast(struct bnet_coll *coll, char *buf, size_t bytes, int root)
{
	/* A single chunk cannot overlap with others along the chain, and log2 N steps are fewer than N - 1. */
	return bytes <= coll->chunk ? tree(coll, buf, bytes, root) : chain(coll, buf, bytes, root);
}
