/* SPDX-License-Identifier: MIT
 *
 * The collectives: what is checked first, and by which way an operation goes, through this host's memory or over the
 * network. All functions here are public. The group's own thread.
 */
#include <errno.h>
#include <stdint.h>
#include <string.h>

#include "codec/codec.h"
#include "coll/all_to_all.h"
#include "coll/allreduce.h"
#include "coll/blocks.h"
#include "coll/broadcast.h"
#include "coll/coll.h"
#include "coll/exchange.h"
#include "coll/hierarchy.h"
#include "coll/local.h"
#include "coll/quantized.h"
#include "coll/ring.h"
#include "coll/root.h"

/* An operation in bytes. */
struct plan {
	const bnet_op_t *op;
	const char *send;
	char *recv;
	struct bnet_coll_blocks from; /* the buffer of blocks that is sent, and … */
	struct bnet_coll_blocks to;   /* … the one that is received */
	size_t bytes;                 /* of the smaller buffer; 0 where blocks differ */
	bool is_root;
};

/* ---- arguments ---- */

static bool is_compressed(int kind)
{
	return kind == BNET_COLL_ALLREDUCE_Q || kind == BNET_COLL_REDUCE_SCATTER_Q;
}

static bool is_reduction(int kind)
{
	return kind == BNET_COLL_ALLREDUCE || kind == BNET_COLL_REDUCE_SCATTER || kind == BNET_COLL_REDUCE ||
	       is_compressed(kind);
}

static bool has_root(int kind)
{
	return kind == BNET_COLL_BROADCAST || kind == BNET_COLL_REDUCE || kind == BNET_COLL_GATHER ||
	       kind == BNET_COLL_SCATTER;
}

/* 0, or -EINVAL: a count, or the sum of all, is too large. */
static int check_counts(struct bnet_coll *coll, const size_t *counts, int dtype)
{
	for (int rank = 0; rank < coll->nranks; rank++) {
		int rc = bnet_coll_check_count(coll, counts[rank], dtype);

		if (rc != 0)
			return rc;
	}
	return 0;
}

static int check_all_to_allv(struct bnet_coll *coll, const bnet_op_t *op)
{
	int rc = check_counts(coll, op->send_counts, op->dtype);

	if (rc == 0)
		rc = check_counts(coll, op->recv_counts, op->dtype);
	if (rc == 0 && op->send == op->recv && op->send != NULL)
		rc = bnet_coll_fail(coll, -EINVAL,
				    "all_to_allv: blocks of different sizes cannot be exchanged in place");
	if (rc == 0 && op->send_counts[coll->rank] != op->recv_counts[coll->rank])
		rc = bnet_coll_fail(coll, -EINVAL, "all_to_allv: rank %d sends %zu elements to itself and expects %zu",
				    coll->rank, op->send_counts[coll->rank], op->recv_counts[coll->rank]);
	return rc;
}

static int check_compressed(struct bnet_coll *coll, const bnet_op_t *op)
{
	const char *name = bnet_coll_kind_name(op->kind);

	if (op->dtype != BNET_FLOAT32)
		return bnet_coll_fail(coll, -EINVAL, "%s: only float32 can be compressed", name);
	if (op->op != BNET_SUM && op->op != BNET_AVG)
		return bnet_coll_fail(coll, -EINVAL, "%s: only sums and averages can be compressed", name);
	if (!bnet_codec_is_valid(op->codec, op->block))
		return bnet_coll_fail(coll, -EINVAL,
				      "%s: codec %d with blocks of %zu: take codec 1 or 2, and a multiple of 32 up to "
				      "4096",
				      name, op->codec, op->block);
	return 0;
}

