/* SPDX-License-Identifier: MIT
 *
 * Send and receive, all-to-all, barrier. The group's own thread.
 */
#include <errno.h>
#include <stdint.h>
#include <string.h>

#include "coll/flat.h"
#include "coll/size.h"

#define STAGE_BYTES (BNET_COLL_DEPTH * BNET_COLL_CHUNK)
/* Peers that all-to-all exchanges with at the same time: up to three slow ones do not hold up the others. */
#define ALL_TO_ALL_PEERS 4

/* ---- send and receive ---- */

static int sendrecv(struct bnet_coll *coll, const char *send, size_t send_bytes, int send_peer, char *recv,
		    size_t recv_bytes, int recv_peer)
{
	struct bnet_coll_flat flat;
	char *stage = NULL;

	if (send_peer >= 0 && recv_peer >= 0 && send == recv) {
		stage = bnet_coll_scratch(coll, STAGE_BYTES);
		if (stage == NULL)
			return -ENOMEM;
	}
	bnet_coll_flat_init(&flat, send, send_bytes, send_peer, recv, recv_bytes, recv_peer, stage);
	return bnet_coll_pipes_run(coll, (struct bnet_coll_pipe *const[]){&flat.pipe}, 1);
}

static int check_sendrecv(struct bnet_coll *coll, size_t send_count, int send_peer, size_t recv_count, int recv_peer,
			  int dtype)
{
	int rc = bnet_coll_check_count(coll, bnet_coll_max(send_count, recv_count), dtype);

	if (rc != 0)
		return rc;
	if (send_peer == coll->rank && recv_peer == coll->rank) {
		if (send_count != recv_count)
			rc = bnet_coll_fail(coll, -EINVAL, "sendrecv: rank %d sends %zu elements to itself and expects "
					    "%zu", coll->rank, send_count, recv_count);
		return rc;
	}
	if (send_peer != -1)
		rc = bnet_coll_check_peer(coll, send_peer);
	if (rc == 0 && recv_peer != -1)
		rc = bnet_coll_check_peer(coll, recv_peer);
	return rc;
}

int bnet_coll_sendrecv(bnet_coll_t *coll, const void *send, size_t send_count, int send_peer, void *recv,
		       size_t recv_count, int recv_peer, int dtype)
{
	size_t send_bytes = send_peer == -1 ? 0 : send_count * bnet_coll_dtype_size(dtype);
	size_t recv_bytes = recv_peer == -1 ? 0 : recv_count * bnet_coll_dtype_size(dtype);
	int rc = check_sendrecv(coll, send_peer == -1 ? 0 : send_count, send_peer, recv_peer == -1 ? 0 : recv_count,
				recv_peer, dtype);

	if (rc == 0)
		rc = bnet_coll_begin(coll, "sendrecv", send, send_bytes, recv, recv_bytes);
	if (rc != 0)
		return rc;
	if (send_peer == coll->rank) {
		if (send_bytes > 0)
			memmove(recv, send, send_bytes);
	} else {
		rc = sendrecv(coll, send, send_bytes, send_peer, recv, recv_bytes, recv_peer);
	}
	return bnet_coll_end(coll, rc);
}

int bnet_coll_send(bnet_coll_t *coll, const void *buf, size_t count, int dtype, int peer)
{
	size_t bytes = count * bnet_coll_dtype_size(dtype);
	int rc = bnet_coll_check_count(coll, count, dtype);

	if (rc == 0)
		rc = bnet_coll_check_peer(coll, peer);
	if (rc == 0)
		rc = bnet_coll_begin(coll, "send", buf, bytes, NULL, 0);
	return rc != 0 ? rc : bnet_coll_end(coll, sendrecv(coll, buf, bytes, peer, NULL, 0, -1));
}

int bnet_coll_recv(bnet_coll_t *coll, void *buf, size_t count, int dtype, int peer)
{
	size_t bytes = count * bnet_coll_dtype_size(dtype);
	int rc = bnet_coll_check_count(coll, count, dtype);

	if (rc == 0)
		rc = bnet_coll_check_peer(coll, peer);
	if (rc == 0)
		rc = bnet_coll_begin(coll, "recv", NULL, 0, buf, bytes);
	return rc != 0 ? rc : bnet_coll_end(coll, sendrecv(coll, NULL, 0, -1, buf, bytes, peer));
}

/* ---- all-to-all: in round k, two ranks whose sum is k modulo nranks exchange their blocks. Both blocks move at the
 * same time (in place, one is received over the other), and every two ranks have exactly one round ---- */

/* A large buffer: one block per rank, contiguous, in rank order. */
struct blocks {
	char *base;
	size_t element;
	size_t count;         /* elements of every block if counts is NULL */
	const size_t *counts; /* NULL, or elements of each block */
};

static size_t block_bytes(const struct blocks *blocks, int rank)
{
	return (blocks->counts != NULL ? blocks->counts[rank] : blocks->count) * blocks->element;
}

static char *block_at(const struct blocks *blocks, int rank)
{
	size_t at = 0;

	if (blocks->counts == NULL)
		return blocks->base + (size_t)rank * block_bytes(blocks, rank);
	for (int before = 0; before < rank; before++)
		at += block_bytes(blocks, before);
	return blocks->base + at;
}

