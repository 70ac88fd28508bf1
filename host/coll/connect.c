/* SPDX-License-Identifier: MIT
 *
 * Step 2 of setting up a group: a connection to and from every peer. One loop makes all of them and never waits for a
 * single one, so that no order in which the ranks arrive can deadlock. The group's own thread.
 */
#include "coll/connect.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "coll/distance.h"
#include "coll/wait.h"

/* Fruitless polls before the first nap: a connection that is made at once must not wait for the end of a nap. */
#define POLLS_BEFORE_NAP 128

int bnet_coll_try_connect(struct bnet_coll *coll, int rank, bool *progress)
{
	struct bnet_coll_peer *peer = &coll->peers[rank];
	ncclResult_t result;

	if (peer->send.comm != NULL)
		return 0;
	result = bnet_client_connect(&coll->client, coll->dev, peer->handle, &peer->send.comm);
	if (result != ncclSuccess) {
		peer->send.comm = NULL;
		return bnet_coll_net_fail(coll, result, rank, "connect");
	}
	*progress |= peer->send.comm != NULL;
	return 0;
}

int bnet_coll_try_accept(struct bnet_coll *coll, int rank, bool *progress)
{
	struct bnet_coll_peer *peer = &coll->peers[rank];
	ncclResult_t result;

	if (peer->recv.comm != NULL)
		return 0;
	result = bnet_client_accept(&coll->client, peer->listen, &peer->recv.comm);
	if (result != ncclSuccess) {
		peer->recv.comm = NULL;
		return bnet_coll_net_fail(coll, result, rank, "accept");
	}
	if (peer->recv.comm == NULL)
		return 0;
	*progress = true;
	bnet_client_close_listen(&coll->client, peer->listen);
	peer->listen = NULL;
	return 0;
}

static int missing(const struct bnet_coll *coll)
{
	int count = 0;

	for (int rank = 0; rank < coll->nranks; rank++)
		if (rank != coll->rank)
			count += (coll->peers[rank].send.comm == NULL) + (coll->peers[rank].recv.comm == NULL);
	return count;
}

/* " to 1, 3" or "". */
static void list_missing(const struct bnet_coll *coll, const char *word, bool send, char *out, size_t size)
{
	size_t used = 0;

	out[0] = '\0';
	for (int rank = 0; rank < coll->nranks; rank++) {
		const struct bnet_coll_peer *peer = &coll->peers[rank];

		if (rank == coll->rank || (send ? peer->send.comm : peer->recv.comm) != NULL)
			continue;
		if (used < size)
			used += (size_t)snprintf(out + used, size - used, "%s%d", used == 0 ? word : ", ", rank);
	}
}

static int connect_failed(struct bnet_coll *coll, int rc, double timeout_s)
{
	char to[96], from[96];

	if (rc == -ECANCELED || rc == -EINTR)
		return bnet_coll_fail(coll, rc, "connect: %s", rc == -EINTR ? "interrupted" : "aborted");
	list_missing(coll, " to rank ", true, to, sizeof(to));
	list_missing(coll, to[0] != '\0' ? " and from rank " : " from rank ", false, from, sizeof(from));
	return bnet_coll_fail(coll, rc,
			      "connect: rank %d has no connection%s%s after %.3g s; is that process running, and does "
			      "a firewall let it through?",
			      coll->rank, to, from, timeout_s);
}

static int connect_all(struct bnet_coll *coll, double timeout_s, int64_t deadline)
{
	struct bnet_coll_wait wait = {.nap_after = POLLS_BEFORE_NAP};
	int rc = 0;

	for (;;) {
		bool progress = false, more = coll->host.wanted && bnet_coll_host_step(&coll->host);

		for (int step = 1; step < coll->nranks; step++) {
			rc = bnet_coll_try_connect(coll, bnet_coll_ring_rank(coll, step), &progress);

			if (rc == 0)
				rc = bnet_coll_try_accept(coll, bnet_coll_ring_rank(coll, -step), &progress);
			if (rc != 0)
				return rc;
		}
		more |= missing(coll) > 0;
		if (!more)
			return 0;
		if (progress)
			bnet_coll_wait_reset(&wait);
		else
			rc = bnet_coll_wait_idle(coll, &wait);
		if (rc != 0)
			return connect_failed(coll, rc, timeout_s);
		if (bnet_coll_now() > deadline)
			return connect_failed(coll, -ETIMEDOUT, timeout_s);
	}
}