static int check(struct bnet_coll *coll, const bnet_op_t *op)
{
	int rc;

	if (coll == NULL || op == NULL)
		return -EINVAL;
	rc = bnet_coll_check_count(coll, op->count, op->dtype);
	if (rc == 0 && !bnet_coll_is_collective(op->kind))
		rc = bnet_coll_fail(coll, -EINVAL, "unknown operation %d", op->kind);
	if (rc == 0 && is_reduction(op->kind))
		rc = bnet_coll_check_op(coll, op->dtype, op->op);
	if (rc == 0 && is_compressed(op->kind))
		rc = check_compressed(coll, op);
	if (rc == 0 && op->kind == BNET_COLL_ALLREDUCE && (op->algo < BNET_ALGO_AUTO || op->algo > BNET_ALGO_DIRECT))
		rc = bnet_coll_fail(coll, -EINVAL, "unknown allreduce algorithm %d", op->algo);
	if (rc == 0 && has_root(op->kind))
		rc = bnet_coll_check_root(coll, bnet_coll_kind_name(op->kind), op->root);
	if (rc == 0 && op->kind == BNET_COLL_ALL_TO_ALLV)
		rc = check_all_to_allv(coll, op);
	return rc;
}

static struct plan plan_of(const struct bnet_coll *coll, const bnet_op_t *op)
{
	const size_t element = bnet_coll_dtype_size(op->dtype), bytes = op->count * element;
	char *send = (char *)(uintptr_t)op->send;

	return (struct plan){
		.op = op,
		.send = send,
		.recv = op->recv,
		.from = {.base = send, .each = op->sends, .bytes = bytes, .counts = op->send_counts, .unit = element},
		.to = {.base = op->recv, .each = op->recvs, .bytes = bytes, .counts = op->recv_counts, .unit = element},
		.bytes = op->kind == BNET_COLL_ALL_TO_ALLV ? 0 : bytes,
		.is_root = has_root(op->kind) && op->root == coll->rank,
	};
}

/* ---- the memory of an operation: connections register it ---- */

static struct bnet_coll_region whole(const void *base, size_t bytes)
{
	return (struct bnet_coll_region){(char *)(uintptr_t)base, bytes};
}

/* With the memory between the blocks, which nobody touches. */
static struct bnet_coll_region span(const struct bnet_coll_blocks *blocks, int nranks)
{
	const struct bnet_coll_span of = bnet_coll_blocks_span(blocks, nranks);

	return of.end == 0 ? whole(NULL, 0) : whole((void *)of.first, of.end - of.first);
}

static struct bnet_coll_region send_region(const struct bnet_coll *coll, const struct plan *plan)
{
	switch (plan->op->kind) {
	case BNET_COLL_ALLREDUCE_Q: /* codes are sent and received elsewhere */
	case BNET_COLL_REDUCE_SCATTER_Q:
		return whole(NULL, 0);
	case BNET_COLL_REDUCE_SCATTER:
	case BNET_COLL_ALL_TO_ALL:
	case BNET_COLL_ALL_TO_ALLV:
		return span(&plan->from, coll->nranks);
	case BNET_COLL_SCATTER:
		return plan->is_root ? span(&plan->from, coll->nranks) : whole(NULL, 0);
	default:
		return whole(plan->send, plan->bytes);
	}
}

static struct bnet_coll_region recv_region(const struct bnet_coll *coll, const struct plan *plan)
{
	switch (plan->op->kind) {
	case BNET_COLL_ALLREDUCE_Q:
	case BNET_COLL_REDUCE_SCATTER_Q:
		return whole(NULL, 0);
	case BNET_COLL_ALL_GATHER:
	case BNET_COLL_ALL_TO_ALL:
	case BNET_COLL_ALL_TO_ALLV:
		return span(&plan->to, coll->nranks);
	case BNET_COLL_GATHER:
		return plan->is_root ? span(&plan->to, coll->nranks) : whole(NULL, 0);
	case BNET_COLL_REDUCE:
		return plan->is_root ? whole(plan->recv, plan->bytes) : whole(NULL, 0);
	default:
		return whole(plan->recv, plan->bytes);
	}
}

static struct bnet_coll_call call_of(const struct plan *plan)
{
	const bnet_op_t *op = plan->op;
	const int root = has_root(op->kind) ? op->root : BNET_COLL_ANY;
	struct bnet_coll_call call;

	if (!is_reduction(op->kind))
		return bnet_coll_copy(op->kind, plan->bytes, root);
	call = bnet_coll_reduction(op->kind, plan->bytes, root, op->dtype, op->op);
	if (is_compressed(op->kind)) {
		call.codec = op->codec;
		call.block = (int32_t)op->block;
	}
	return call;
}

