/* SPDX-License-Identifier: MIT
 *
 * See hierarchy.h.
 */
#include "coll/hierarchy.h"

#include <errno.h>

#include "coll/allreduce.h"
#include "coll/local.h"
#include "coll/reduce.h"
#include "coll/ring.h"
#include "coll/size.h"

/* Chunks of its host's sums that a reduce-scatter keeps, for one segment of the blocks. On short paths they are reduced
 * further while they are in the cache; the memory for them is bounded. */
#define SUMS 4

/* The average is taken once, after the last step. */
static int op_within(int op)
{
	return op == BNET_AVG ? BNET_SUM : op;
}

/* Each member reduces its shard with the other members, then with its counterparts; then all members exchange
 * shards. */
int bnet_coll_hierarchical_allreduce(struct bnet_coll *coll, const char *send, char *recv, size_t count, int dtype,
				     int op)
{
	const struct bnet_coll_subgroup counterparts = bnet_coll_host_counterparts(&coll->host);
	const size_t element = bnet_coll_dtype_size(dtype), bytes = count * element;
	const size_t shard = bnet_coll_round_up(bnet_coll_chunks(bytes, (size_t)coll->host.count), BNET_COLL_LINE);
	const struct bnet_coll_blocks from = {.base = (char *)(uintptr_t)send, .bytes = shard, .total = bytes};
	const struct bnet_coll_blocks to = {.base = recv, .bytes = shard, .total = bytes};
	const size_t own = bnet_coll_block_bytes(&to, coll->host.index);
	char *sum = bnet_coll_block_at(&to, coll->host.index);
	int rc = bnet_coll_local_reduce_scatter(coll, &from, sum, dtype, op_within(op));

	if (rc == 0 && own > 0)
		rc = bnet_coll_net_allreduce(coll, &counterparts, sum, sum, own / element, dtype, op, BNET_ALGO_AUTO);
	return rc != 0 ? rc : bnet_coll_local_all_gather(coll, sum, &to);
}

/* ---- blocks of all ranks, host by host ---- */

/* `bytes` bytes of the blocks of a host's ranks, from offset `at` on. */
static struct bnet_coll_blocks blocks_of(struct bnet_coll *coll, const struct bnet_coll_blocks *all, int host,
					 size_t at, size_t bytes)
{
	for (int member = 0; member < coll->host.count; member++)
		coll->host.places[member] =
			bnet_coll_block_at(all, bnet_coll_host_rank(&coll->host, host, member)) + at;
	return (struct bnet_coll_blocks){.each = coll->host.places, .bytes = bytes};
}

/* For each host, this rank reduces the block of its counterpart there with the other members. */
static int sum_segment(struct bnet_coll *coll, const struct bnet_coll_blocks *from, size_t at,
		       const struct bnet_coll_blocks *sums, int dtype, int op)
{
	for (int host = 0; host < coll->host.hosts; host++) {
		const struct bnet_coll_blocks blocks = blocks_of(coll, from, host, at, sums->bytes);
		int rc = bnet_coll_local_reduce_scatter(coll, &blocks, bnet_coll_block_at(sums, host), dtype,
							op_within(op));

		if (rc != 0)
			return rc;
	}
	return 0;
}

/* Then all counterparts reduce these sums. */
static int scatter_segment(struct bnet_coll *coll, const struct bnet_coll_blocks *from, size_t at, size_t bytes,
			   char *sums, char *recv, int dtype, int op)
{
	const struct bnet_coll_subgroup counterparts = bnet_coll_host_counterparts(&coll->host);
	const struct bnet_coll_blocks reduced = {.base = sums, .bytes = bytes};
	int rc = sum_segment(coll, from, at, &reduced, dtype, op);

	return rc != 0 ? rc : bnet_coll_ring_reduce_scatter(coll, &counterparts, &reduced, recv + at, dtype, op);
}

/* Bytes of each block of which the sums are kept. */
static size_t segment_of(const struct bnet_coll *coll, size_t block, size_t unit)
{
	const size_t most = bnet_coll_chunks(SUMS * coll->chunk, (size_t)coll->host.hosts);

	return bnet_coll_min(block, bnet_coll_round_up(most, unit));
}

int bnet_coll_hierarchical_reduce_scatter(struct bnet_coll *coll, const struct bnet_coll_blocks *from, char *recv,
					  int dtype, int op)
{
	const size_t hosts = (size_t)coll->host.hosts, block = from->bytes;
	const size_t segment = segment_of(coll, block, BNET_COLL_LINE);
	char *scratch = bnet_coll_scratch(coll, bnet_coll_ring_scratch(coll) + hosts * segment);

	if (scratch == NULL)
		return -ENOMEM;
	for (size_t at = 0; at < block; at += segment) {
		int rc = scatter_segment(coll, from, at, bnet_coll_min(segment, block - at),
					 scratch + bnet_coll_ring_scratch(coll), recv, dtype, op);

		if (rc != 0)
			return rc;
	}
	return 0;
}

