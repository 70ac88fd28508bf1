/* SPDX-License-Identifier: MIT
 *
 * Progress of the tagged messages: begins operations, moves data, handles lost peers, and reports. The
 * progress thread; bnet_tagged_destroy comes after its last call.
 */
#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <time.h>

#include "coll/log.h"
#include "coll/wait.h"
#include "tagged/link.h"
#include "tagged/match.h"
#include "tagged/tagged.h"

/* The connections stay open at most this long for answers that peers wait for. */
#define FLUSH_NS 1000000000
/* A lost peer may have connected before. After this time without a connection it never did. */
#define GRACE_NS 2000000000

/* ---- operations that fail ---- */

static void finish_list(struct bnet_tagged *tagged, struct bnet_node *head, int rc)
{
	bnet_list_each(node, head)
		bnet_tagged_finish(tagged, bnet_entry(node, struct bnet_tagged_op, node), rc);
}

static bool all_lost(const struct bnet_tagged *tagged)
{
	for (int rank = 0; rank < tagged->coll->nranks; rank++)
		if (rank != tagged->coll->rank && tagged->peers[rank].lost == 0)
			return false;
	return true;
}

static void finish_with(struct bnet_tagged *tagged, struct bnet_node *head, int rank, int rc)
{
	bnet_list_each(node, head) {
		struct bnet_tagged_op *op = bnet_entry(node, struct bnet_tagged_op, node);

		if (op->peer == rank || (op->peer == -1 && all_lost(tagged)))
			bnet_tagged_finish(tagged, op, rc);
	}
}

/* Nothing can be sent to this peer any more. The two connections with it are independent: frames that it sent before it
 * left may be in flight, or its connection may still have to be accepted, so receiving continues. */
static void lose_sends(struct bnet_tagged *tagged, struct bnet_tagged_peer *peer, int rc)
{
	peer->out_lost = rc;
	peer->grace_until = bnet_coll_now() + GRACE_NS;
	bnet_tagged_release_out(tagged, peer);
	bnet_coll_close_send(tagged->coll, peer->rank);
	finish_with(tagged, &tagged->requested, peer->rank, rc);
	finish_with(tagged, &tagged->sending, peer->rank, rc);
	tagged->coll->warnings = bnet_coll_warnings(); /* the next failure must not repeat these */
}

/* Nothing can be received from this peer any more, or the boundaries of its frames are lost. Operations with other
 * peers continue. */
static void lose(struct bnet_tagged *tagged, struct bnet_tagged_peer *peer, int rc)
{
	peer->lost = rc;
	bnet_tagged_release(tagged, peer);
	lose_sends(tagged, peer, rc);
	bnet_coll_close_peer(tagged->coll, peer->rank);
	finish_with(tagged, &tagged->receives, peer->rank, rc);
	finish_with(tagged, &tagged->granted, peer->rank, rc);
	bnet_list_each(node, &tagged->unexpected) {
		struct bnet_tagged_unexpected *unexpected = bnet_entry(node, struct bnet_tagged_unexpected, node);

		if (unexpected->peer == peer->rank && unexpected->frame.kind != BNET_TAGGED_EAGER)
			bnet_tagged_drop(unexpected);
	}
	tagged->coll->warnings = bnet_coll_warnings();
}

/* The state is unreliable: all connections end, and every operation with them. */
static void fail(struct bnet_tagged *tagged, int rc)
{
	struct bnet_node *const lists[] = {&tagged->receives, &tagged->granted, &tagged->requested, &tagged->sending};

	tagged->failed = rc;
	for (int rank = 0; rank < tagged->coll->nranks; rank++)
		bnet_tagged_release(tagged, &tagged->peers[rank]);
	bnet_coll_end(tagged->coll, rc);
	for (size_t i = 0; i < sizeof(lists) / sizeof(lists[0]); i++)
		finish_list(tagged, lists[i], rc);
}

/* ---- progress ---- */

static int begin_send(struct bnet_tagged *tagged, struct bnet_tagged_op *op)
{
	struct bnet_tagged_peer *peer = &tagged->peers[op->peer];
	struct bnet_tagged_frame frame = {.kind = BNET_TAGGED_EAGER, .tag = op->tag, .bytes = op->bytes};
	const uint64_t cost = bnet_tagged_frame_cost(&frame);

	if (op->bytes <= BNET_TAGGED_EAGER_MAX && peer->uncredited + cost <= BNET_TAGGED_WINDOW) {
		peer->uncredited += cost;
		bnet_tagged_enlist(&tagged->sending, op);
		return bnet_tagged_queue(tagged, peer, &frame, op);
	}
	frame.kind = BNET_TAGGED_RTS;
	frame.key = op->key = ++tagged->next_key;
	bnet_tagged_await(tagged, op, true);
	bnet_tagged_enlist(&tagged->requested, op);
	if (peer->local && op->bytes > 0)
		return bnet_tagged_queue_offer(tagged, peer, op);
	return bnet_tagged_queue(tagged, peer, &frame, NULL);
}