struct all_to_all {
	const struct bnet_coll *coll;
	const struct blocks *send;
	const struct blocks *recv;
	struct bnet_coll_flat flats[ALL_TO_ALL_PEERS];
	char *stage; /* NULL, or STAGE_BYTES for each of them */
	int round;   /* the next one */
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
	bnet_coll_flat_init(&all->flats[place], block_at(all->send, peer), block_bytes(all->send, peer), peer,
			    block_at(all->recv, peer), block_bytes(all->recv, peer), peer,
			    all->stage != NULL ? all->stage + (size_t)place * STAGE_BYTES : NULL);
	return true;
}

static int all_to_all(struct bnet_coll *coll, const struct blocks *send, const struct blocks *recv)
{
	struct all_to_all all = {.coll = coll, .send = send, .recv = recv};
	struct bnet_coll_pipe *pipes[ALL_TO_ALL_PEERS];

	if (send->base == recv->base && send->base != NULL) {
		all.stage = bnet_coll_scratch(coll, STAGE_BYTES * ALL_TO_ALL_PEERS);
		if (all.stage == NULL)
			return -ENOMEM;
	}
	for (int i = 0; i < ALL_TO_ALL_PEERS; i++)
		pipes[i] = &all.flats[i].pipe;
	return bnet_coll_pipes_run_on(coll, pipes, ALL_TO_ALL_PEERS, next_round, &all);
}

static void copy_own_block(const struct bnet_coll *coll, const struct blocks *send, const struct blocks *recv)
{
	const size_t bytes = block_bytes(send, coll->rank);

	if (bytes > 0 && send->base != recv->base)
		memcpy(block_at(recv, coll->rank), block_at(send, coll->rank), bytes);
}

int bnet_coll_all_to_all(bnet_coll_t *coll, const void *send, void *recv, size_t count_per_rank, int dtype)
{
	const size_t element = bnet_coll_dtype_size(dtype);
	const struct blocks from = {(char *)(uintptr_t)send, element, count_per_rank, NULL};
	const struct blocks to = {recv, element, count_per_rank, NULL};
	int rc = bnet_coll_check_count(coll, count_per_rank, dtype);
	size_t total;

	if (rc != 0)
		return rc;
	total = count_per_rank * element * (size_t)coll->nranks;
	rc = bnet_coll_begin(coll, "all_to_all", send, total, recv, total);
	if (rc != 0)
		return rc;
	if (total > 0) {
		copy_own_block(coll, &from, &to);
		rc = all_to_all(coll, &from, &to);
	}
	return bnet_coll_end(coll, rc);
}

/* 0 and the bytes of all ranks' counts, or -EINVAL. */
static int sum_counts(struct bnet_coll *coll, const size_t *counts, int dtype, size_t *bytes)
{
	*bytes = 0;
	for (int rank = 0; rank < coll->nranks; rank++) {
		int rc = bnet_coll_check_count(coll, counts[rank], dtype); /* so the sum cannot wrap */

		if (rc != 0)
			return rc;
		*bytes += counts[rank] * bnet_coll_dtype_size(dtype);
	}
	return 0;
}

int bnet_coll_all_to_allv(bnet_coll_t *coll, const void *send, const size_t *send_counts, void *recv,
			  const size_t *recv_counts, int dtype)
{
	const size_t element = bnet_coll_dtype_size(dtype);
	const struct blocks from = {(char *)(uintptr_t)send, element, 0, send_counts};
	const struct blocks to = {recv, element, 0, recv_counts};
	size_t send_bytes, recv_bytes;
	int rc = bnet_coll_check_count(coll, 0, dtype);

	if (rc == 0)
		rc = sum_counts(coll, send_counts, dtype, &send_bytes);
	if (rc == 0)
		rc = sum_counts(coll, recv_counts, dtype, &recv_bytes);
	if (rc == 0 && send == recv && send != NULL)
		rc = bnet_coll_fail(coll, -EINVAL,
				    "all_to_allv: blocks of different sizes cannot be exchanged in place");
	if (rc == 0 && send_counts[coll->rank] != recv_counts[coll->rank])
		rc = bnet_coll_fail(coll, -EINVAL, "all_to_allv: rank %d sends %zu elements to itself and expects %zu",
				    coll->rank, send_counts[coll->rank], recv_counts[coll->rank]);
	if (rc == 0)
		rc = bnet_coll_begin(coll, "all_to_allv", send, send_bytes, recv, recv_bytes);
	if (rc != 0)
		return rc;
	copy_own_block(coll, &from, &to);
	return bnet_coll_end(coll, all_to_all(coll, &from, &to));
}

/* ---- barrier: after distance d, a rank has heard, directly or not, from the 2 d - 1 ranks before it ---- */

static int barrier(struct bnet_coll *coll)
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

int bnet_coll_barrier(bnet_coll_t *coll)
{
	int rc;

	if (coll == NULL)
		return -EINVAL;
	rc = bnet_coll_begin(coll, "barrier", NULL, 0, NULL, 0);
	return rc != 0 ? rc : bnet_coll_end(coll, barrier(coll));
}