static struct bnet_coll_quantization quantization_of(const bnet_op_t *op)
{
	return (struct bnet_coll_quantization){.codec = op->codec, .block = op->block, .op = op->op};
}

/* ---- the ways ---- */

static int alone(const struct plan *plan)
{
	const int kind = plan->op->kind;
	const bool from_blocks = kind == BNET_COLL_REDUCE_SCATTER || kind == BNET_COLL_REDUCE_SCATTER_Q ||
				 kind == BNET_COLL_SCATTER;
	const bool to_blocks = kind == BNET_COLL_ALL_GATHER || kind == BNET_COLL_GATHER;
	const bool exchange = kind == BNET_COLL_ALL_TO_ALL || kind == BNET_COLL_ALL_TO_ALLV;
	const char *from = from_blocks || exchange ? bnet_coll_block_at(&plan->from, 0) : plan->send;
	char *to = to_blocks || exchange ? bnet_coll_block_at(&plan->to, 0) : plan->recv;
	const size_t bytes = bnet_coll_block_bytes(&plan->from, 0);

	if (kind != BNET_COLL_BROADCAST && bytes > 0 && from != to)
		memmove(to, from, bytes);
	return 0;
}

static int on_host(struct bnet_coll *coll, const struct plan *plan)
{
	const bnet_op_t *op = plan->op;
	const char *send = plan->send;
	char *recv = plan->recv;

	switch (op->kind) {
	case BNET_COLL_ALLREDUCE:
	case BNET_COLL_ALLREDUCE_Q: /* nothing crosses the network */
		return bnet_coll_local_allreduce(coll, send, recv, plan->bytes, op->dtype, op->op);
	case BNET_COLL_REDUCE_SCATTER:
	case BNET_COLL_REDUCE_SCATTER_Q:
		return bnet_coll_local_reduce_scatter(coll, &plan->from, recv, op->dtype, op->op);
	case BNET_COLL_ALL_GATHER:
		return bnet_coll_local_all_gather(coll, send, &plan->to);
	case BNET_COLL_BROADCAST:
		return bnet_coll_local_broadcast(coll, recv, plan->bytes, op->root);
	case BNET_COLL_REDUCE:
		return bnet_coll_local_reduce(coll, send, recv, plan->bytes, op->dtype, op->op, op->root);
	case BNET_COLL_GATHER:
		return bnet_coll_local_gather(coll, send, plan->bytes, &plan->to, op->root);
	case BNET_COLL_SCATTER:
		return bnet_coll_local_scatter(coll, &plan->from, recv, plan->bytes, op->root);
	case BNET_COLL_BARRIER:
		return bnet_coll_local_barrier(coll);
	default:
		return bnet_coll_local_all_to_all(coll, &plan->from, &plan->to);
	}
}

static int over_network(struct bnet_coll *coll, const struct plan *plan)
{
	const struct bnet_coll_subgroup all_ranks = bnet_coll_all_ranks(coll);
	const bnet_op_t *op = plan->op;
	const struct bnet_coll_quantization how = quantization_of(op);
	const struct bnet_coll_blocks residual = {.base = (char *)op->residual, .bytes = plan->bytes};
	const char *send = plan->send;
	char *recv = plan->recv;

	switch (op->kind) {
	case BNET_COLL_ALLREDUCE:
		return bnet_coll_net_allreduce(coll, &all_ranks, send, recv, op->count, op->dtype, op->op, op->algo);
	case BNET_COLL_REDUCE_SCATTER:
		return bnet_coll_ring_reduce_scatter(coll, &all_ranks, &plan->from, recv, op->dtype, op->op);
	case BNET_COLL_ALLREDUCE_Q:
		return bnet_coll_quantized_allreduce(coll, &all_ranks, send, recv, op->count, &how, residual.base);
	case BNET_COLL_REDUCE_SCATTER_Q:
		return bnet_coll_quantized_reduce_scatter(coll, &all_ranks, &plan->from, recv, &how,
							  op->residual != NULL ? &residual : NULL);
	case BNET_COLL_ALL_GATHER:
		return bnet_coll_ring_all_gather(coll, &all_ranks, send, &plan->to);
	case BNET_COLL_BROADCAST:
		return bnet_coll_net_broadcast(coll, recv, plan->bytes, op->root);
	case BNET_COLL_REDUCE:
		return bnet_coll_net_reduce(coll, send, recv, plan->bytes, op->dtype, op->op, op->root);
	case BNET_COLL_GATHER:
		return bnet_coll_net_gather(coll, send, plan->bytes, &plan->to, op->root);
	case BNET_COLL_SCATTER:
		return bnet_coll_net_scatter(coll, &plan->from, recv, plan->bytes, op->root);
	case BNET_COLL_BARRIER:
		return bnet_coll_net_barrier(coll);
	default:
		return bnet_coll_net_all_to_all(coll, &plan->from, &plan->to);
	}
}

