/* SPDX-License-Identifier: MIT
 *
 * Frames to and from one peer: connect when there is something to say, have a receive posted for the next frame while
 * one is awaited, move parcels in chunks. The progress thread.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "tagged/tagged.h"

/* From a peer that owes an answer and has not connected, its end cannot be heard: so often something is sent to it,
 * which fails then. */
#define ASK_NS 1000000000

/* ---- connections ---- */

static int register_slots(struct bnet_tagged *mail, struct bnet_box *box, void *comm, char *at, size_t bytes,
			  void **mhandle)
{
	ncclResult_t result = bnet_client_reg(&mail->coll->client, comm, at, bytes, NCCL_PTR_HOST, mhandle);

	return result == ncclSuccess ? 0 : bnet_coll_net_fail(mail->coll, result, box->peer, "regMr");
}

static int need_slots(struct bnet_tagged *mail, struct bnet_box *box)
{
	if (box->slots == NULL)
		box->slots = calloc(BNET_COLL_DEPTH + 1, BNET_SLOT);
	return box->slots != NULL ? 0 : bnet_coll_fail(mail->coll, -ENOMEM, "messages: out of memory");
}

static char *in_slot(const struct bnet_box *box)
{
	return box->slots + BNET_COLL_DEPTH * BNET_SLOT;
}

static int ready_to_send(struct bnet_tagged *mail, struct bnet_box *box, bool *progress)
{
	struct bnet_coll_link *link = &mail->coll->peers[box->peer].send;
	int rc = need_slots(mail, box);

	if (rc == 0)
		rc = bnet_coll_try_connect(mail->coll, box->peer, progress);
	if (rc != 0 || link->comm == NULL)
		return rc;
	rc = register_slots(mail, box, link->comm, box->slots, BNET_COLL_DEPTH * BNET_SLOT, &box->out_mhandle);
	box->out_ready = rc == 0;
	return rc;
}

/* A network gives up an accept that nobody came for, ours after BAGUA_NET_CONNECT_TIMEOUT, and warns of that. But who
 * has nothing to say does not come; an operation's own deadline tells when that is too late, and until then this looks
 * again. */
static bool accepted(struct bnet_tagged *mail, const struct bnet_box *box, bool *progress)
{
	bnet_coll_mute(true);
	bnet_coll_try_accept(mail->coll, box->peer, progress);
	bnet_coll_mute(false);
	return mail->coll->peers[box->peer].recv.comm != NULL;
}

static int ready_to_receive(struct bnet_tagged *mail, struct bnet_box *box, bool *progress)
{
	struct bnet_coll_link *link = &mail->coll->peers[box->peer].recv;
	int rc = need_slots(mail, box);

	if (rc != 0 || !accepted(mail, box, progress))
		return rc;
	rc = register_slots(mail, box, link->comm, in_slot(box), BNET_SLOT, &box->in_mhandle);
	box->in_ready = rc == 0;
	return rc;
}

static int register_buffer(struct bnet_tagged *mail, struct bnet_box *box, struct bnet_op *op)
{
	const struct bnet_coll_peer *peer = &mail->coll->peers[box->peer];
	ncclResult_t result = bnet_client_reg(&mail->coll->client, op->sends ? peer->send.comm : peer->recv.comm,
					     op->buf, op->bytes, NCCL_PTR_HOST, &op->mhandle);

	if (result != ncclSuccess)
		return bnet_coll_net_fail(mail->coll, result, box->peer, "regMr");
	op->registered = true;
	return 0;
}

static void deregister_buffer(struct bnet_tagged *mail, const struct bnet_box *box, struct bnet_op *op)
{
	const struct bnet_coll_peer *peer = &mail->coll->peers[box->peer];

	if (op->registered)
		bnet_client_dereg(&mail->coll->client, op->sends ? peer->send.comm : peer->recv.comm, op->mhandle);
	op->registered = false;
}

/* The oldest message in flight: 1 done, 0 not yet, or -errno. */
static int test_oldest(struct bnet_tagged *mail, const struct bnet_box *box, const struct bnet_moving *oldest, bool sends,
		       int *bytes)
{
	int done = 0;
	ncclResult_t result = bnet_client_test(&mail->coll->client, oldest->request, &done, bytes);

	if (result != ncclSuccess)
		return bnet_coll_net_fail(mail->coll, result, box->peer, sends ? "a send" : "a receive");
	return done != 0;
}

/* ---- to the peer ---- */

