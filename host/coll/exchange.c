/* SPDX-License-Identifier: MIT
 *
 * See exchange.h. A bank begins with a head for each member: the size of the block for it, and where it can be read, or
 * else that its pieces follow in the banks. So all members know how many rounds there are.
 */
#include "coll/exchange.h"

#include <errno.h>
#include <stdint.h>
#include <string.h>

#include "coll/direct.h"
#include "coll/round.h"
#include "coll/size.h"

struct head {
	uint64_t bytes;
	uint64_t at; /* 0: it comes through the banks */
};

struct exchange {
	struct bnet_coll *coll;
	const struct bnet_coll_blocks *send;
	const struct bnet_coll_blocks *recv;
	size_t heads;   /* bytes of the heads */
	size_t most;    /* bytes of a block in one round */
	size_t largest; /* block of any two members that comes through the banks, as far as known */
	bool direct;    /* this rank's large blocks can be read */
	bool offers;    /* … and there are some */
};

/* ---- which blocks can be read where they are: not those that this rank overwrites with what it receives ---- */

static bool overlap(const struct bnet_coll_blocks *a, int i, const struct bnet_coll_blocks *b, int j)
{
	const uintptr_t first = (uintptr_t)bnet_coll_block_at(a, i), second = (uintptr_t)bnet_coll_block_at(b, j);

	return first < second + bnet_coll_block_bytes(b, j) && second < first + bnet_coll_block_bytes(a, i);
}

static bool any_overlap(const struct exchange *exchange)
{
	const int count = exchange->coll->host.count;
	const struct bnet_coll_span send = bnet_coll_blocks_span(exchange->send, count),
				    recv = bnet_coll_blocks_span(exchange->recv, count);

	if (send.end <= recv.first || recv.end <= send.first) /* as nearly always; the rest takes long */
		return false;
	for (int i = 0; i < count; i++)
		for (int j = 0; j < count; j++)
			if (overlap(exchange->send, i, exchange->recv, j))
				return true;
	return false;
}

static struct head head_of(const struct exchange *exchange, int member)
{
	const size_t bytes = bnet_coll_block_bytes(exchange->send, member);
	const bool direct = exchange->direct && bytes >= BNET_COLL_DIRECT_MIN;

	return (struct head){bytes, direct ? (uintptr_t)bnet_coll_block_at(exchange->send, member) : 0};
}

static void note(struct exchange *exchange, const struct head *head)
{
	if (head->at == 0)
		exchange->largest = bnet_coll_max(exchange->largest, (size_t)head->bytes);
}

/* ---- a round ---- */

static void put(struct exchange *exchange, size_t at, char *bank)
{
	const struct bnet_coll_host *host = &exchange->coll->host;
	struct head *heads = (struct head *)(void *)bank;

	for (int member = 0; member < host->count; member++) {
		heads[member] = head_of(exchange, member);
		if (member == host->index)
			heads[member] = (struct head){0, 0};
		note(exchange, &heads[member]);
		exchange->offers |= heads[member].at != 0;
		if (heads[member].at == 0)
			bnet_coll_copy_bytes(bank + exchange->heads + (size_t)member * exchange->most,
					     bnet_coll_block_at(exchange->send, member) + at,
					     bnet_coll_left((size_t)heads[member].bytes, at, exchange->most));
	}
}

static int wrong_size(struct bnet_coll *coll, int member, size_t expected, size_t got)
{
	return bnet_coll_fail(coll, -EMSGSIZE,
			      "%s: rank %d expected %zu bytes from rank %d but got %zu; do all ranks call the same "
			      "operation with the same arguments?",
			      coll->operation, coll->rank, expected, coll->host.ranks[member], got);
}

static int take(struct exchange *exchange, size_t at, int member)
{
	const struct bnet_coll_host *host = &exchange->coll->host;
	const size_t bytes = bnet_coll_block_bytes(exchange->recv, member);
	const struct head *heads;
	const char *bank;
	char *to = bnet_coll_block_at(exchange->recv, member);
	int rc = bnet_coll_round_from(exchange->coll, member, &bank);

	if (rc != 0)
		return rc;
	heads = (const struct head *)(const void *)bank;
	if (heads[host->index].bytes != bytes)
		return wrong_size(exchange->coll, member, bytes, (size_t)heads[host->index].bytes);
	for (int i = 0; i < host->count; i++)
		note(exchange, &heads[i]);
	if (heads[host->index].at == 0)
		bnet_coll_copy_bytes(to + at, bank + exchange->heads + (size_t)host->index * exchange->most,
				     bnet_coll_left(bytes, at, exchange->most));
	else if (at == 0)
		rc = bnet_coll_direct_read(exchange->coll, member, heads[host->index].at, to, bytes);
	return rc;
}

static int run_round(struct exchange *exchange, size_t at)
{
	struct bnet_coll *coll = exchange->coll;
	char *bank;
	int rc = bnet_coll_round_begin(coll, &bank);

	if (rc != 0)
		return rc;
	put(exchange, at, bank);
	bnet_coll_round_put(coll);
	for (int step = 1; step < coll->host.count && rc == 0; step++)
		rc = take(exchange, at, bnet_coll_host_member(&coll->host, step));
	if (rc == 0)
		bnet_coll_round_end(coll);
	return rc;
}

int bnet_coll_local_all_to_all(struct bnet_coll *coll, const struct bnet_coll_blocks *send,
			       const struct bnet_coll_blocks *recv)
{
	const struct bnet_coll_host *host = &coll->host;
	struct exchange exchange = {.coll = coll, .send = send, .recv = recv};
	size_t at = 0;
	int rc = bnet_coll_direct_able(coll, &exchange.direct);

	if (rc != 0)
		return rc;
	exchange.direct = exchange.direct && !any_overlap(&exchange);
	exchange.direct = exchange.direct && bnet_coll_direct_readable(send, host->count);
	exchange.heads = bnet_coll_round_up((size_t)host->count * sizeof(struct head), BNET_COLL_LINE);
	exchange.most =
		(host->segment.bank_bytes - exchange.heads) / (size_t)host->count / BNET_COLL_LINE * BNET_COLL_LINE;
	bnet_coll_copy_bytes(bnet_coll_block_at(recv, host->index), bnet_coll_block_at(send, host->index),
			     bnet_coll_block_bytes(send, host->index));
	do {
		rc = run_round(&exchange, at);
		at += exchange.most;
	} while (rc == 0 && at < exchange.largest);
	return rc == 0 && exchange.offers ? bnet_coll_round_taken(coll) : rc;
}