/* Through both. False: this operation does not gain by it. */
static bool across_hosts(struct bnet_coll *coll, const struct plan *plan, int *rc)
{
	const bnet_op_t *op = plan->op;
	const struct bnet_coll_quantization how = quantization_of(op);

	switch (op->kind) {
	case BNET_COLL_ALLREDUCE:
		if (bnet_coll_is_small(plan->bytes, coll->nranks))
			return false;
		*rc = bnet_coll_hierarchical_allreduce(coll, plan->send, plan->recv, op->count, op->dtype, op->op);
		return true;
	case BNET_COLL_REDUCE_SCATTER:
		*rc = bnet_coll_hierarchical_reduce_scatter(coll, &plan->from, plan->recv, op->dtype, op->op);
		return true;
	case BNET_COLL_ALL_GATHER:
		*rc = bnet_coll_hierarchical_all_gather(coll, plan->send, &plan->to);
		return true;
	case BNET_COLL_ALLREDUCE_Q:
		*rc = bnet_coll_hierarchical_allreduce_q(coll, plan->send, plan->recv, op->count, &how,
							 (char *)op->residual);
		return true;
	case BNET_COLL_REDUCE_SCATTER_Q:
		*rc = bnet_coll_hierarchical_reduce_scatter_q(coll, &plan->from, plan->recv, &how,
							      (char *)op->residual);
		return true;
	default:
		return false;
	}
}

/* Only these do something although no rank has anything to send. */
static bool may_be_empty(int kind)
{
	return kind == BNET_COLL_BARRIER || kind == BNET_COLL_ALL_TO_ALLV;
}

static int run(struct bnet_coll *coll, const struct plan *plan)
{
	int rc = 0;

	if (plan->bytes == 0 && !may_be_empty(plan->op->kind))
		return 0;
	if (coll->nranks == 1)
		return alone(plan);
	if (plan->op->algo != BNET_ALGO_AUTO) /* who names an algorithm wants to see that one */
		return over_network(coll, plan);
	if (bnet_coll_is_local(coll))
		return on_host(coll, plan);
	if (bnet_coll_is_hierarchical(coll) && across_hosts(coll, plan, &rc))
		return rc;
	return over_network(coll, plan);
}

int bnet_coll_run(bnet_coll_t *coll, const bnet_op_t *op)
{
	struct bnet_coll_region send, recv;
	struct plan plan;
	int rc = check(coll, op);

	if (rc != 0)
		return rc;
	plan = plan_of(coll, op);
	send = send_region(coll, &plan);
	recv = recv_region(coll, &plan);
	rc = bnet_coll_begin(coll, call_of(&plan), send, recv);
	return rc != 0 ? rc : bnet_coll_end(coll, run(coll, &plan));
}

/* ---- each operation by its name ---- */

int bnet_coll_allreduce(bnet_coll_t *coll, const void *send, void *recv, size_t count, int dtype, int op, int algo)
{
	return bnet_coll_run(coll, &(bnet_op_t){.kind = BNET_COLL_ALLREDUCE,
						.send = send,
						.recv = recv,
						.count = count,
						.dtype = dtype,
						.op = op,
						.algo = algo});
}

