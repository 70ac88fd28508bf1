/* SPDX-License-Identifier: MIT
 *
 * Tagged messages: what arrives is matched with what is asked for, by source and tag, oldest first. The progress
 * thread.
 */
#include "tagged/tagged.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* ---- receives and messages ---- */

static int wrong_size(struct bnet_tagged *mail, const struct bnet_op *op, const struct bnet_tagged_frame *frame, int peer)
{
	return bnet_coll_fail(mail->coll, -EMSGSIZE,
			      "recv: rank %d expects %zu bytes with tag %lld, and rank %d sent %llu", mail->coll->rank,
			      op->bytes, (long long)op->tag, peer, (unsigned long long)frame->bytes);
}

/* A receive and a message have found each other. GO tells the sender of a large one how much is expected, so where that
 * differs both ends fail the message, and nothing else. */
static int unite(struct bnet_tagged *mail, struct bnet_op *op, int peer, const struct bnet_tagged_frame *frame,
		 const char *payload)
{
	const struct bnet_tagged_frame go = {.kind = FRAME_GO, .key = frame->key, .tag = frame->tag, .bytes = op->bytes};
	const bool announced = frame->kind == FRAME_ANNOUNCE;

	bnet_tagged_await(mail, op, false);
	op->peer = peer;
	if (frame->bytes != op->bytes) {
		bnet_tagged_finish(mail, op, wrong_size(mail, op, frame, peer));
	} else if (announced && op->bytes > 0) {
		op->key = frame->key;
		bnet_tagged_await(mail, op, true);
		bnet_tagged_enlist(&mail->promised, op);
	} else {
		if (op->bytes > 0)
			memcpy(op->buf, payload, op->bytes);
		bnet_tagged_finish(mail, op, 0);
	}
	return announced ? bnet_tagged_queue(mail, &mail->boxes[peer], &go, NULL) : 0;
}

/* Its payload and header: an honest sender counts in the window what is kept here, and what it has not heard of. */
static uint64_t place_of(const struct bnet_tagged_frame *letter)
{
	return letter->bytes + sizeof(*letter);
}

/* The sender may have as many bytes of letters on the way again. No connection is made to say so: who has only sent may
 * be gone, and who needs to know announces its next message, which is answered. */
static int handed_on(struct bnet_tagged *mail, struct bnet_box *box, const struct bnet_tagged_frame *letter)
{
	const struct bnet_tagged_frame taken = {.kind = FRAME_TAKEN};

	box->handed_on += place_of(letter);
	if (box->handed_on < BNET_LETTER_WINDOW / 2 || !bnet_list_empty(&box->out) || !box->out_ready)
		return 0;
	return bnet_tagged_queue(mail, box, &taken, NULL);
}

static int too_many(struct bnet_tagged *mail, const struct bnet_box *box)
{
	return bnet_coll_fail(mail->coll, -EPROTO, "messages: rank %d sends more than rank %d has room for", box->peer,
			      mail->coll->rank);
}

static int keep(struct bnet_tagged *mail, struct bnet_box *box, const struct bnet_tagged_frame *frame, const char *payload)
{
	const size_t bytes = frame->kind == FRAME_LETTER ? frame->bytes : 0;
	struct bnet_unclaimed *unclaimed = malloc(sizeof(*unclaimed) + bytes);

	if (unclaimed == NULL)
		return bnet_coll_fail(mail->coll, -ENOMEM, "messages: out of memory");
	unclaimed->peer = box->peer;
	unclaimed->frame = *frame;
	if (bytes > 0)
		memcpy(unclaimed->payload, payload, bytes);
	if (frame->kind == FRAME_LETTER)
		box->kept += place_of(frame);
	bnet_list_add(&mail->unclaimed, &unclaimed->node);
	return 0;
}

void bnet_tagged_forget(struct bnet_unclaimed *unclaimed)
{
	bnet_list_remove(&unclaimed->node);
	free(unclaimed);
}