/* Is its peer lost? For sends, and for receives that no message has matched. */
static bool cannot_complete(const struct bnet_tagged *tagged, const struct bnet_tagged_op *op)
{
	if (op->peer < 0)
		return all_lost(tagged);
	return op->sends ? tagged->peers[op->peer].out_lost != 0 : tagged->peers[op->peer].lost != 0;
}

static void finish_lost(struct bnet_tagged *tagged, struct bnet_tagged_op *op)
{
	const int rc = op->peer >= 0 ? tagged->peers[op->peer].out_lost : -EREMOTEIO;

	bnet_tagged_finish(tagged, op,
			   bnet_coll_fail(tagged->coll, rc, "%s: rank %d lost rank %d (-1: all) before",
					  op->sends ? "send" : "recv", tagged->coll->rank, op->peer));
}

static int begin_receive(struct bnet_tagged *tagged, struct bnet_tagged_op *op)
{
	int rc;

	bnet_tagged_await(tagged, op, true);
	bnet_tagged_enlist(&tagged->receives, op);
	rc = bnet_tagged_match(tagged, op);
	if (rc == 0 && op->awaits && cannot_complete(tagged, op))
		finish_lost(tagged, op);
	return rc;
}

static int begin(struct bnet_tagged *tagged, struct bnet_tagged_op *op)
{
	int rc = 0;

	tagged->outstanding++;
	if (tagged->failed != 0)
		bnet_tagged_finish(tagged, op, tagged->failed);
	else if (op->sends && cannot_complete(tagged, op))
		finish_lost(tagged, op);
	else if (op->sends)
		rc = begin_send(tagged, op);
	else
		rc = begin_receive(tagged, op);
	return rc;
}

/* Takes the posted operations. False: stopped. */
static bool take_incoming(struct bnet_tagged *tagged, struct bnet_node *batch)
{
	bool stopped;

	pthread_mutex_lock(&tagged->lock);
	bnet_list_each(node, &tagged->incoming) {
		bnet_list_remove(node);
		bnet_list_add(batch, node);
	}
	stopped = tagged->stopped;
	pthread_mutex_unlock(&tagged->lock);
	return !stopped;
}

/* 0, or -ENOMEM: a failure of this rank, for which no peer may be blamed. */
static int move_all(struct bnet_tagged *tagged, bool *progress)
{
	for (int step = 1; step < tagged->coll->nranks; step++) {
		struct bnet_tagged_peer *peer = &tagged->peers[bnet_coll_ring_rank(tagged->coll, step)];
		int rc;

		if (peer->lost != 0)
			continue;
		rc = bnet_tagged_move_out(tagged, peer, progress);
		if (rc == -ENOMEM)
			return rc;
		if (rc != 0)
			lose_sends(tagged, peer, rc);
		rc = bnet_tagged_move_in(tagged, peer, progress);
		if (rc == -ENOMEM)
			return rc;
		if (rc != 0)
			lose(tagged, peer, rc);
	}
	return 0;
}

static int begin_all(struct bnet_tagged *tagged, struct bnet_node *batch)
{
	int rc = 0;

	bnet_list_each(node, batch) {
		struct bnet_tagged_op *op = bnet_entry(node, struct bnet_tagged_op, node);
		int failed = begin(tagged, op);

		rc = rc != 0 ? rc : failed;
	}
	return rc;
}

/* A peer whose RTS stays without an answer would learn no more than that this rank is lost. */
static void flush_answers(struct bnet_tagged *tagged)
{
	const int64_t until = bnet_coll_now() + FLUSH_NS;
	struct bnet_coll_wait wait = {.nap_after = BNET_TAGGED_PASSES};

	for (;;) {
		bool more = false;

		for (int rank = 0; rank < tagged->coll->nranks; rank++)
			more |= bnet_tagged_flush_answers(tagged, &tagged->peers[rank]);
		if (!more || bnet_coll_now() > until || bnet_coll_wait_idle(tagged->coll, &wait) != 0)
			return;
	}
}

static int stop(struct bnet_tagged *tagged)
{
	flush_answers(tagged);
	return bnet_coll_fail(tagged->coll, -ECANCELED, "messages: stopped");
}

static void free_operations(struct bnet_node *head)
{
	bnet_list_each(node, head) {
		struct bnet_tagged_op *op = bnet_entry(node, struct bnet_tagged_op, node);

		bnet_list_remove(node);
		free(op->error);
		free(op);
	}
}