int bnet_coll_reduce_scatter(bnet_coll_t *coll, const void *send, void *recv, size_t count_per_rank, int dtype, int op)
{
	return bnet_coll_run(coll, &(bnet_op_t){.kind = BNET_COLL_REDUCE_SCATTER,
						.send = send,
						.recv = recv,
						.count = count_per_rank,
						.dtype = dtype,
						.op = op});
}

int bnet_coll_allreduce_q(bnet_coll_t *coll, const void *send, void *recv, size_t count, int op, int codec,
			  size_t block, float *residual)
{
	return bnet_coll_run(coll, &(bnet_op_t){.kind = BNET_COLL_ALLREDUCE_Q,
						.send = send,
						.recv = recv,
						.count = count,
						.dtype = BNET_FLOAT32,
						.op = op,
						.codec = codec,
						.block = block,
						.residual = residual});
}

int bnet_coll_reduce_scatter_q(bnet_coll_t *coll, const void *send, void *recv, size_t count_per_rank, int op,
			       int codec, size_t block, float *residual)
{
	return bnet_coll_run(coll, &(bnet_op_t){.kind = BNET_COLL_REDUCE_SCATTER_Q,
						.send = send,
						.recv = recv,
						.count = count_per_rank,
						.dtype = BNET_FLOAT32,
						.op = op,
						.codec = codec,
						.block = block,
						.residual = residual});
}

int bnet_coll_all_gather(bnet_coll_t *coll, const void *send, void *recv, size_t count_per_rank, int dtype)
{
	return bnet_coll_run(coll, &(bnet_op_t){.kind = BNET_COLL_ALL_GATHER,
						.send = send,
						.recv = recv,
						.count = count_per_rank,
						.dtype = dtype});
}

int bnet_coll_broadcast(bnet_coll_t *coll, void *buf, size_t count, int dtype, int root)
{
	return bnet_coll_run(coll, &(bnet_op_t){.kind = BNET_COLL_BROADCAST,
						.send = buf,
						.recv = buf,
						.count = count,
						.dtype = dtype,
						.root = root});
}

int bnet_coll_all_to_all(bnet_coll_t *coll, const void *send, void *recv, size_t count_per_rank, int dtype)
{
	return bnet_coll_run(coll, &(bnet_op_t){.kind = BNET_COLL_ALL_TO_ALL,
						.send = send,
						.recv = recv,
						.count = count_per_rank,
						.dtype = dtype});
}

int bnet_coll_all_to_allv(bnet_coll_t *coll, const void *send, const size_t *send_counts, void *recv,
			  const size_t *recv_counts, int dtype)
{
	return bnet_coll_run(coll, &(bnet_op_t){.kind = BNET_COLL_ALL_TO_ALLV,
						.send = send,
						.recv = recv,
						.send_counts = send_counts,
						.recv_counts = recv_counts,
						.dtype = dtype});
}

int bnet_coll_reduce(bnet_coll_t *coll, const void *send, void *recv, size_t count, int dtype, int op, int root)
{
	return bnet_coll_run(coll, &(bnet_op_t){.kind = BNET_COLL_REDUCE,
						.send = send,
						.recv = recv,
						.count = count,
						.dtype = dtype,
						.op = op,
						.root = root});
}

int bnet_coll_gather(bnet_coll_t *coll, const void *send, void *recv, size_t count_per_rank, int dtype, int root)
{
	return bnet_coll_run(coll, &(bnet_op_t){.kind = BNET_COLL_GATHER,
						.send = send,
						.recv = recv,
						.count = count_per_rank,
						.dtype = dtype,
						.root = root});
}

int bnet_coll_scatter(bnet_coll_t *coll, const void *send, void *recv, size_t count_per_rank, int dtype, int root)
{
	return bnet_coll_run(coll, &(bnet_op_t){.kind = BNET_COLL_SCATTER,
						.send = send,
						.recv = recv,
						.count = count_per_rank,
						.dtype = dtype,
						.root = root});
}

int bnet_coll_barrier(bnet_coll_t *coll)
{
	return bnet_coll_run(coll, &(bnet_op_t){.kind = BNET_COLL_BARRIER});
}
