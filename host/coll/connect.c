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
#include "coll/log.h"
#include "coll/wait.h"

/* Fruitless polls before the first nap: a connection that is made at once must not wait for the end of a nap. */
#define POLLS_BEFORE_NAP 128
/* Between two questions to the network about connections that are not used yet. */
#define LOOK_NS 200000000
/* A peer listens before its row travels: who is refused for as long looks for a process that has ended. */
#define REFUSED_MS 2000

static int check_refused(struct bnet_coll *coll, int rank)
{
	struct bnet_coll_peer *peer = &coll->peers[rank];
	const int64_t now = coll->look != NULL ? bnet_coll_now() : 0;
	char attempt[256];

	if (coll->look == NULL || now - peer->looked < LOOK_NS)
		return 0;
	peer->looked = now;
	if (coll->look->refused_ms(peer->handle, attempt, sizeof(attempt)) < REFUSED_MS)
		return 0;
	return bnet_coll_fail(
		coll, -EREMOTEIO,
		"connect: rank %d cannot reach rank %d, whose process has ended, or which a firewall rejects: %s",
		coll->rank, rank, attempt);
}

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
	return peer->send.comm != NULL ? 0 : check_refused(coll, rank);
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

/* Where the first missing connection would go, or where it would come from. */
static void describe_missing(const struct bnet_coll *coll, char *out, size_t size)
{
	ncclNetProperties_v12_t props = {.name = NULL};

	for (int rank = 0; rank < coll->nranks; rank++) {
		const struct bnet_coll_peer *peer = &coll->peers[rank];

		if (rank == coll->rank || peer->send.comm != NULL || coll->look == NULL)
			continue;
		coll->look->refused_ms(peer->handle, out, size);
		if (out[0] != '\0')
			return;
	}
	bnet_client_properties(&coll->client, coll->dev, &props);
	snprintf(out, size, "this rank listens on %s", props.name != NULL ? props.name : "its interface");
}

/* The first rank of the host does not come here: once all have connected to it, it waits for nobody. */
static int handover_failed(struct bnet_coll *coll, int rc, double timeout_s)
{
	return bnet_coll_fail(coll, rc,
			      "connect: rank %d waited %.3g s for the memory that rank %d, on this host, shares; is that "
			      "process running?",
			      coll->rank, timeout_s, coll->host.ranks[0]);
}

static int connect_failed(struct bnet_coll *coll, int rc, double timeout_s)
{
	char to[96], from[96], where[256];

	if (rc == -ECANCELED || rc == -EINTR)
		return bnet_coll_given_up(coll, rc);
	if (missing(coll) == 0)
		return handover_failed(coll, rc, timeout_s);
	list_missing(coll, " to rank ", true, to, sizeof(to));
	list_missing(coll, to[0] != '\0' ? " and from rank " : " from rank ", false, from, sizeof(from));
	describe_missing(coll, where, sizeof(where));
	return bnet_coll_fail(coll, rc,
			      "connect: rank %d has no connection%s%s after %.3g s; %s. Is that process running, is its address "
			      "reachable from this interface (NCCL_SOCKET_IFNAME), and does a firewall let it through?",
			      coll->rank, to, from, timeout_s, where);
}

/* A peer that has accepted this rank's connection may end before it has connected to this rank. No peer is ready to use
 * the group before all have agreed (agree), so whatever closes a connection until then is a failure. */
static int check_lost(struct bnet_coll *coll, int64_t *looked)
{
	const int64_t now = bnet_coll_now();

	if (coll->look == NULL || now - *looked < LOOK_NS)
		return 0;
	*looked = now;
	for (int rank = 0; rank < coll->nranks; rank++) {
		void *comm = coll->peers[rank].send.comm;

		if (comm != NULL && coll->look->lost(comm) != 0)
			return bnet_coll_fail(coll, -EREMOTEIO,
					      "connect: rank %d lost rank %d: it has ended, or left the group, before all "
					      "ranks were connected",
					      coll->rank, rank);
	}
	return 0;
}

static int connect_all(struct bnet_coll *coll, double timeout_s, int64_t deadline)
{
	struct bnet_coll_wait wait = {.nap_after = POLLS_BEFORE_NAP};
	int64_t looked = bnet_coll_now();
	int rc = 0;

	for (;;) {
		/* Who has connected to this rank has asked for the memory before: that comes first in this loop. */
		const bool all_here = missing(coll) == 0;
		bool progress = false, more = coll->host.wanted && bnet_coll_host_step(&coll->host, all_here);

		for (int step = 1; step < coll->nranks; step++) {
			rc = bnet_coll_try_connect(coll, bnet_coll_ring_rank(coll, step), &progress);

			if (rc == 0)
				rc = bnet_coll_try_accept(coll, bnet_coll_ring_rank(coll, -step), &progress);
			if (rc != 0)
				return rc;
		}
		rc = check_lost(coll, &looked);
		if (rc != 0)
			return rc;
		more |= missing(coll) > 0;
		if (!more)
			return 0;
		if (progress)
			bnet_coll_wait_reset(&wait);
		rc = progress ? bnet_coll_step(coll) : bnet_coll_wait_idle(coll, &wait);
		if (rc != 0)
			return connect_failed(coll, rc, timeout_s);
		if (!progress && bnet_coll_now() > deadline)
			return connect_failed(coll, -ETIMEDOUT, timeout_s);
	}
}

int bnet_coll_take_rows(struct bnet_coll *coll, const void *rows)
{
	const size_t row = bnet_coll_handle_size(coll);

	if (coll->failed != 0)
		return coll->failed;
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
	if (coll->host.wanted &&
	    bnet_coll_host_discover(&coll->host, rows, row + NCCL_NET_HANDLE_MAXSIZE, coll->rank, coll->nranks) != 0)
		return bnet_coll_fail(coll, -ENOMEM, "connect: out of memory");
	coll->connected = true;
	return 0;
}

/* 1: this rank can share memory, or need not. Else -errno, or 0 where the reason is another rank's. */
static int32_t ability(const struct bnet_coll *coll)
{
	switch (coll->host.failed) {
	case 0:
		return 1;
	case -EPROTO:
	case -ECONNREFUSED:
	case -ECONNRESET:
	case -EPIPE:
		return 0; /* the first rank has given up, or another one has not asked it */
	}
	return coll->host.failed;
}

static void say_not_shared(const struct bnet_coll *coll, int32_t able)
{
	static atomic_bool told;

	if (coll->rank == 0)
		bnet_coll_tell(&told,
			       "bagua_net: the ranks of a host cannot share memory%s%s%s and use TCP, which is slower. Other "
			       "users, user namespaces, SELinux, seccomp or the limit of open files (ulimit -n) may be the "
			       "reason",
			       able < 0 ? " (" : "", able < 0 ? strerror(-able) : "", able < 0 ? ")" : "");
}

/* An operation goes the same way on all ranks, so all use shared memory or none does. */
static int agree_on_memory(struct bnet_coll *coll)
{
	int32_t able = ability(coll);
	int rc;

	if (!coll->host.anywhere) {
		bnet_coll_host_agreed(&coll->host, false);
		return 0;
	}
	coll->call.number = UINT64_MAX; /* this one becomes number 0, and the caller's first is 1 */
	rc = bnet_coll_allreduce(coll, &able, &able, 1, BNET_INT32, BNET_MIN, BNET_ALGO_DIRECT);
	if (rc != 0)
		return rc;
	bnet_coll_host_agreed(&coll->host, able == 1);
	if (able != 1)
		say_not_shared(coll, able);
	return 0;
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
