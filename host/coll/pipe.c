/* SPDX-License-Identifier: MIT
 *
 * Runs pipes: posts, tests and completes their messages. No collective posts or tests elsewhere. The group's own
 * thread.
 */
#include "coll/pipe.h"

#include <errno.h>

#include "coll/check.h"
#include "coll/wait.h"
#include "shared/wait.h"

/* Fruitless polls before the first nap. A peer that communicates has answered by then; a wait for one that computes for
 * long, as in a training step, must not keep a processor busy. A lower number slows down ranks that outnumber the
 * processors, except where they usually wait for a millisecond or more: see wait.c. */
#define POLLS_BEFORE_NAP 2000

static ncclResult_t post(struct bnet_coll *coll, const struct bnet_coll_half *half, bool sends,
			 struct bnet_coll_piece piece, void **request)
{
	struct bnet_coll_peer *peer = &coll->peers[half->peer];
	struct bnet_coll_link *link = sends ? &peer->send : &peer->recv;
	void *mhandle;
	ncclResult_t result = bnet_coll_mhandle(coll, link, piece.data, piece.bytes, &mhandle);

	if (result != ncclSuccess)
		return result;
	if (sends)
		return bnet_client_isend(&coll->client, link->comm, piece.data, piece.bytes, 0, mhandle, request);
	return bnet_client_irecv(&coll->client, link->comm, piece.data, piece.bytes, 0, mhandle, request);
}

/* Posts as many messages as dependences, depth and the network allow. */
static int post_some(struct bnet_coll *coll, struct bnet_coll_pipe *pipe, struct bnet_coll_half *half, bool *progress)
{
	const bool sends = half == &pipe->send;

	while (half->posted < half->count && half->posted - half->done < BNET_COLL_DEPTH) {
		struct bnet_coll_piece piece;
		void *request = NULL;

		if (half->may_post != NULL && !half->may_post(pipe, half->posted))
			return 0;
		piece = half->piece(pipe, half->posted);
		if (piece.bytes > 0) {
			ncclResult_t result;
			int rc = bnet_coll_check_post(coll, half->peer, sends, progress);

			if (rc != 0)
				return rc == -EAGAIN ? 0 : rc;
			result = post(coll, half, sends, piece, &request);

			if (result != ncclSuccess)
				return bnet_coll_net_fail(coll, result, half->peer, sends ? "isend" : "irecv");
			if (request == NULL)
				return 0; /* no room now */
		}
		half->flight[half->posted % BNET_COLL_DEPTH].request = request;
		half->flight[half->posted % BNET_COLL_DEPTH].bytes = piece.bytes;
		half->posted++;
		*progress = true;
	}
	return 0;
}

/* Completes the oldest message if it is done. Later ones are never tested: NCCL tests only the oldest, and its socket
 * transport moves the bytes of whichever message is tested. */
static int test_oldest(struct bnet_coll *coll, struct bnet_coll_pipe *pipe, struct bnet_coll_half *half, bool *progress)
{
	const bool sends = half == &pipe->send;
	const size_t slot = half->done % BNET_COLL_DEPTH;
	int done = 1, bytes = 0, rc;

	if (half->done == half->posted)
		return 0;
	rc = bnet_coll_check_test(coll, half->peer, sends, progress);
	if (rc != 0)
		return rc == -EAGAIN ? 0 : rc;
	if (half->flight[slot].request != NULL) {
		ncclResult_t result = bnet_client_test(&coll->client, half->flight[slot].request, &done, &bytes);

		if (result != ncclSuccess)
			return bnet_coll_net_fail(coll, result, half->peer, sends ? "a send" : "a receive");
		if (!done)
			return 0;
		if (!sends && (size_t)bytes != half->flight[slot].bytes)
			return bnet_coll_fail(coll, -EMSGSIZE,
					      "%s: rank %d expected %zu bytes from rank %d but got %d; do all ranks "
					      "call the same operation with the same arguments?",
					      coll->operation, coll->rank, half->flight[slot].bytes, half->peer, bytes);
	}
	if (!sends && pipe->received != NULL && half->flight[slot].bytes > 0)
		pipe->received(pipe, half->done);
	half->done++;
	*progress = true;
	return 0;
}

