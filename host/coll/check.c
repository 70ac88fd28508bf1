/* SPDX-License-Identifier: MIT
 *
 * See check.h.
 */
#include "coll/check.h"

#include <errno.h>
#include <string.h>

#include "coll/wait.h"

/* How long a rank that has found a difference tries to tell the peer, before it closes the connections, and how long
 * the peer listens. */
#define TELL_NS 1000000000

static struct bnet_coll_link *link_of(struct bnet_coll *coll, int peer, bool sends)
{
	return sends ? &coll->peers[peer].send : &coll->peers[peer].recv;
}

static const char *advice(const struct bnet_coll *coll, const struct bnet_coll_call *call)
{
	if (coll->call.kind == call->kind && coll->call.number == call->number)
		return "all must give the same size, type, reduction and root; pad what is uneven";
	return "all must call the same ones in the same order, and each of several threads in a group of its own";
}

int bnet_coll_check_differs(struct bnet_coll *coll, const struct bnet_coll_call *call, int peer)
{
	char mine[BNET_COLL_CALL_TEXT], theirs[BNET_COLL_CALL_TEXT];

	bnet_coll_call_text(&coll->call, mine);
	bnet_coll_call_text(call, theirs);
	return bnet_coll_fail(coll, -EPROTO, "the ranks call different operations: rank %d %s, rank %d %s; %s",
			      coll->rank, mine, peer, theirs, advice(coll, call));
}

int bnet_coll_check_post(struct bnet_coll *coll, int peer, bool sends, bool *progress)
{
	struct bnet_coll_link *link = link_of(coll, peer, sends);
	const size_t bytes = sizeof(link->call);
	ncclResult_t result = ncclSuccess;
	void *mhandle = NULL;

	if (!coll->checks || !bnet_coll_is_collective(coll->call.kind) || link->checked == coll->call.number)
		return 0;
	link->call = coll->call; /* where a call is received, it is overwritten */
	result = bnet_coll_mhandle(coll, link, (char *)&link->call, bytes, &mhandle);
	if (result == ncclSuccess && sends)
		result = bnet_client_isend(&coll->client, link->comm, &link->call, bytes, 0, mhandle, &link->request);
	else if (result == ncclSuccess)
		result = bnet_client_irecv(&coll->client, link->comm, &link->call, bytes, 0, mhandle, &link->request);
	if (result != ncclSuccess)
		return bnet_coll_net_fail(coll, result, peer, sends ? "isend" : "irecv");
	if (link->request == NULL)
		return -EAGAIN;
	link->checked = coll->call.number;
	*progress = true;
	return 0;
}

/* 0: done; -EAGAIN; or the network's failure. */
static int test(struct bnet_coll *coll, struct bnet_coll_link *link, int peer, bool sends, int *bytes)
{
	int done = 0;
	ncclResult_t result = bnet_client_test(&coll->client, link->request, &done, bytes);

	if (result == ncclSuccess && !done)
		return -EAGAIN;
	link->request = NULL; /* a request that has failed must not be tested again */
	return result == ncclSuccess ? 0 : bnet_coll_net_fail(coll, result, peer, sends ? "a send" : "a receive");
}

void bnet_coll_check_tell(struct bnet_coll *coll, int peer)
{
	const int64_t until = bnet_coll_now() + TELL_NS;
	struct bnet_coll_wait wait = {.nap_after = 1};
	struct bnet_coll_link *link = link_of(coll, peer, true);
	bool progress;
	int rc, bytes;

	do {
		rc = bnet_coll_check_post(coll, peer, true, &progress);
		if (rc == 0 && link->request != NULL)
			rc = test(coll, link, peer, true, &bytes);
		if (rc == -EAGAIN && bnet_coll_wait_idle(coll, &wait) != 0)
			return;
	} while (rc == -EAGAIN && bnet_coll_now() < until);
}

int bnet_coll_check_test(struct bnet_coll *coll, int peer, bool sends, bool *progress)
{
	struct bnet_coll_link *link = link_of(coll, peer, sends);
	int bytes = 0, rc;

	if (link->request == NULL)
		return 0;
	rc = test(coll, link, peer, sends, &bytes);
	if (rc != 0)
		return rc;
	*progress = true;
	if (sends || memcmp(&link->call, &coll->call, sizeof(link->call)) == 0)
		return 0;
	bnet_coll_check_tell(coll, peer);
	return bnet_coll_check_differs(coll, &link->call, peer);
}

/* The peer's call for the operation in progress, unless it has come. */
static int receive_call(struct bnet_coll *coll, int peer)
{
	const int64_t until = bnet_coll_now() + TELL_NS;
	struct bnet_coll_wait wait = {.nap_after = 1};
	bool progress;
	int rc;

	do {
		rc = bnet_coll_check_post(coll, peer, false, &progress);
		if (rc == 0)
			rc = bnet_coll_check_test(coll, peer, false, &progress);
		if (rc == -EAGAIN && bnet_coll_wait_idle(coll, &wait) != 0)
			return rc;
	} while (rc == -EAGAIN && bnet_coll_now() < until);
	return rc;
}

int bnet_coll_check_lost(struct bnet_coll *coll, int peer, int rc)
{
	char reason[sizeof(coll->error)];

	if (!coll->checks || !bnet_coll_is_collective(coll->call.kind) || (rc != -EREMOTEIO && rc != -EIO))
		return rc;
	memcpy(reason, coll->error, sizeof(reason));
	if (receive_call(coll, peer) == -EPROTO)
		return -EPROTO;
	memcpy(coll->error, reason, sizeof(reason));
	return rc;
}
