/* SPDX-License-Identifier: MIT
 *
 * Tagged messages: what is asked for, and how it ends. bnet_tagged_send, _recv and _stop may come from any
 * thread; they hand over under the lock. All else is the progress thread's, which is whoever calls bnet_tagged_progress.
 */
#include "tagged/tagged.h"

#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Fruitless passes before the first nap: some hundred microseconds, in which a peer that is at work answers. */
#define PASSES 256
/* Passes between two looks at the deadlines, whether anything moves in them or not. */
#define DEADLINE_EVERY 64
/* What peers wait to hear goes out before the connections end, if that takes no longer. */
#define FAREWELL_NS 1000000000
/* A peer that is gone may have made a connection, which is here after a moment, or not at all. */
#define GRACE_NS 2000000000

/* ---- create and destroy ---- */

int bnet_tagged_create(bnet_tagged_t **out, bnet_coll_t *coll, const void *rows)
{
	struct bnet_tagged *mail = calloc(1, sizeof(*mail));
	pthread_condattr_t attr;
	int rc;

	*out = NULL;
	if (mail != NULL)
		mail->boxes = calloc((size_t)coll->nranks, sizeof(*mail->boxes));
	if (mail == NULL || mail->boxes == NULL)
		rc = bnet_coll_fail(coll, -ENOMEM, "messages: out of memory");
	else
		rc = bnet_coll_take_rows(coll, rows); /* after which the group is no one else's */
	if (rc != 0) {
		if (mail != NULL)
			free(mail->boxes);
		free(mail);
		return rc;
	}
	mail->coll = coll;
	coll->operation = "messages";
	pthread_mutex_init(&mail->lock, NULL);
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&mail->posted, &attr);
	pthread_condattr_destroy(&attr);
	bnet_list_init(&mail->incoming);
	bnet_list_init(&mail->receives);
	bnet_list_init(&mail->promised);
	bnet_list_init(&mail->announced);
	bnet_list_init(&mail->sending);
	bnet_list_init(&mail->unclaimed);
	bnet_list_init(&mail->finished);
	bnet_list_init(&mail->reported);
	for (int rank = 0; rank < coll->nranks; rank++) {
		mail->boxes[rank].peer = rank;
		bnet_list_init(&mail->boxes[rank].out);
	}
	*out = mail;
	return 0;
}

static void free_operations(struct bnet_node *head)
{
	bnet_list_each(node, head) {
		struct bnet_op *op = bnet_entry(node, struct bnet_op, node);

		bnet_list_remove(node);
		free(op->error);
		free(op);
	}
}

/* A peer that is owed the answer to an announcement would wait for it until its deadline. */
static void answer_all(struct bnet_tagged *mail)
{
	const int64_t until = bnet_coll_now() + FAREWELL_NS;
	struct bnet_coll_wait wait = {.nap_after = PASSES};

	for (;;) {
		bool more = false;

		for (int rank = 0; rank < mail->coll->nranks; rank++)
			more |= bnet_tagged_answer(mail, &mail->boxes[rank]);
		if (!more || bnet_coll_now() > until || bnet_coll_wait_idle(mail->coll, &wait) != 0)
			return;
	}
}

void bnet_tagged_destroy(bnet_tagged_t *mail)
{
	struct bnet_node *const lists[] = {&mail->incoming, &mail->receives, &mail->promised, &mail->announced,
					   &mail->sending,  &mail->finished, &mail->reported};

	answer_all(mail);
	for (int rank = 0; rank < mail->coll->nranks; rank++)
		bnet_tagged_release(mail, &mail->boxes[rank]);
	bnet_coll_end(mail->coll, -ESHUTDOWN); /* from here on no connection touches a slot */
	for (int rank = 0; rank < mail->coll->nranks; rank++)
		free(mail->boxes[rank].slots);
	for (size_t i = 0; i < sizeof(lists) / sizeof(lists[0]); i++)
		free_operations(lists[i]);
	bnet_list_each(node, &mail->unclaimed)
		bnet_tagged_forget(bnet_entry(node, struct bnet_unclaimed, node));
	bnet_coll_destroy(mail->coll);
	pthread_cond_destroy(&mail->posted);
	pthread_mutex_destroy(&mail->lock);
	free(mail->boxes);
	free(mail);
}

/* ---- from any thread ---- */

