/* SPDX-License-Identifier: MIT
 *
 * Allreduce: the choice between the ring and the algorithms of few steps, and the latter. The group's own thread.
 *
 * All ranks get the same bits: where several ranks compute the same element, all apply the operation to the same
 * operands in the same order.
 */
#include "coll/allreduce.h"

#include <errno.h>
#include <string.h>

#include "coll/transfer.h"
#include "coll/reduce.h"
#include "coll/ring.h"
#include "coll/size.h"

/*
 * With a latency of A = 10 µs per step and B = 2 GB/s on the wire (loopback and 25 Gb/s Ethernet come close), n bytes
 * take
 *
 *   ring                      2 (N-1) A + 2 (N-1)/N n/B
 *   all to all                        A +     (N-1) n/B
 *   recursive doubling, N > 4  log2 N A +    log2 N n/B
 *
 * so the ring wins for large messages. The break-even point was measured on loopback with two processors: between
 * 512 KiB and 1 MiB for two ranks, whose only gain is that the ring reduces half of the bytes while the other half
 * travels; between 64 and 128 KiB for three and four; at 256 KiB for five.
 */
#define DIRECT_MAX_PAIR ((size_t)512 * 1024)
#define DIRECT_MAX_ALL_TO_ALL ((size_t)64 * 1024)
#define DIRECT_MAX_DOUBLING ((size_t)128 * 1024)
/* The most ranks that send to all others at once. */
#define ALL_TO_ALL_RANKS 4
/* An algorithm of few steps works on one segment at a time: its scratch stays bounded where a caller insists on it. */
#define SEGMENT ((size_t)1024 * 1024)

struct operands {
	const struct bnet_coll_subgroup *subgroup;
	size_t count;
	size_t bytes;
	int dtype;
	int op;
};

static void reduce(void *dst, const void *a, const void *b, const struct operands *operands)
{
	bnet_coll_reduce_local(dst, a, b, operands->count, operands->dtype, operands->op);
}

/* ---- every rank gets all inputs and reduces them in rank order: one step ---- */

static int all_to_all(struct bnet_coll *coll, const char *send, char *recv, const struct operands *operands)
{
	const struct bnet_coll_subgroup *subgroup = operands->subgroup;
	struct bnet_coll_transfer transfers[ALL_TO_ALL_RANKS - 1];
	struct bnet_coll_pipe *pipes[ALL_TO_ALL_RANKS - 1];
	const char *inputs[ALL_TO_ALL_RANKS];
	char *scratch = bnet_coll_scratch(coll, (size_t)subgroup->count * operands->bytes);
	int npipes = 0, rc;
	char *sum;

	if (scratch == NULL)
		return -ENOMEM;
	for (int place = 0; place < subgroup->count; place++) {
		const int peer = bnet_coll_subgroup_rank(subgroup, place);
		char *slot = scratch + (size_t)place * operands->bytes;

		inputs[place] = place == subgroup->index ? send : slot;
		if (place == subgroup->index)
			continue;
		bnet_coll_transfer_init(coll, &transfers[npipes], send, operands->bytes, peer, slot, operands->bytes,
					peer, NULL);
		pipes[npipes] = &transfers[npipes].pipe;
		npipes++;
	}
	rc = bnet_coll_pipes_run(coll, pipes, npipes);
	if (rc != 0)
		return rc;
	/* Only the last step writes to recv, which may be this rank's input. */
	sum = scratch + (size_t)subgroup->index * operands->bytes;
	for (int place = 1; place < subgroup->count; place++)
		reduce(place == subgroup->count - 1 ? recv : sum, place == 1 ? inputs[0] : sum, inputs[place],
		       operands);
	return 0;
}

/* ---- recursive doubling: log2(nranks) exchanges; a rank beyond the largest power of two adds its input to a rank
 * below and gets the result from there ---- */

static int double_up(struct bnet_coll *coll, char *sum, char *other, int power, const struct operands *operands)
{
	const struct bnet_coll_subgroup *subgroup = operands->subgroup;

	for (int distance = 1; distance < power; distance *= 2) {
		const int place = subgroup->index ^ distance, peer = bnet_coll_subgroup_rank(subgroup, place);
		int rc = bnet_coll_exchange(coll, sum, operands->bytes, peer, other, operands->bytes, peer);

		if (rc != 0)
			return rc;
		if (subgroup->index < place)
			reduce(sum, sum, other, operands);
		else
			reduce(sum, other, sum, operands);
	}
	return 0;
}

static int recursive_doubling(struct bnet_coll *coll, const char *send, char *recv, const struct operands *operands)
{
	const struct bnet_coll_subgroup *subgroup = operands->subgroup;
	const size_t bytes = operands->bytes;
	char *other = bnet_coll_scratch(coll, bytes);
	int power = 1, peer, rc = 0;

	if (other == NULL)
		return -ENOMEM;
	while (2 * power <= subgroup->count)
		power *= 2;
	if (subgroup->index >= power) {
		peer = bnet_coll_subgroup_rank(subgroup, subgroup->index - power);
		rc = bnet_coll_exchange(coll, send, bytes, peer, NULL, 0, -1);
		return rc != 0 ? rc : bnet_coll_exchange(coll, NULL, 0, -1, recv, bytes, peer);
	}
	if (recv != send)
		memcpy(recv, send, bytes);
	if (subgroup->index + power >= subgroup->count)
		return double_up(coll, recv, other, power, operands);
	peer = bnet_coll_subgroup_rank(subgroup, subgroup->index + power);
	rc = bnet_coll_exchange(coll, NULL, 0, -1, other, bytes, peer);
	if (rc != 0)
		return rc;
	reduce(recv, recv, other, operands);
	rc = double_up(coll, recv, other, power, operands);
	return rc != 0 ? rc : bnet_coll_exchange(coll, recv, bytes, peer, NULL, 0, -1);
}

static int direct(struct bnet_coll *coll, const struct bnet_coll_subgroup *subgroup, const char *send, char *recv,
		  size_t count, int dtype, int op)
{
	const size_t element = bnet_coll_dtype_size(dtype);

	for (size_t at = 0; at < count; at += SEGMENT / element) {
		const size_t n = bnet_coll_min(SEGMENT / element, count - at);
		const struct operands operands = {.subgroup = subgroup,
						  .count = n,
						  .bytes = n * element,
						  .dtype = dtype,
						  .op = op};
		const char *from = send + at * element;
		char *to = recv + at * element;
		int rc = subgroup->count <= ALL_TO_ALL_RANKS ? all_to_all(coll, from, to, &operands)
							     : recursive_doubling(coll, from, to, &operands);

		if (rc != 0)
			return rc;
		bnet_coll_average(to, n, dtype, op, coll->nranks);
	}
	return 0;
}

bool bnet_coll_is_small(size_t bytes, int nranks)
{
	if (nranks == 2)
		return bytes <= DIRECT_MAX_PAIR;
	return bytes <= (nranks <= ALL_TO_ALL_RANKS ? DIRECT_MAX_ALL_TO_ALL : DIRECT_MAX_DOUBLING);
}

int bnet_coll_net_allreduce(struct bnet_coll *coll, const struct bnet_coll_subgroup *subgroup, const char *send,
			    char *recv, size_t count, int dtype, int op, int algo)
{
	const bool small = bnet_coll_is_small(count * bnet_coll_dtype_size(dtype), subgroup->count);

	if (algo == BNET_ALGO_DIRECT || (algo == BNET_ALGO_AUTO && small))
		return direct(coll, subgroup, send, recv, count, dtype, op);
	return bnet_coll_ring_allreduce(coll, subgroup, send, recv, count, dtype, op);
}