int bnet_tagged_queue(struct bnet_tagged *mail, struct bnet_box *box, const struct bnet_tagged_frame *frame, struct bnet_op *op)
{
	struct bnet_outgoing *outgoing;

	if (box->out_lost != 0)
		return 0;
	outgoing = malloc(sizeof(*outgoing));
	if (outgoing == NULL)
		return bnet_coll_fail(mail->coll, -ENOMEM, "messages: out of memory");
	*outgoing = (struct bnet_outgoing){.frame = *frame, .op = op};
	bnet_list_add(&box->out, &outgoing->node);
	return 0;
}

static void end_frame(struct bnet_box *box, struct bnet_outgoing *outgoing)
{
	bnet_list_remove(&outgoing->node);
	free(outgoing);
	box->header_sent = false;
	box->out_sent = 0;
}

/* 1: posted, 0: no room now. */
static int post_send(struct bnet_tagged *mail, struct bnet_box *box, char *data, size_t bytes, void *mhandle,
		     struct bnet_op *op)
{
	void *request = NULL;
	ncclResult_t result = bnet_client_isend(&mail->coll->client, mail->coll->peers[box->peer].send.comm, data, bytes,
					       0, mhandle, &request);

	if (result != ncclSuccess)
		return bnet_coll_net_fail(mail->coll, result, box->peer, "isend");
	if (request == NULL)
		return 0;
	box->out_flight[box->out_posted % BNET_COLL_DEPTH] = (struct bnet_moving){request, op, bytes};
	box->out_posted++;
	return 1;
}

static int post_header(struct bnet_tagged *mail, struct bnet_box *box, struct bnet_outgoing *outgoing)
{
	const bool letter = outgoing->frame.kind == FRAME_LETTER;
	char *slot = box->slots + box->out_posted % BNET_COLL_DEPTH * BNET_SLOT;
	const uint64_t taken = box->handed_on;
	size_t bytes = sizeof(outgoing->frame);
	int rc;

	outgoing->frame.taken = taken;
	memcpy(slot, &outgoing->frame, sizeof(outgoing->frame));
	if (letter && outgoing->frame.bytes > 0)
		memcpy(slot + bytes, outgoing->op->buf, outgoing->frame.bytes);
	if (letter)
		bytes += outgoing->frame.bytes;
	rc = post_send(mail, box, slot, bytes, box->out_mhandle, letter ? outgoing->op : NULL);
	if (rc <= 0)
		return rc;
	box->handed_on -= taken;
	box->header_sent = true;
	if (outgoing->frame.kind != FRAME_PARCEL)
		end_frame(box, outgoing);
	return 1;
}

static int post_chunk(struct bnet_tagged *mail, struct bnet_box *box, struct bnet_outgoing *outgoing)
{
	struct bnet_op *op = outgoing->op;
	const size_t bytes = bnet_coll_min(BNET_COLL_CHUNK, op->bytes - box->out_sent);
	const bool last = box->out_sent + bytes == op->bytes;
	int rc = op->registered ? 0 : register_buffer(mail, box, op);

	if (rc == 0)
		rc = post_send(mail, box, op->buf + box->out_sent, bytes, op->mhandle, last ? op : NULL);
	if (rc <= 0)
		return rc;
	box->out_sent += bytes;
	if (last)
		end_frame(box, outgoing);
	return 1;
}

static int post_out(struct bnet_tagged *mail, struct bnet_box *box, bool *progress)
{
	while (!bnet_list_empty(&box->out) && box->out_posted - box->out_done < BNET_COLL_DEPTH) {
		struct bnet_outgoing *first = bnet_entry(box->out.next, struct bnet_outgoing, node);
		int rc = box->header_sent ? post_chunk(mail, box, first) : post_header(mail, box, first);

		if (rc <= 0)
			return rc;
		*progress = true;
	}
	return 0;
}

static int complete_out(struct bnet_tagged *mail, struct bnet_box *box, bool *progress)
{
	while (box->out_done < box->out_posted) {
		const struct bnet_moving oldest = box->out_flight[box->out_done % BNET_COLL_DEPTH];
		int rc = test_oldest(mail, box, &oldest, true, NULL);

		if (rc <= 0)
			return rc;
		box->out_done++;
		*progress = true;
		if (oldest.op == NULL)
			continue;
		deregister_buffer(mail, box, oldest.op);
		bnet_tagged_finish(mail, oldest.op, 0);
	}
	return 0;
}

bool bnet_tagged_has_frames(const struct bnet_box *box)
{
	return !bnet_list_empty(&box->out) || box->out_done < box->out_posted;
}