static int post(struct bnet_tagged *mail, const struct bnet_op *asked, double timeout_s)
{
	struct bnet_op *op;
	bool stopped;

	if (asked->peer >= mail->coll->nranks || asked->peer == mail->coll->rank || asked->peer < (asked->sends ? 0 : -1))
		return -EINVAL;
	if (!(timeout_s >= 0)) /* nor is it a number */
		return -EINVAL;
	op = malloc(sizeof(*op));
	if (op == NULL)
		return -ENOMEM;
	*op = *asked;
	if (timeout_s > 0 && timeout_s < 9e9)
		op->deadline = bnet_coll_now() + (int64_t)(timeout_s * 1e9);
	pthread_mutex_lock(&mail->lock);
	stopped = mail->stopped;
	if (!stopped) {
		bnet_list_add(&mail->incoming, &op->node);
		pthread_cond_signal(&mail->posted);
	}
	pthread_mutex_unlock(&mail->lock);
	if (!stopped)
		return 0;
	free(op);
	return -ECANCELED;
}

int bnet_tagged_send(bnet_tagged_t *mail, const void *buf, size_t bytes, int peer, int64_t tag, double timeout_s,
		   uint64_t id)
{
	const struct bnet_op op = {
		.id = id, .sends = true, .buf = (char *)(uintptr_t)buf, .bytes = bytes, .peer = peer, .tag = tag};

	return post(mail, &op, timeout_s);
}

int bnet_tagged_recv(bnet_tagged_t *mail, void *buf, size_t bytes, int peer, int64_t tag, double timeout_s, uint64_t id)
{
	const struct bnet_op op = {.id = id, .buf = buf, .bytes = bytes, .peer = peer, .tag = tag};

	return post(mail, &op, timeout_s);
}

void bnet_tagged_stop(bnet_tagged_t *mail)
{
	pthread_mutex_lock(&mail->lock);
	mail->stopped = true;
	pthread_cond_signal(&mail->posted);
	pthread_mutex_unlock(&mail->lock);
}

/* ---- the end of an operation ---- */

void bnet_tagged_await(struct bnet_tagged *mail, struct bnet_op *op, bool awaits)
{
	unsigned *count = op->peer < 0 ? &mail->any : &mail->boxes[op->peer].awaited;

	if (op->awaits == awaits)
		return;
	op->awaits = awaits;
	*count += awaits ? 1U : -1U;
}

void bnet_tagged_finish(struct bnet_tagged *mail, struct bnet_op *op, int rc)
{
	bnet_tagged_await(mail, op, false);
	bnet_list_remove(&op->node);
	bnet_list_add(&mail->finished, &op->node);
	op->rc = rc;
	op->error = rc != 0 ? strdup(mail->coll->error) : NULL;
	mail->outstanding--;
}

static void finish_list(struct bnet_tagged *mail, struct bnet_node *head, int rc)
{
	bnet_list_each(node, head)
		bnet_tagged_finish(mail, bnet_entry(node, struct bnet_op, node), rc);
}

static bool nobody_left(const struct bnet_tagged *mail)
{
	for (int rank = 0; rank < mail->coll->nranks; rank++)
		if (rank != mail->coll->rank && mail->boxes[rank].lost == 0)
			return false;
	return true;
}

static void finish_with(struct bnet_tagged *mail, struct bnet_node *head, int peer, int rc)
{
	bnet_list_each(node, head) {
		struct bnet_op *op = bnet_entry(node, struct bnet_op, node);

		if (op->peer == peer || (op->peer == -1 && nobody_left(mail)))
			bnet_tagged_finish(mail, op, rc);
	}
}

/* A peer takes nothing more. The two connections with it have no order among them: what it had sent before it left may
 * be on its way, or wait to be accepted, and is received as ever. */
static void lose_sends(struct bnet_tagged *mail, struct bnet_box *box, int rc)
{
	box->out_lost = rc;
	box->grace = bnet_coll_now() + GRACE_NS;
	bnet_tagged_release_out(mail, box);
	bnet_coll_close_send(mail->coll, box->peer);
	finish_with(mail, &mail->announced, box->peer, rc);
	finish_with(mail, &mail->sending, box->peer, rc);
	mail->coll->warnings = bnet_coll_warnings(); /* the next failure has reasons of its own */
}

/* Nothing more comes from a peer, or what comes can no longer be trusted to be between two frames. What concerns others
 * goes on. */
static void lose(struct bnet_tagged *mail, struct bnet_box *box, int rc)
{
	box->lost = rc;
	bnet_tagged_release(mail, box);
	lose_sends(mail, box, rc);
	bnet_coll_close_peer(mail->coll, box->peer);
	finish_with(mail, &mail->receives, box->peer, rc);
	finish_with(mail, &mail->promised, box->peer, rc);
	bnet_list_each(node, &mail->unclaimed) {
		struct bnet_unclaimed *unclaimed = bnet_entry(node, struct bnet_unclaimed, node);

		if (unclaimed->peer == box->peer && unclaimed->frame.kind == FRAME_ANNOUNCE)
			bnet_tagged_forget(unclaimed);
	}
	mail->coll->warnings = bnet_coll_warnings();
}

