/* SPDX-License-Identifier: MIT
 *
 * Matches messages and receives by source and tag, oldest first, and handles the frames that arrive. The progress
 * thread.
 */
#include "tagged/match.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "tagged/pull.h"

/* ---- receives and messages ---- */

static int wrong_size(struct bnet_tagged *tagged, const struct bnet_tagged_op *op,
		      const struct bnet_tagged_frame *frame, int from)
{
	return bnet_coll_fail(tagged->coll, -EMSGSIZE,
			      "recv: rank %d expects %zu bytes with tag %lld, but rank %d sent %llu",
			      tagged->coll->rank, op->bytes, (long long)op->tag, from,
			      (unsigned long long)frame->bytes);
}

/* Read where the message is? Never where a rank of another host says: that would be this host's memory. */
static bool pulled(struct bnet_tagged_peer *peer, const struct bnet_tagged_op *op,
		   const struct bnet_tagged_frame *frame, const char *payload)
{
	struct bnet_tagged_offer offer;
	int rc;

	if (frame->kind != BNET_TAGGED_OFFER || !peer->local || peer->unreadable)
		return false;
	memcpy(&offer, payload, sizeof(offer));
	rc = bnet_tagged_pull(&offer, op->buf, op->bytes);
	peer->unreadable = rc != 0 && rc != -ESTALE;
	return rc == 0;
}

/* The receive is complete with its answer: its caller may not call progress again for a while, and the sender waits. */
static int answer_read(struct bnet_tagged *tagged, struct bnet_tagged_op *op, const struct bnet_tagged_frame *offer)
{
	const struct bnet_tagged_frame answer = {.kind = BNET_TAGGED_READ,
						 .key = offer->key,
						 .tag = offer->tag,
						 .bytes = offer->bytes};
	struct bnet_tagged_peer *peer = &tagged->peers[op->peer];

	if (peer->out_lost != 0) {
		bnet_tagged_finish(tagged, op, 0);
		return 0;
	}
	bnet_tagged_enlist(&tagged->sending, op);
	return bnet_tagged_queue(tagged, peer, &answer, op);
}

/* A receive and a message match. CTS tells the sender of a large message the receive's size, so if the sizes differ,
 * both ends fail this message and nothing else. */
static int deliver(struct bnet_tagged *tagged, struct bnet_tagged_op *op, int from,
		   const struct bnet_tagged_frame *frame, const char *payload)
{
	const struct bnet_tagged_frame cts = {.kind = BNET_TAGGED_CTS,
					      .key = frame->key,
					      .tag = frame->tag,
					      .bytes = op->bytes};
	const bool requested = frame->kind != BNET_TAGGED_EAGER;

	bnet_tagged_await(tagged, op, false);
	op->peer = from;
	if (frame->bytes != op->bytes) {
		bnet_tagged_finish(tagged, op, wrong_size(tagged, op, frame, from));
	} else if (pulled(&tagged->peers[from], op, frame, payload)) {
		return answer_read(tagged, op, frame);
	} else if (requested && op->bytes > 0) {
		op->key = frame->key;
		bnet_tagged_await(tagged, op, true);
		bnet_tagged_enlist(&tagged->granted, op);
	} else {
		if (op->bytes > 0)
			memcpy(op->buf, payload, op->bytes);
		bnet_tagged_finish(tagged, op, 0);
	}
	return requested ? bnet_tagged_queue(tagged, &tagged->peers[from], &cts, NULL) : 0;
}

/* An eager message was handed on: its cost returns to the sender. This never makes a connection: a peer that has only
 * sent may be gone, and a sender whose window is full sends an RTS, whose answer returns the credit. */
static int give_credit(struct bnet_tagged *tagged, struct bnet_tagged_peer *peer, const struct bnet_tagged_frame *eager)
{
	const struct bnet_tagged_frame credit = {.kind = BNET_TAGGED_CREDIT};

	peer->credit_due += bnet_tagged_frame_cost(eager);
	if (peer->credit_due < BNET_TAGGED_WINDOW / 2 || !bnet_list_empty(&peer->out) || !peer->out_ready)
		return 0;
	return bnet_tagged_queue(tagged, peer, &credit, NULL);
}

static int over_window(struct bnet_tagged *tagged, const struct bnet_tagged_peer *peer)
{
	return bnet_coll_fail(tagged->coll, -EPROTO, "messages: rank %d sends more than rank %d has room for",
			      peer->rank, tagged->coll->rank);
}

static int keep_unexpected(struct bnet_tagged *tagged, struct bnet_tagged_peer *peer,
			   const struct bnet_tagged_frame *frame, const char *payload)
{
	const size_t bytes = bnet_tagged_frame_payload(frame);
	struct bnet_tagged_unexpected *unexpected = malloc(sizeof(*unexpected) + bytes);

	if (unexpected == NULL)
		return bnet_coll_fail(tagged->coll, -ENOMEM, "messages: out of memory");
	unexpected->peer = peer->rank;
	unexpected->frame = *frame;
	if (bytes > 0)
		memcpy(unexpected->payload, payload, bytes);
	if (frame->kind == BNET_TAGGED_EAGER)
		peer->unexpected_bytes += bnet_tagged_frame_cost(frame);
	bnet_list_add(&tagged->unexpected, &unexpected->node);
	return 0;
}

void bnet_tagged_drop(struct bnet_tagged_unexpected *unexpected)
{
	bnet_list_remove(&unexpected->node);
	free(unexpected);
}