static int match_message(struct bnet_tagged *mail, struct bnet_box *box, const struct bnet_tagged_frame *frame,
			 const char *payload)
{
	int rc = 0;

	if (frame->kind == FRAME_LETTER && box->kept + box->handed_on + place_of(frame) > BNET_LETTER_WINDOW)
		return too_many(mail, box);
	bnet_list_each(node, &mail->receives) {
		struct bnet_op *op = bnet_entry(node, struct bnet_op, node);

		if ((op->peer != -1 && op->peer != box->peer) || op->tag != frame->tag)
			continue;
		rc = unite(mail, op, box->peer, frame, payload);
		if (rc == 0 && frame->kind == FRAME_LETTER)
			rc = handed_on(mail, box, frame);
		return rc;
	}
	return keep(mail, box, frame, payload);
}

int bnet_tagged_match(struct bnet_tagged *mail, struct bnet_op *op)
{
	bnet_list_each(node, &mail->unclaimed) {
		struct bnet_unclaimed *unclaimed = bnet_entry(node, struct bnet_unclaimed, node);
		int rc;

		if ((op->peer != -1 && op->peer != unclaimed->peer) || op->tag != unclaimed->frame.tag)
			continue;
		rc = unite(mail, op, unclaimed->peer, &unclaimed->frame, unclaimed->payload);
		if (unclaimed->frame.kind == FRAME_LETTER)
			mail->boxes[unclaimed->peer].kept -= place_of(&unclaimed->frame);
		if (rc == 0 && unclaimed->frame.kind == FRAME_LETTER)
			rc = handed_on(mail, &mail->boxes[unclaimed->peer], &unclaimed->frame);
		bnet_tagged_forget(unclaimed);
		return rc;
	}
	return 0;
}

/* ---- frames that arrive ---- */

static struct bnet_op *find(struct bnet_node *list, int peer, uint64_t key)
{
	bnet_list_each(node, list) {
		struct bnet_op *op = bnet_entry(node, struct bnet_op, node);

		if (op->peer == peer && op->key == key)
			return op;
	}
	return NULL;
}

static int unknown(struct bnet_tagged *mail, const struct bnet_box *box)
{
	return bnet_coll_fail(mail->coll, -EPROTO, "messages: rank %d answers a message that rank %d does not know",
			      box->peer, mail->coll->rank);
}

static int may_go(struct bnet_tagged *mail, struct bnet_box *box, const struct bnet_tagged_frame *go)
{
	const struct bnet_tagged_frame parcel = {.kind = FRAME_PARCEL, .key = go->key, .tag = go->tag, .bytes = go->bytes};
	struct bnet_op *op = find(&mail->announced, box->peer, go->key);

	if (op == NULL)
		return box->out_lost != 0 ? 0 : unknown(mail, box);
	bnet_tagged_await(mail, op, false);
	if (go->bytes != op->bytes) {
		bnet_tagged_finish(mail, op, bnet_coll_fail(mail->coll, -EMSGSIZE,
							  "send: rank %d sends %zu bytes with tag %lld, and rank %d "
							  "expects %llu",
							  mail->coll->rank, op->bytes, (long long)op->tag, box->peer,
							  (unsigned long long)go->bytes));
		return 0;
	}
	if (op->bytes == 0) {
		bnet_tagged_finish(mail, op, 0);
		return 0;
	}
	bnet_tagged_enlist(&mail->sending, op);
	return bnet_tagged_queue(mail, box, &parcel, op);
}

static int parcel_comes(struct bnet_tagged *mail, struct bnet_box *box, const struct bnet_tagged_frame *parcel)
{
	struct bnet_op *op = find(&mail->promised, box->peer, parcel->key);

	if (op == NULL || op->bytes != parcel->bytes)
		return unknown(mail, box);
	box->into = op;
	return 0;
}

int bnet_tagged_arrived(struct bnet_tagged *mail, struct bnet_box *box, const struct bnet_tagged_frame *frame,
		      const char *payload)
{
	switch (frame->kind) {
	case FRAME_GO: return may_go(mail, box, frame);
	case FRAME_PARCEL: return parcel_comes(mail, box, frame);
	case FRAME_TAKEN: return 0;
	default: return match_message(mail, box, frame, payload);
	}
}