/* Nothing can be trusted: all connections end, and with them every operation. */
static void fail(struct bnet_tagged *mail, int rc)
{
	struct bnet_node *const lists[] = {&mail->receives, &mail->promised, &mail->announced, &mail->sending};

	mail->failed = rc;
	for (int rank = 0; rank < mail->coll->nranks; rank++)
		bnet_tagged_release(mail, &mail->boxes[rank]);
	bnet_coll_end(mail->coll, rc);
	for (size_t i = 0; i < sizeof(lists) / sizeof(lists[0]); i++)
		finish_list(mail, lists[i], rc);
}

/* ---- progress ---- */

static int begin_send(struct bnet_tagged *mail, struct bnet_op *op)
{
	struct bnet_box *box = &mail->boxes[op->peer];
	struct bnet_tagged_frame frame = {.kind = FRAME_LETTER, .tag = op->tag, .bytes = op->bytes};
	const uint64_t place = op->bytes + sizeof(frame);

	if (op->bytes <= BNET_LETTER_MAX && box->unconfirmed + place <= BNET_LETTER_WINDOW) {
		box->unconfirmed += place;
		bnet_tagged_enlist(&mail->sending, op);
		return bnet_tagged_queue(mail, box, &frame, op);
	}
	frame.kind = FRAME_ANNOUNCE;
	frame.key = op->key = ++mail->next_key;
	bnet_tagged_await(mail, op, true);
	bnet_tagged_enlist(&mail->announced, op);
	return bnet_tagged_queue(mail, box, &frame, NULL);
}

/* Can it never be done? Asked of sends, and of receives that no message was there for. */
static bool in_vain(const struct bnet_tagged *mail, const struct bnet_op *op)
{
	if (op->peer < 0)
		return nobody_left(mail);
	return op->sends ? mail->boxes[op->peer].out_lost != 0 : mail->boxes[op->peer].lost != 0;
}

static void finish_in_vain(struct bnet_tagged *mail, struct bnet_op *op)
{
	const int rc = op->peer >= 0 ? mail->boxes[op->peer].out_lost : -EREMOTEIO;

	bnet_tagged_finish(mail, op, bnet_coll_fail(mail->coll, rc, "%s: rank %d has lost rank %d (-1: all) before",
						  op->sends ? "send" : "recv", mail->coll->rank, op->peer));
}

static int begin_receive(struct bnet_tagged *mail, struct bnet_op *op)
{
	int rc;

	bnet_tagged_await(mail, op, true);
	bnet_tagged_enlist(&mail->receives, op);
	rc = bnet_tagged_match(mail, op);
	if (rc == 0 && op->awaits && in_vain(mail, op))
		finish_in_vain(mail, op);
	return rc;
}

static int begin(struct bnet_tagged *mail, struct bnet_op *op)
{
	int rc = 0;

	mail->outstanding++;
	if (mail->failed != 0)
		bnet_tagged_finish(mail, op, mail->failed);
	else if (op->sends && in_vain(mail, op))
		finish_in_vain(mail, op);
	else if (op->sends)
		rc = begin_send(mail, op);
	else
		rc = begin_receive(mail, op);
	return rc;
}

/* Does nothing move, and nothing wait to be reported? An answer outlives the operation that it is about. */
static bool quiet(const struct bnet_tagged *mail)
{
	if (mail->outstanding > 0 || !bnet_list_empty(&mail->finished))
		return false;
	for (int rank = 0; rank < mail->coll->nranks; rank++)
		if (bnet_tagged_has_frames(&mail->boxes[rank]))
			return false;
	return true;
}

/* Takes what was posted; with nothing to do, waits for that. False: stopped. */
static bool take_incoming(struct bnet_tagged *mail, struct bnet_node *taken)
{
	const bool sleeps = quiet(mail);
	bool stopped;

	pthread_mutex_lock(&mail->lock);
	while (sleeps && bnet_list_empty(&mail->incoming) && !mail->stopped)
		pthread_cond_wait(&mail->posted, &mail->lock);
	bnet_list_each(node, &mail->incoming) {
		bnet_list_remove(node);
		bnet_list_add(taken, node);
	}
	stopped = mail->stopped;
	pthread_mutex_unlock(&mail->lock);
	return !stopped;
}

