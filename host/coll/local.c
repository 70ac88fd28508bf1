/* SPDX-License-Identifier: MIT
 *
 * See local.h.
 */
#include "coll/local.h"

#include <errno.h>
#include <stdint.h>
#include <string.h>

#include "coll/direct.h"
#include "coll/reduce.h"
#include "coll/round.h"
#include "coll/size.h"

/* Up to here every rank reduces all of the message for itself: that is more work than a shard each, but one wait less.
 */
#define WHOLE_MAX ((size_t)16 * 1024)

/* ---- an operation: what a rank puts into its bank in a round, and what it takes out of the others' ---- */

#define EVERYONE (-1)

/* A piece of every block. */
struct part {
	size_t at;
	size_t bytes;  /* less where the block ends before */
	size_t stride; /* in a bank, from one member's piece to the next one's */
};

struct operation {
	struct bnet_coll *coll;
	/* NULL: this rank puts nothing. */
	void (*put)(const struct operation *operation, const struct part *part, char *bank);
	/* NULL: this rank takes nothing. */
	void (*take)(const struct operation *operation, const struct part *part, int member, const char *bank);
	int source; /* the only member to take from, or EVERYONE */
	const char *send;
	char *recv;
	const struct bnet_coll_blocks *from;
	const struct bnet_coll_blocks *to;
	int dtype;
	int op;
};

static int take_all(const struct operation *operation, const struct part *part)
{
	const struct bnet_coll_host *host = &operation->coll->host;

	for (int step = 1; step < host->count; step++) {
		const int member = bnet_coll_host_member(host, step);
		const char *bank;
		int rc;

		if (operation->source != EVERYONE && operation->source != member)
			continue;
		rc = bnet_coll_round_from(operation->coll, member, &bank);
		if (rc != 0)
			return rc;
		operation->take(operation, part, member, bank);
	}
	return 0;
}

static int run_round(const struct operation *operation, const struct part *part)
{
	char *bank;
	int rc = bnet_coll_round_begin(operation->coll, &bank);

	if (rc != 0)
		return rc;
	if (operation->put != NULL)
		operation->put(operation, part, bank);
	bnet_coll_round_put(operation->coll);
	if (operation->take != NULL)
		rc = take_all(operation, part);
	if (rc == 0)
		bnet_coll_round_end(operation->coll);
	return rc;
}

/* As many rounds as blocks of so many bytes need, if a bank has room for `most` bytes of each. */
static int run(const struct operation *operation, size_t bytes, size_t most)
{
	for (size_t at = 0; at < bytes; at += most) {
		const struct part part = {.at = at, .bytes = bnet_coll_min(most, bytes - at), .stride = most};
		int rc = run_round(operation, &part);

		if (rc != 0)
			return rc;
	}
	return 0;
}

static size_t bank_of(const struct bnet_coll *coll)
{
	return coll->host.segment.bank_bytes;
}

/* The room in a bank for each member, in whole cache lines and therefore in whole elements. */
static size_t slot_size(const struct bnet_coll *coll)
{
	return bank_of(coll) / (size_t)coll->host.count / BNET_COLL_LINE * BNET_COLL_LINE;
}

/* ---- what is put ---- */

static void put_buffer(const struct operation *operation, const struct part *part, char *bank)
{
	bnet_coll_copy_bytes(bank, operation->send + part->at, part->bytes);
}

/* This rank's block. */
static void put_own(const struct operation *operation, const struct part *part, char *bank)
{
	const int index = operation->coll->host.index;

	bnet_coll_copy_bytes(bank, bnet_coll_block_at(operation->to, index) + part->at,
			     bnet_coll_left(bnet_coll_block_bytes(operation->to, index), part->at, part->bytes));
}

/* The blocks for the others. */
static void put_blocks(const struct operation *operation, const struct part *part, char *bank)
{
	const struct bnet_coll_host *host = &operation->coll->host;

	for (int step = 1; step < host->count; step++) {
		const int member = bnet_coll_host_member(host, step);

		bnet_coll_copy_bytes(bank + (size_t)member * part->stride,
				     bnet_coll_block_at(operation->from, member) + part->at,
				     bnet_coll_left(bnet_coll_block_bytes(operation->from, member), part->at,
						    part->bytes));
	}
}

/* ---- what is taken ---- */

static void take_buffer(const struct operation *operation, const struct part *part, int member, const char *bank)
{
	(void)member;
	bnet_coll_copy_bytes(operation->recv + part->at, bank, part->bytes);
}

/* That member's block, which is all that it has put. */
static void take_block(const struct operation *operation, const struct part *part, int member, const char *bank)
{
	bnet_coll_copy_bytes(bnet_coll_block_at(operation->to, member) + part->at, bank,
			     bnet_coll_left(bnet_coll_block_bytes(operation->to, member), part->at, part->bytes));
}