static int ask_whether_there(struct bnet_tagged *mail, struct bnet_box *box)
{
	const struct bnet_tagged_frame nothing = {.kind = FRAME_TAKEN};
	int64_t now;

	if (box->out_lost != 0 || box->in_ready || box->awaited == 0 || bnet_tagged_has_frames(box))
		return 0;
	now = bnet_coll_now();
	if (box->ask_at == 0)
		box->ask_at = now + ASK_NS;
	if (now < box->ask_at)
		return 0;
	box->ask_at = now + ASK_NS;
	return bnet_tagged_queue(mail, box, &nothing, NULL);
}

int bnet_tagged_move_out(struct bnet_tagged *mail, struct bnet_box *box, bool *progress)
{
	int rc = ask_whether_there(mail, box);

	if (rc != 0 || !bnet_tagged_has_frames(box))
		return rc;
	if (!box->out_ready)
		rc = ready_to_send(mail, box, progress);
	if (rc == 0 && box->out_ready)
		rc = post_out(mail, box, progress);
	if (rc == 0 && box->out_ready)
		rc = complete_out(mail, box, progress);
	return rc;
}

/* Not where sends are under way to this peer, which answers may be behind: they are what is given up. */
static bool owes_answer(const struct bnet_box *box)
{
	bool answer = box->out_done < box->out_posted;

	for (size_t i = box->out_done; i < box->out_posted; i++)
		if (box->out_flight[i % BNET_COLL_DEPTH].op != NULL)
			return false;
	bnet_list_each(node, &box->out) {
		const struct bnet_outgoing *outgoing = bnet_entry(node, struct bnet_outgoing, node);

		if (outgoing->op != NULL)
			return false;
		answer |= outgoing->frame.kind == FRAME_GO;
	}
	return answer;
}

bool bnet_tagged_answer(struct bnet_tagged *mail, struct bnet_box *box)
{
	bool progress = false;

	if (!owes_answer(box))
		return false;
	if (bnet_tagged_move_out(mail, box, &progress) != 0)
		bnet_tagged_release_out(mail, box);
	return owes_answer(box);
}

/* ---- from the peer ---- */

/* 1: posted, 0: no room now. */
static int post_receive(struct bnet_tagged *mail, struct bnet_box *box, char *data, size_t bytes, void *mhandle)
{
	void *request = NULL;
	ncclResult_t result = bnet_client_irecv(&mail->coll->client, mail->coll->peers[box->peer].recv.comm, data, bytes,
					       0, mhandle, &request);

	if (result != ncclSuccess)
		return bnet_coll_net_fail(mail->coll, result, box->peer, "irecv");
	if (request == NULL)
		return 0;
	box->in_flight[box->in_posted % BNET_COLL_DEPTH] = (struct bnet_moving){request, NULL, bytes};
	box->in_posted++;
	return 1;
}

/* A receive that nothing comes for keeps the control thread looking, and makes a peer's leaving a failure. Where the
 * window is half used, the news that it opens again is worth that. */
static bool wants_frame(const struct bnet_tagged *mail, const struct bnet_box *box)
{
	return box->awaited > 0 || mail->any > 0 || box->unconfirmed > BNET_LETTER_WINDOW / 2;
}

static int post_in(struct bnet_tagged *mail, struct bnet_box *box)
{
	struct bnet_op *op = box->into;
	int rc = 1;

	if (op == NULL)
		return box->in_posted > box->in_done
			       ? 0
			       : post_receive(mail, box, in_slot(box), BNET_SLOT, box->in_mhandle);
	while (rc > 0 && box->in_asked < op->bytes && box->in_posted - box->in_done < BNET_COLL_DEPTH) {
		const size_t bytes = bnet_coll_min(BNET_COLL_CHUNK, op->bytes - box->in_asked);

		rc = post_receive(mail, box, op->buf + box->in_asked, bytes, op->mhandle);
		if (rc > 0)
			box->in_asked += bytes;
	}
	return rc;
}

static int malformed(struct bnet_tagged *mail, const struct bnet_box *box)
{
	return bnet_coll_fail(mail->coll, -EPROTO, "messages: what rank %d sent to rank %d is no message", box->peer,
			      mail->coll->rank);
}

