/* SPDX-License-Identifier: MIT
 *
 * See distance.h.
 */
#include "coll/distance.h"

#include <errno.h>

#include "coll/allreduce.h"
#include "coll/transfer.h"
#include "coll/wait.h"

/* The shortest counts: others may have waited for a thread that computes. */
#define ROUNDS 5
/* From this round trip on the chunk is doubled, and again with each further doubling. No network within a building
 * takes as long. */
#define LONG_US 2000
/* Chunks of 8 MiB took longer, and the scratch of a ring is eight chunks. */
#define MAX_CHUNK (8 * BNET_COLL_CHUNK)

/* A byte to the next rank, which answers when it has arrived. So this is never shorter than the path's round trip. */
static int ping(struct bnet_coll *coll, char *token, int64_t *ns)
{
	const int next = bnet_coll_ring_rank(coll, 1), previous = bnet_coll_ring_rank(coll, -1);
	const int64_t start = bnet_coll_now();
	int rc = bnet_coll_exchange(coll, token, 1, next, token + 1, 1, previous);

	if (rc == 0)
		rc = bnet_coll_exchange(coll, token, 1, previous, token + 1, 1, next);
	*ns = bnet_coll_now() - start;
	return rc;
}

static int shortest(struct bnet_coll *coll, int64_t *ns)
{
	char *token = bnet_coll_scratch(coll, 2);
	int rc = token != NULL ? 0 : -ENOMEM;

	*ns = INT64_MAX;
	for (int round = 0; round < ROUNDS && rc == 0; round++) {
		int64_t one;

		token[0] = 0;
		rc = ping(coll, token, &one);
		*ns = one < *ns ? one : *ns;
	}
	return rc;
}

int bnet_coll_round_trip(struct bnet_coll *coll, int64_t *ns)
{
	int rc = bnet_coll_begin(coll, bnet_coll_copy(BNET_COLL_CONNECT, 0, BNET_COLL_ANY),
				 (struct bnet_coll_region){0}, (struct bnet_coll_region){0});

	return rc != 0 ? rc : bnet_coll_end(coll, shortest(coll, ns));
}

static size_t chunk_for(int64_t round_trip_us)
{
	size_t chunk = BNET_COLL_CHUNK;

	for (int64_t us = LONG_US; us <= round_trip_us && chunk < MAX_CHUNK; us *= 2)
		chunk *= 2;
	return chunk;
}

int bnet_coll_agree_on_chunk(struct bnet_coll *coll, int64_t round_trip_ns)
{
	const struct bnet_coll_subgroup all_ranks = bnet_coll_all_ranks(coll);
	int64_t us = round_trip_ns / 1000;
	char *longest = (char *)&us;
	const struct bnet_coll_region region = {longest, sizeof(us)};
	int rc = bnet_coll_begin(coll, bnet_coll_copy(BNET_COLL_CONNECT, 0, BNET_COLL_ANY), region, region);

	if (rc != 0)
		return rc;
	rc = bnet_coll_net_allreduce(coll, &all_ranks, longest, longest, 1, BNET_INT64, BNET_MAX, BNET_ALGO_DIRECT);
	rc = bnet_coll_end(coll, rc);
	if (rc == 0)
		coll->chunk = chunk_for(us);
	return rc;
}