/* The block for this rank. */
static void take_piece(const struct operation *operation, const struct part *part, int member, const char *bank)
{
	(void)member;
	take_buffer(operation, part, member, bank + (size_t)operation->coll->host.index * part->stride);
}

/* recv = own + others. own may be the same memory: it is read first. */
static void reduce(const struct operation *operation, const char *own, size_t at, size_t bytes, int member,
		   const char *other)
{
	const struct bnet_coll_host *host = &operation->coll->host;
	const size_t count = bytes / bnet_coll_dtype_size(operation->dtype);
	char *to = operation->recv + at;

	bnet_coll_reduce_local(to, member == bnet_coll_host_member(host, 1) ? own + at : to, other, count,
			       operation->dtype, operation->op);
	if (member == bnet_coll_host_member(host, host->count - 1))
		bnet_coll_average(to, count, operation->dtype, operation->op, operation->coll->nranks);
}

static void reduce_buffer(const struct operation *operation, const struct part *part, int member, const char *bank)
{
	reduce(operation, operation->send, part->at, part->bytes, member, bank);
}

static void reduce_piece(const struct operation *operation, const struct part *part, int member, const char *bank)
{
	const int index = operation->coll->host.index;

	reduce(operation, bnet_coll_block_at(operation->from, index), part->at,
	       bnet_coll_left(bnet_coll_block_bytes(operation->from, index), part->at, part->bytes), member,
	       bank + (size_t)index * part->stride);
}

/* ---- reductions ---- */

int bnet_coll_local_reduce_scatter(struct bnet_coll *coll, const struct bnet_coll_blocks *from, char *recv, int dtype,
				   int op)
{
	const struct operation operation = {.coll = coll,
					    .put = put_blocks,
					    .take = reduce_piece,
					    .source = EVERYONE,
					    .recv = recv,
					    .from = from,
					    .dtype = dtype,
					    .op = op};

	return run(&operation, from->bytes, slot_size(coll));
}

int bnet_coll_local_reduce(struct bnet_coll *coll, const char *send, char *recv, size_t bytes, int dtype, int op,
			   int root)
{
	const bool is_root = coll->host.index == root;
	const struct operation operation = {.coll = coll,
					    .put = is_root ? NULL : put_buffer,
					    .take = is_root ? reduce_buffer : NULL,
					    .source = EVERYONE,
					    .send = send,
					    .recv = recv,
					    .dtype = dtype,
					    .op = op};

	return run(&operation, bytes, bank_of(coll));
}

/* Every rank reduces everything, in the order of the ranks, so that all get the same bits. */
static int allreduce_whole(struct bnet_coll *coll, const char *send, char *recv, size_t bytes, int dtype, int op)
{
	const struct bnet_coll_host *host = &coll->host;
	const size_t count = bytes / bnet_coll_dtype_size(dtype);
	const char *first = NULL, *other = NULL;
	char *bank;
	int rc = bnet_coll_round_begin(coll, &bank);

	if (rc != 0)
		return rc;
	bnet_coll_copy_bytes(bank, send, bytes);
	bnet_coll_round_put(coll);
	for (int member = 0; member < host->count; member++) {
		if (member == host->index)
			other = bank;
		else
			rc = bnet_coll_round_from(coll, member, &other);
		if (rc != 0)
			return rc;
		if (member == 0)
			first = other;
		else
			bnet_coll_reduce_local(recv, member == 1 ? first : recv, other, count, dtype, op);
	}
	bnet_coll_average(recv, count, dtype, op, coll->nranks);
	bnet_coll_round_end(coll);
	return 0;
}

/* Each member reduces its shard, in one round, and gives the others the result in the next. */
static int allreduce_window(struct bnet_coll *coll, const char *send, char *recv, size_t bytes, int dtype, int op)
{
	const size_t shard = bnet_coll_round_up(bnet_coll_chunks(bytes, (size_t)coll->host.count), BNET_COLL_LINE);
	const struct bnet_coll_blocks from = {.base = (char *)(uintptr_t)send, .bytes = shard, .total = bytes};
	const struct bnet_coll_blocks to = {.base = recv, .bytes = shard, .total = bytes};
	const struct operation scatter = {.coll = coll,
					  .put = put_blocks,
					  .take = reduce_piece,
					  .source = EVERYONE,
					  .recv = bnet_coll_block_at(&to, coll->host.index),
					  .from = &from,
					  .dtype = dtype,
					  .op = op};
	const struct operation gather = {.coll = coll,
					 .put = put_own,
					 .take = take_block,
					 .source = EVERYONE,
					 .to = &to};
	const struct part part = {.at = 0, .bytes = shard, .stride = shard};
	int rc = run_round(&scatter, &part);

	return rc != 0 ? rc : run_round(&gather, &part);
}