/* Each rank gets its counterparts' blocks, and then all members exchange what they have, host by host. */
int bnet_coll_hierarchical_all_gather(struct bnet_coll *coll, const char *send, const struct bnet_coll_blocks *to)
{
	const struct bnet_coll_subgroup counterparts = bnet_coll_host_counterparts(&coll->host);
	struct bnet_coll_blocks blocks = {.each = coll->host.places, .bytes = to->bytes};
	int rc;

	for (int host = 0; host < counterparts.count; host++)
		coll->host.places[host] = bnet_coll_block_at(to, counterparts.ranks[host]);
	rc = bnet_coll_ring_all_gather(coll, &counterparts, send, &blocks);
	for (int host = 0; host < counterparts.count && rc == 0; host++) {
		blocks = blocks_of(coll, to, host, 0, to->bytes);
		rc = bnet_coll_local_all_gather(coll, bnet_coll_block_at(&blocks, coll->host.index), &blocks);
	}
	return rc;
}

/* ---- codes between hosts ---- */

/* As the allreduce above. The residual of what a member sends is in the same place as its shard. */
int bnet_coll_hierarchical_allreduce_q(struct bnet_coll *coll, const char *send, char *recv, size_t count,
				       const struct bnet_coll_quantization *how, char *residual)
{
	const struct bnet_coll_subgroup counterparts = bnet_coll_host_counterparts(&coll->host);
	const size_t elements = bnet_coll_round_up(bnet_coll_chunks(count, (size_t)coll->host.count), how->block);
	const size_t shard = elements * sizeof(float), bytes = count * sizeof(float);
	const struct bnet_coll_blocks from = {.base = (char *)(uintptr_t)send, .bytes = shard, .total = bytes};
	const struct bnet_coll_blocks to = {.base = recv, .bytes = shard, .total = bytes};
	const size_t own = bnet_coll_block_bytes(&to, coll->host.index);
	char *sum = bnet_coll_block_at(&to, coll->host.index);
	int rc = bnet_coll_local_reduce_scatter(coll, &from, sum, BNET_FLOAT32, BNET_SUM);

	if (rc == 0 && own > 0) {
		if (residual != NULL)
			residual += (size_t)coll->host.index * shard;
		rc = bnet_coll_quantized_allreduce(coll, &counterparts, sum, sum, own / sizeof(float), how, residual);
	}
	return rc != 0 ? rc : bnet_coll_local_all_gather(coll, sum, &to);
}

/* The residual of a sum is in the place of the counterpart's block. */
static int scatter_codes(struct bnet_coll *coll, const struct bnet_coll_blocks *from, size_t at,
			 const struct bnet_coll_blocks *sums, char *recv, const struct bnet_coll_quantization *how,
			 char *residual)
{
	const struct bnet_coll_subgroup counterparts = bnet_coll_host_counterparts(&coll->host);
	const struct bnet_coll_blocks residuals = {.each = coll->host.places, .bytes = sums->bytes};
	int rc = sum_segment(coll, from, at, sums, BNET_FLOAT32, BNET_SUM);

	if (rc != 0)
		return rc;
	for (int host = 0; host < counterparts.count && residual != NULL; host++)
		coll->host.places[host] = residual + (size_t)counterparts.ranks[host] * from->bytes + at;
	return bnet_coll_quantized_reduce_scatter(coll, &counterparts, sums, recv + at, how,
						  residual != NULL ? &residuals : NULL);
}

int bnet_coll_hierarchical_reduce_scatter_q(struct bnet_coll *coll, const struct bnet_coll_blocks *from, char *recv,
					    const struct bnet_coll_quantization *how, char *residual)
{
	const size_t segment = segment_of(coll, from->bytes, how->block * sizeof(float));
	const size_t codes =
		bnet_coll_round_up(bnet_coll_quantized_scratch(coll, coll->host.hosts, how), BNET_COLL_LINE);
	char *scratch = bnet_coll_scratch(coll, codes + (size_t)coll->host.hosts * segment);

	if (scratch == NULL)
		return -ENOMEM;
	for (size_t at = 0; at < from->bytes; at += segment) {
		const struct bnet_coll_blocks sums = {.base = scratch + codes,
						      .bytes = bnet_coll_min(segment, from->bytes - at)};
		int rc = scatter_codes(coll, from, at, &sums, recv, how, residual);

		if (rc != 0)
			return rc;
	}
	return 0;
}