static int took_frame(struct bnet_tagged *mail, struct bnet_box *box, size_t bytes)
{
	struct bnet_tagged_frame frame;
	int rc;

	if (bytes < sizeof(frame))
		return malformed(mail, box);
	memcpy(&frame, in_slot(box), sizeof(frame));
	if (frame.kind == FRAME_LETTER ? frame.bytes != bytes - sizeof(frame) : bytes != sizeof(frame))
		return malformed(mail, box);
	if (frame.kind < FRAME_LETTER || frame.kind > FRAME_TAKEN || frame.taken > box->unconfirmed)
		return malformed(mail, box);
	box->unconfirmed -= frame.taken;
	rc = bnet_tagged_arrived(mail, box, &frame, in_slot(box) + sizeof(frame));
	if (rc == 0 && box->into != NULL) {
		box->in_asked = 0;
		rc = register_buffer(mail, box, box->into);
	}
	return rc;
}

static int took_chunk(struct bnet_tagged *mail, struct bnet_box *box, size_t bytes, size_t expected)
{
	struct bnet_op *op = box->into;

	if (bytes != expected)
		return malformed(mail, box);
	if (box->in_asked < op->bytes || box->in_done < box->in_posted)
		return 0;
	box->into = NULL;
	deregister_buffer(mail, box, op);
	bnet_tagged_finish(mail, op, 0);
	return 0;
}

static int complete_in(struct bnet_tagged *mail, struct bnet_box *box, bool *progress)
{
	while (box->in_done < box->in_posted) {
		const struct bnet_moving oldest = box->in_flight[box->in_done % BNET_COLL_DEPTH];
		int bytes = 0, rc = test_oldest(mail, box, &oldest, false, &bytes);

		if (rc <= 0)
			return rc;
		box->in_done++;
		*progress = true;
		rc = box->into != NULL ? took_chunk(mail, box, (size_t)bytes, oldest.bytes)
				       : took_frame(mail, box, (size_t)bytes);
		if (rc != 0)
			return rc;
	}
	return 0;
}

/* Nothing goes to this peer, and nothing came in time: a connection that it had made would be here by now. */
static int never_came(struct bnet_tagged *mail, const struct bnet_box *box)
{
	if (box->out_lost == 0 || bnet_coll_now() < box->grace)
		return 0;
	return bnet_coll_fail(mail->coll, box->out_lost,
			      "messages: rank %d lost rank %d: it cannot be reached, and there is nothing from it either",
			      mail->coll->rank, box->peer);
}

/* Posts and completes what has come: a frame, or chunks. */
static int take_next(struct bnet_tagged *mail, struct bnet_box *box, bool *progress)
{
	int rc = post_in(mail, box);

	return rc < 0 ? rc : complete_in(mail, box, progress);
}

int bnet_tagged_move_in(struct bnet_tagged *mail, struct bnet_box *box, bool *progress)
{
	bool more = wants_frame(mail, box); /* else nothing from this peer is missing: it need not even be there */
	int rc = 0;

	if (more && !box->in_ready)
		rc = ready_to_receive(mail, box, progress);
	if (rc == 0 && more && !box->in_ready)
		rc = never_came(mail, box);
	/* A pass looks at every peer, so it takes as many frames of each as are there, but of a fast one not without end. */
	for (int frames = 0; rc == 0 && more && box->in_ready && frames < BNET_COLL_DEPTH; frames++) {
		more = false;
		rc = take_next(mail, box, &more);
		*progress |= more;
		more &= wants_frame(mail, box);
	}
	return rc;
}

/* ---- the end of the connections ---- */

void bnet_tagged_release_out(struct bnet_tagged *mail, struct bnet_box *box)
{
	if (box->out_ready)
		bnet_client_dereg(&mail->coll->client, mail->coll->peers[box->peer].send.comm, box->out_mhandle);
	for (size_t i = box->out_done; i < box->out_posted; i++)
		if (box->out_flight[i % BNET_COLL_DEPTH].op != NULL)
			deregister_buffer(mail, box, box->out_flight[i % BNET_COLL_DEPTH].op);
	bnet_list_each(node, &box->out) {
		struct bnet_outgoing *outgoing = bnet_entry(node, struct bnet_outgoing, node);

		if (outgoing->op != NULL)
			deregister_buffer(mail, box, outgoing->op);
		end_frame(box, outgoing);
	}
	box->out_ready = false;
	box->out_done = box->out_posted = 0;
}

void bnet_tagged_release(struct bnet_tagged *mail, struct bnet_box *box)
{
	bnet_tagged_release_out(mail, box);
	if (box->in_ready)
		bnet_client_dereg(&mail->coll->client, mail->coll->peers[box->peer].recv.comm, box->in_mhandle);
	if (box->into != NULL)
		deregister_buffer(mail, box, box->into);
	box->in_ready = false;
	box->into = NULL;
	box->in_done = box->in_posted = 0;
}