int bnet_coll_local_allreduce(struct bnet_coll *coll, const char *send, char *recv, size_t bytes, int dtype, int op)
{
	const size_t most = slot_size(coll) * (size_t)coll->host.count;

	if (bytes <= WHOLE_MAX)
		return allreduce_whole(coll, send, recv, bytes, dtype, op);
	for (size_t at = 0; at < bytes; at += most) {
		int rc = allreduce_window(coll, send + at, recv + at, bnet_coll_min(most, bytes - at), dtype, op);

		if (rc != 0)
			return rc;
	}
	return 0;
}

/* ---- copies ---- */

int bnet_coll_local_all_gather(struct bnet_coll *coll, const char *send, const struct bnet_coll_blocks *to)
{
	const struct operation operation = {.coll = coll,
					    .put = put_own,
					    .take = take_block,
					    .source = EVERYONE,
					    .to = to};

	bnet_coll_copy_bytes(bnet_coll_block_at(to, coll->host.index), send, to->bytes);
	return run(&operation, to->bytes, bank_of(coll));
}

int bnet_coll_local_broadcast(struct bnet_coll *coll, char *buf, size_t bytes, int root)
{
	const bool is_root = coll->host.index == root;
	const struct operation operation = {.coll = coll,
					    .put = is_root ? put_buffer : NULL,
					    .take = is_root ? NULL : take_buffer,
					    .source = root,
					    .send = buf,
					    .recv = buf};

	return run(&operation, bytes, bank_of(coll));
}

int bnet_coll_local_gather(struct bnet_coll *coll, const char *send, size_t bytes, const struct bnet_coll_blocks *to,
			   int root)
{
	const bool is_root = coll->host.index == root;
	const struct operation operation = {.coll = coll,
					    .put = is_root ? NULL : put_buffer,
					    .take = is_root ? take_block : NULL,
					    .source = EVERYONE,
					    .send = send,
					    .to = to};

	if (is_root)
		bnet_coll_copy_bytes(bnet_coll_block_at(to, root), send, bytes);
	return run(&operation, bytes, bank_of(coll));
}

/* In a round the root says where the blocks are; 0: they will come through the banks, and *direct becomes false. */
static int scatter_directly(struct bnet_coll *coll, const struct bnet_coll_blocks *from, char *recv, size_t bytes,
			    int root, bool *direct)
{
	const struct bnet_coll_host *host = &coll->host;
	const bool is_root = host->index == root;
	char *bank;
	int rc = bnet_coll_round_begin(coll, &bank);

	if (is_root)
		*direct = bnet_coll_direct_readable(from, host->count);
	for (int member = 0; member < host->count && is_root && rc == 0; member++)
		((uint64_t *)(void *)bank)[member] = *direct ? (uintptr_t)bnet_coll_block_at(from, member) : 0;
	if (rc == 0)
		bnet_coll_round_put(coll);
	if (rc == 0 && !is_root) {
		const char *places;
		uint64_t place = 0;

		rc = bnet_coll_round_from(coll, root, &places);
		if (rc == 0)
			place = ((const uint64_t *)(const void *)places)[host->index];
		*direct = place != 0;
		if (*direct)
			rc = bnet_coll_direct_read(coll, root, place, recv, bytes);
	}
	if (rc != 0)
		return rc;
	bnet_coll_round_end(coll);
	return is_root && *direct ? bnet_coll_round_taken(coll) : 0;
}

int bnet_coll_local_scatter(struct bnet_coll *coll, const struct bnet_coll_blocks *from, char *recv, size_t bytes,
			    int root)
{
	const bool is_root = coll->host.index == root;
	const struct operation operation = {.coll = coll,
					    .put = is_root ? put_blocks : NULL,
					    .take = is_root ? NULL : take_piece,
					    .source = root,
					    .recv = recv,
					    .from = from};
	bool direct = false;
	int rc = bytes >= BNET_COLL_DIRECT_MIN ? bnet_coll_direct_able(coll, &direct) : 0;

	if (rc != 0)
		return rc;
	if (is_root)
		bnet_coll_copy_bytes(recv, bnet_coll_block_at(from, root), bytes);
	if (direct)
		rc = scatter_directly(coll, from, recv, bytes, root, &direct);
	return rc != 0 || direct ? rc : run(&operation, bytes, slot_size(coll));
}

static void take_nothing(const struct operation *operation, const struct part *part, int member, const char *bank)
{
	(void)operation, (void)part, (void)member, (void)bank;
}

int bnet_coll_local_barrier(struct bnet_coll *coll)
{
	const struct operation operation = {.coll = coll, .take = take_nothing, .source = EVERYONE};
	const struct part part = {.bytes = 0};

	return run_round(&operation, &part);
}