int bnet_coll_take_rows(struct bnet_coll *coll, const void *rows)
{
	const size_t row = bnet_coll_handle_size(coll);

	if (rows == NULL || coll->connected)
		return bnet_coll_fail(coll, -EINVAL, "connect: %s", rows == NULL ? "no handles" : "called before");
	for (int rank = 0; rank < coll->nranks; rank++) {
		struct bnet_coll_peer *peer = &coll->peers[rank];

		if (rank == coll->rank)
			continue;
		if (peer->listen == NULL)
			return bnet_coll_fail(coll, -EINVAL, "connect: call bnet_coll_listen first");
		memcpy(peer->handle, (const char *)rows + rank * row + coll->rank * NCCL_NET_HANDLE_MAXSIZE,
		       NCCL_NET_HANDLE_MAXSIZE);
	}
	coll->connected = true;
	if (!coll->host.wanted)
		return 0;
	if (bnet_coll_host_discover(&coll->host, rows, row + NCCL_NET_HANDLE_MAXSIZE, coll->rank, coll->nranks) != 0)
		return bnet_coll_fail(coll, -ENOMEM, "connect: out of memory");
	return 0;
}

/* An operation goes the same way on all ranks, so all use shared memory or none does. */
static int agree_on_memory(struct bnet_coll *coll)
{
	int32_t able = bnet_coll_host_able(&coll->host);
	int rc;

	if (!coll->host.anywhere) {
		bnet_coll_host_agreed(&coll->host, false);
		return 0;
	}
	coll->call.number = UINT64_MAX; /* this one becomes number 0, and the caller's first is 1 */
	rc = bnet_coll_allreduce(coll, &able, &able, 1, BNET_INT32, BNET_MIN, BNET_ALGO_DIRECT);
	if (rc == 0)
		bnet_coll_host_agreed(&coll->host, able != 0);
	return rc;
}

static int agree(struct bnet_coll *coll)
{
	int64_t round_trip_ns;
	int rc = coll->host.wanted ? agree_on_memory(coll) : 0;

	if (rc != 0 || bnet_coll_is_local(coll) || coll->nranks == 1)
		return rc;
	rc = bnet_coll_round_trip(coll, &round_trip_ns);
	return rc != 0 ? rc : bnet_coll_agree_on_chunk(coll, round_trip_ns);
}

/* A rank may have made all its connections while a peer has stopped. */
static int agree_until(struct bnet_coll *coll, int64_t deadline)
{
	const int64_t timeout_ns = coll->timeout_ns;
	int rc;

	coll->timeout_ns = 0;
	if (deadline != INT64_MAX)
		coll->timeout_ns = deadline - bnet_coll_now() > 1 ? deadline - bnet_coll_now() : 1;
	rc = agree(coll);
	coll->timeout_ns = timeout_ns;
	return rc;
}

int bnet_coll_connect(bnet_coll_t *coll, const void *rows, double timeout_s)
{
	const int64_t deadline = timeout_s > 0 && timeout_s < 9e9 ? bnet_coll_now() + (int64_t)(timeout_s * 1e9)
								  : INT64_MAX;
	int rc;

	if (coll == NULL)
		return -EINVAL;
	rc = bnet_coll_take_rows(coll, rows);
	if (rc != 0)
		return rc;
	/* begin and end treat connecting as an operation. */
	rc = bnet_coll_begin(coll, bnet_coll_copy(BNET_COLL_CONNECT, 0, BNET_COLL_ANY), (struct bnet_coll_region){0},
			     (struct bnet_coll_region){0});
	if (rc == 0)
		rc = bnet_coll_end(coll, connect_all(coll, timeout_s, deadline));
	return rc == 0 ? agree_until(coll, deadline) : rc;
}