static int advance_half(struct bnet_coll *coll, struct bnet_coll_pipe *pipe, struct bnet_coll_half *half,
			int (*stage)(struct bnet_coll *, struct bnet_coll_pipe *, struct bnet_coll_half *, bool *),
			bool *progress)
{
	int rc = stage(coll, pipe, half, progress);

	return rc == 0 ? 0 : bnet_coll_check_lost(coll, half->peer, rc);
}

static int advance(struct bnet_coll *coll, struct bnet_coll_pipe *pipe, bool *progress)
{
	int rc = advance_half(coll, pipe, &pipe->recv, post_some, progress);

	if (rc == 0)
		rc = advance_half(coll, pipe, &pipe->send, post_some, progress);
	if (rc == 0)
		rc = advance_half(coll, pipe, &pipe->send, test_oldest, progress);
	if (rc == 0)
		rc = advance_half(coll, pipe, &pipe->recv, test_oldest, progress);
	return rc;
}

static bool unfinished(const struct bnet_coll_half *half)
{
	return half->done < half->count;
}

static int stalled(struct bnet_coll *coll, struct bnet_coll_pipe *const *pipes, int npipes, int rc)
{
	const struct bnet_coll_half *half = NULL;
	bool sends = false;

	if (rc == -ECANCELED || rc == -EINTR)
		return bnet_coll_given_up(coll, rc);
	for (int i = 0; i < npipes && half == NULL; i++) {
		sends = !unfinished(&pipes[i]->recv);
		if (!sends || unfinished(&pipes[i]->send))
			half = sends ? &pipes[i]->send : &pipes[i]->recv;
	}
	if (half == NULL)
		return bnet_coll_fail(coll, rc, "%s: timed out", coll->operation);
	return bnet_coll_fail(coll, rc,
			      "%s: rank %d made no progress for %.3g s: it waits for rank %d to %s message %zu of %zu; "
			      "is that process running, and does it call the same operations in the same order?",
			      coll->operation, coll->rank, (double)coll->timeout_ns / 1e9, half->peer,
			      sends ? "take" : "send", half->done + 1, half->count);
}

static bool over(const struct bnet_coll_pipe *pipe)
{
	return !unfinished(&pipe->send) && !unfinished(&pipe->recv);
}

int bnet_coll_pipes_run(struct bnet_coll *coll, struct bnet_coll_pipe *const *pipes, int npipes)
{
	return bnet_coll_pipes_run_on(coll, pipes, npipes, NULL, NULL);
}

/* Where it has waited, it has read the clock anyway. */
static int moved(struct bnet_coll *coll, struct bnet_coll_wait *wait)
{
	const bool has_waited = wait->idle > 0;

	bnet_coll_wait_over(wait);
	if (coll->host.shared)
		bnet_shared_moved(&coll->host.segment);
	return has_waited ? bnet_coll_wanted(coll) : bnet_coll_step(coll);
}

static int run(struct bnet_coll *coll, struct bnet_coll_pipe *const *pipes, int npipes,
	       bool (*next)(void *op, int place), void *op, struct bnet_coll_wait *wait)
{
	for (;;) {
		bool progress = false, more = false;
		int rc;

		for (int i = 0; i < npipes; i++) {
			rc = advance(coll, pipes[i], &progress);
			if (rc != 0)
				return rc;
			while (over(pipes[i]) && next != NULL && next(op, i))
				progress = true;
			more |= !over(pipes[i]);
		}
		if (!more)
			return 0;
		rc = progress ? moved(coll, wait) : bnet_coll_wait_idle(coll, wait);
		if (rc != 0) {
			bnet_coll_wait_over(wait);
			return stalled(coll, pipes, npipes, rc);
		}
	}
}

int bnet_coll_pipes_run_on(struct bnet_coll *coll, struct bnet_coll_pipe *const *pipes, int npipes,
			   bool (*next)(void *op, int place), void *op)
{
	struct bnet_coll_wait wait = {.timeout_ns = coll->timeout_ns,
				      .nap_after = POLLS_BEFORE_NAP,
				      .usual_ns = coll->usual_wait_ns};
	int rc = run(coll, pipes, npipes, next, op, &wait);

	coll->usual_wait_ns = wait.usual_ns;
	coll->waited_ns += wait.waited_ns;
	return rc;
}