static int report(struct bnet_tagged *tagged, bnet_tagged_done_t *done, int max)
{
	int count = 0;

	bnet_list_each(node, &tagged->finished) {
		struct bnet_tagged_op *op = bnet_entry(node, struct bnet_tagged_op, node);

		if (count == max)
			break;
		done[count++] = (bnet_tagged_done_t){.id = op->id, .rc = op->rc, .peer = op->peer, .error = op->error};
		bnet_tagged_enlist(&tagged->reported, op);
	}
	return count;
}

/* Warnings are counted per thread: those of another one must not explain a failure of this one. */
static void enter(struct bnet_tagged *tagged)
{
	if (tagged->begun && pthread_equal(tagged->thread, pthread_self()))
		return;
	tagged->begun = true;
	tagged->thread = pthread_self();
	tagged->coll->warnings = bnet_coll_warnings();
}

int bnet_tagged_pass(struct bnet_tagged *tagged, bnet_tagged_done_t *done, int max, bool *moved)
{
	struct bnet_node batch;
	bool running;
	int rc;

	enter(tagged);
	free_operations(&tagged->reported);
	bnet_list_init(&batch);
	running = take_incoming(tagged, &batch);
	*moved = !bnet_list_empty(&batch);
	rc = begin_all(tagged, &batch);
	if (rc == 0 && tagged->failed == 0 && !running)
		rc = stop(tagged);
	if (rc == 0 && tagged->failed == 0)
		rc = move_all(tagged, moved);
	if (rc != 0 && tagged->failed == 0)
		fail(tagged, rc);
	rc = report(tagged, done, max);
	return rc == 0 && !running ? -ESHUTDOWN : rc;
}

/* The answer to an RTS may outlive its receive. */
bool bnet_tagged_idle(struct bnet_tagged *tagged)
{
	bool posted;

	if (tagged->outstanding > 0 || !bnet_list_empty(&tagged->finished))
		return false;
	for (int rank = 0; rank < tagged->coll->nranks; rank++)
		if (bnet_tagged_has_frames(&tagged->peers[rank]))
			return false;
	pthread_mutex_lock(&tagged->lock);
	posted = !bnet_list_empty(&tagged->incoming) || tagged->stopped;
	pthread_mutex_unlock(&tagged->lock);
	return !posted;
}

/* A nap that ends when something is posted; ns 0: until then. */
static void sleep_until_posted(struct bnet_tagged *tagged, long ns)
{
	const int64_t until = bnet_coll_now() + ns;
	const struct timespec time = {.tv_sec = until / 1000000000, .tv_nsec = until % 1000000000};

	pthread_mutex_lock(&tagged->lock);
	while (ns == 0 && bnet_list_empty(&tagged->incoming) && !tagged->stopped)
		pthread_cond_wait(&tagged->posted, &tagged->lock);
	if (bnet_list_empty(&tagged->incoming) && !tagged->stopped)
		pthread_cond_timedwait(&tagged->posted, &tagged->lock, &time);
	pthread_mutex_unlock(&tagged->lock);
}

int bnet_tagged_progress(bnet_tagged_t *tagged, bnet_tagged_done_t *done, int max)
{
	struct bnet_coll_wait wait = {.nap_after = BNET_TAGGED_PASSES};

	if (max < 1)
		return -EINVAL;
	for (;;) {
		bool moved;
		long nap_ns;
		int count = bnet_tagged_pass(tagged, done, max, &moved);

		if (count != 0)
			return count > 0 ? count : 0;
		if (moved) {
			bnet_coll_wait_reset(&wait);
			continue;
		}
		nap_ns = bnet_tagged_idle(tagged) ? 0 : bnet_coll_wait_fruitless(&wait);
		if (nap_ns == 0 && !bnet_tagged_idle(tagged))
			sched_yield();
		else
			sleep_until_posted(tagged, nap_ns);
	}
}

/* ---- destroy ---- */

void bnet_tagged_destroy(bnet_tagged_t *tagged)
{
	struct bnet_node *const lists[] = {&tagged->incoming, &tagged->receives, &tagged->granted, &tagged->requested,
					   &tagged->sending,  &tagged->finished, &tagged->reported};

	flush_answers(tagged);
	for (int rank = 0; rank < tagged->coll->nranks; rank++)
		bnet_tagged_release(tagged, &tagged->peers[rank]);
	bnet_coll_end(tagged->coll, -ESHUTDOWN); /* from here on no connection touches a slot */
	for (int rank = 0; rank < tagged->coll->nranks; rank++)
		free(tagged->peers[rank].slots);
	for (size_t i = 0; i < sizeof(lists) / sizeof(lists[0]); i++)
		free_operations(lists[i]);
	bnet_list_each(node, &tagged->unexpected)
		bnet_tagged_drop(bnet_entry(node, struct bnet_tagged_unexpected, node));
	bnet_coll_destroy(tagged->coll);
	pthread_cond_destroy(&tagged->posted);
	pthread_mutex_destroy(&tagged->lock);
	free(tagged->peers);
	free(tagged);
}
