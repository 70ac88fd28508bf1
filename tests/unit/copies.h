/* SPDX-License-Identifier: MIT
 *
 * Copying collectives of a rank, with what every rank must have after them.
 */
#ifndef BNET_TESTS_COPIES_H
#define BNET_TESTS_COPIES_H

#include <stdlib.h>
#include <string.h>

#include "elements.h"
#include "ranks.h"

static inline void one_all_to_all(struct rank *rank, size_t count, int dtype, bool in_place)
{
	const size_t size = bnet_coll_dtype_size(dtype), total = count * (size_t)rank->nranks;
	char *send = new_buffer(total, dtype), *recv = in_place ? send : new_buffer(total, dtype);

	fill(send, rank->rank, 0, total, dtype, BNET_SUM);
	check_ok(rank, bnet_coll_all_to_all(rank->coll, send, recv, count, dtype));
	for (int from = 0; from < rank->nranks; from++)
		check_input(recv + (size_t)from * count * size, from, (size_t)rank->rank * count, count, dtype);
	check_int(recv[total * size], 0x77);
	if (!in_place)
		free(recv);
	free(send);
}

/* Rank r sends (r + to) % 3 thirds of count elements to rank `to`, beginning with element `to`. */
static inline size_t share(int from, int to, size_t count)
{
	return (size_t)((from + to) % 3) * count / 3;
}

static inline void one_all_to_allv(struct rank *rank, size_t count, int dtype)
{
	const size_t size = bnet_coll_dtype_size(dtype);
	size_t send_counts[MAX_RANKS], recv_counts[MAX_RANKS], sent = 0, received = 0, at = 0;
	char *send, *recv;

	for (int peer = 0; peer < rank->nranks; peer++) {
		sent += send_counts[peer] = share(rank->rank, peer, count);
		received += recv_counts[peer] = share(peer, rank->rank, count);
	}
	send = new_buffer(sent, dtype);
	recv = new_buffer(received, dtype);
	for (int peer = 0; peer < rank->nranks; at += send_counts[peer] * size, peer++)
		fill(send + at, rank->rank, (size_t)peer, send_counts[peer], dtype, BNET_SUM);
	check_ok(rank, bnet_coll_all_to_allv(rank->coll, send, send_counts, recv, recv_counts, dtype));
	at = 0;
	for (int peer = 0; peer < rank->nranks; at += recv_counts[peer] * size, peer++)
		check_input(recv + at, peer, (size_t)rank->rank, recv_counts[peer], dtype);
	check_int(recv[received * size], 0x77);
	free(send);
	free(recv);
}

static inline void one_gather_and_scatter(struct rank *rank, size_t count, int dtype, int root)
{
	const size_t size = bnet_coll_dtype_size(dtype), total = count * (size_t)rank->nranks;
	char *own = new_buffer(count, dtype), *all = new_buffer(total, dtype);

	fill(own, rank->rank, 0, count, dtype, BNET_SUM);
	check_ok(rank, bnet_coll_gather(rank->coll, own, all, count, dtype, root));
	for (int from = 0; from < rank->nranks && rank->rank == root; from++)
		check_input(all + (size_t)from * count * size, from, 0, count, dtype);
	memset(own, 0, count * size);
	check_ok(rank, bnet_coll_scatter(rank->coll, all, own, count, dtype, root));
	check_input(own, rank->rank, 0, count, dtype); /* back at its source */
	check_int(own[count * size], 0x77);
	check_int(all[total * size], 0x77);
	free(own);
	free(all);
}

#endif