static int overdue(struct bnet_tagged *mail)
{
	struct bnet_node *const lists[] = {&mail->receives, &mail->promised, &mail->announced, &mail->sending};
	const int64_t now = bnet_coll_now();

	for (size_t i = 0; i < sizeof(lists) / sizeof(lists[0]); i++) {
		bnet_list_each(node, lists[i]) {
			const struct bnet_op *op = bnet_entry(node, struct bnet_op, node);

			if (op->deadline == 0 || now < op->deadline)
				continue;
			return bnet_coll_fail(mail->coll, -ETIMEDOUT,
					      "%s: rank %d waited in vain for rank %d (-1: any) and tag %lld; is that "
					      "process running, and does it %s with this tag?",
					      op->sends ? "send" : "recv", mail->coll->rank, op->peer,
					      (long long)op->tag, op->sends ? "receive" : "send");
		}
	}
	return 0;
}

/* 0, or -ENOMEM: that it is this rank which cannot go on must not be said of a peer. */
static int move_all(struct bnet_tagged *mail, bool *progress)
{
	for (int step = 1; step < mail->coll->nranks; step++) {
		struct bnet_box *box = &mail->boxes[bnet_coll_ring_rank(mail->coll, step)];
		int rc;

		if (box->lost != 0)
			continue;
		rc = bnet_tagged_move_out(mail, box, progress);
		if (rc == -ENOMEM)
			return rc;
		if (rc != 0)
			lose_sends(mail, box, rc);
		rc = bnet_tagged_move_in(mail, box, progress);
		if (rc == -ENOMEM)
			return rc;
		if (rc != 0)
			lose(mail, box, rc);
	}
	return 0;
}

static int begin_all(struct bnet_tagged *mail, struct bnet_node *taken)
{
	int rc = 0;

	bnet_list_each(node, taken) {
		struct bnet_op *op = bnet_entry(node, struct bnet_op, node);
		int failed = begin(mail, op);

		rc = rc != 0 ? rc : failed;
	}
	return rc;
}

/* A nap that ends when something is posted. */
static void idle(struct bnet_tagged *mail, struct bnet_coll_wait *wait)
{
	const long nap_ns = bnet_coll_wait_fruitless(wait);
	const int64_t until = bnet_coll_now() + nap_ns;
	const struct timespec time = {.tv_sec = until / 1000000000, .tv_nsec = until % 1000000000};

	if (nap_ns == 0) {
		sched_yield();
		return;
	}
	pthread_mutex_lock(&mail->lock);
	if (bnet_list_empty(&mail->incoming) && !mail->stopped)
		pthread_cond_timedwait(&mail->posted, &mail->lock, &time);
	pthread_mutex_unlock(&mail->lock);
}

static int stop(struct bnet_tagged *mail)
{
	answer_all(mail);
	return bnet_coll_fail(mail->coll, -ECANCELED, "messages: stopped");
}

static int report(struct bnet_tagged *mail, bnet_tagged_done_t *done, int max)
{
	int count = 0;

	bnet_list_each(node, &mail->finished) {
		struct bnet_op *op = bnet_entry(node, struct bnet_op, node);

		if (count == max)
			break;
		done[count++] = (bnet_tagged_done_t){.id = op->id, .rc = op->rc, .peer = op->peer, .error = op->error};
		bnet_tagged_enlist(&mail->reported, op);
	}
	return count;
}

int bnet_tagged_progress(bnet_tagged_t *mail, bnet_tagged_done_t *done, int max)
{
	struct bnet_coll_wait wait = {.nap_after = PASSES};

	if (max < 1)
		return -EINVAL;
	if (!mail->begun)
		mail->coll->warnings = bnet_coll_warnings(); /* they are counted for each thread */
	mail->begun = true;
	free_operations(&mail->reported);
	for (;;) {
		struct bnet_node taken;
		bool progress = false, running;
		int rc;

		bnet_list_init(&taken);
		running = take_incoming(mail, &taken);
		progress = !bnet_list_empty(&taken);
		rc = begin_all(mail, &taken);
		if (rc == 0 && mail->failed == 0 && !running)
			rc = stop(mail);
		if (rc == 0 && mail->failed == 0)
			rc = move_all(mail, &progress);
		if (rc == 0 && mail->failed == 0 && ++mail->passes % DEADLINE_EVERY == 0)
			rc = overdue(mail);
		if (rc != 0 && mail->failed == 0)
			fail(mail, rc);
		if (!bnet_list_empty(&mail->finished))
			return report(mail, done, max);
		if (!running)
			return 0;
		if (progress)
			bnet_coll_wait_reset(&wait);
		else
			idle(mail, &wait);
	}
}