static int match_message(struct bnet_tagged *tagged, struct bnet_tagged_peer *peer,
			 const struct bnet_tagged_frame *frame, const char *payload)
{
	const uint64_t held = peer->unexpected_bytes + peer->credit_due; /* all of it counts in the sender's window */
	int rc = 0;

	if (frame->kind == BNET_TAGGED_EAGER && held + bnet_tagged_frame_cost(frame) > BNET_TAGGED_WINDOW)
		return over_window(tagged, peer);
	bnet_list_each(node, &tagged->receives) {
		struct bnet_tagged_op *op = bnet_entry(node, struct bnet_tagged_op, node);

		if ((op->peer != -1 && op->peer != peer->rank) || op->tag != frame->tag)
			continue;
		rc = deliver(tagged, op, peer->rank, frame, payload);
		if (rc == 0 && frame->kind == BNET_TAGGED_EAGER)
			rc = give_credit(tagged, peer, frame);
		return rc;
	}
	return keep_unexpected(tagged, peer, frame, payload);
}

int bnet_tagged_match(struct bnet_tagged *tagged, struct bnet_tagged_op *op)
{
	bnet_list_each(node, &tagged->unexpected) {
		struct bnet_tagged_unexpected *unexpected = bnet_entry(node, struct bnet_tagged_unexpected, node);
		int rc;

		if ((op->peer != -1 && op->peer != unexpected->peer) || op->tag != unexpected->frame.tag)
			continue;
		rc = deliver(tagged, op, unexpected->peer, &unexpected->frame, unexpected->payload);
		if (unexpected->frame.kind == BNET_TAGGED_EAGER)
			tagged->peers[unexpected->peer].unexpected_bytes -= bnet_tagged_frame_cost(&unexpected->frame);
		if (rc == 0 && unexpected->frame.kind == BNET_TAGGED_EAGER)
			rc = give_credit(tagged, &tagged->peers[unexpected->peer], &unexpected->frame);
		bnet_tagged_drop(unexpected);
		return rc;
	}
	return 0;
}

/* ---- frames that arrive ---- */

static struct bnet_tagged_op *find(struct bnet_node *list, int rank, uint64_t key)
{
	bnet_list_each(node, list) {
		struct bnet_tagged_op *op = bnet_entry(node, struct bnet_tagged_op, node);

		if (op->peer == rank && op->key == key)
			return op;
	}
	return NULL;
}

static int unknown_key(struct bnet_tagged *tagged, const struct bnet_tagged_peer *peer)
{
	return bnet_coll_fail(tagged->coll, -EPROTO, "messages: rank %d answered a message unknown to rank %d",
			      peer->rank, tagged->coll->rank);
}

static int cts_arrived(struct bnet_tagged *tagged, struct bnet_tagged_peer *peer, const struct bnet_tagged_frame *cts)
{
	const struct bnet_tagged_frame data = {.kind = BNET_TAGGED_DATA,
					       .key = cts->key,
					       .tag = cts->tag,
					       .bytes = cts->bytes};
	struct bnet_tagged_op *op = find(&tagged->requested, peer->rank, cts->key);

	if (op == NULL)
		return peer->out_lost != 0 ? 0 : unknown_key(tagged, peer);
	bnet_tagged_await(tagged, op, false);
	if (cts->bytes != op->bytes) {
		int rc = bnet_coll_fail(tagged->coll, -EMSGSIZE,
					"send: rank %d sends %zu bytes with tag %lld, but rank %d expects %llu",
					tagged->coll->rank, op->bytes, (long long)op->tag, peer->rank,
					(unsigned long long)cts->bytes);

		bnet_tagged_finish(tagged, op, rc);
		return 0;
	}
	if (op->bytes == 0) {
		bnet_tagged_finish(tagged, op, 0);
		return 0;
	}
	bnet_tagged_enlist(&tagged->sending, op);
	return bnet_tagged_queue(tagged, peer, &data, op);
}

static int read_arrived(struct bnet_tagged *tagged, struct bnet_tagged_peer *peer,
			const struct bnet_tagged_frame *frame)
{
	struct bnet_tagged_op *op = find(&tagged->requested, peer->rank, frame->key);

	if (op == NULL)
		return peer->out_lost != 0 ? 0 : unknown_key(tagged, peer);
	bnet_tagged_finish(tagged, op, 0);
	return 0;
}

static int data_arrived(struct bnet_tagged *tagged, struct bnet_tagged_peer *peer, const struct bnet_tagged_frame *data)
{
	struct bnet_tagged_op *op = find(&tagged->granted, peer->rank, data->key);

	if (op == NULL || op->bytes != data->bytes)
		return unknown_key(tagged, peer);
	peer->into = op;
	return 0;
}

int bnet_tagged_arrived(struct bnet_tagged *tagged, struct bnet_tagged_peer *peer,
			const struct bnet_tagged_frame *frame, const char *payload)
{
	switch (frame->kind) {
	case BNET_TAGGED_CTS:
		return cts_arrived(tagged, peer, frame);
	case BNET_TAGGED_DATA:
		return data_arrived(tagged, peer, frame);
	case BNET_TAGGED_READ:
		return read_arrived(tagged, peer, frame);
	case BNET_TAGGED_CREDIT:
		return 0;
	default:
		return match_message(tagged, peer, frame, payload);
	}
}
