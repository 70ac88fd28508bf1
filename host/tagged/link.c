/* SPDX-License-Identifier: MIT
 *
 * Frames to and from one peer: connects when the first frame is queued, keeps a receive posted while a frame is
 * awaited, moves DATA in chunks. The progress thread.
 */
#include "tagged/link.h"

#include <errno.h>
#include <stdlib.h>

#include "coll/connect.h"
#include "coll/log.h"
#include "coll/size.h"
#include "coll/wait.h"
#include "common/client.h"
#include "tagged/match.h"

/* A peer that owes an answer may die before it has connected: then no connection from it reports the death. A frame is
 * sent to it this often, which fails in that case. */
#define PROBE_NS 1000000000

/* ---- connections ---- */

static int register_slots(struct bnet_tagged *tagged, struct bnet_tagged_peer *peer, void *comm, char *at, size_t bytes,
			  void **mhandle)
{
	ncclResult_t result = bnet_client_reg(&tagged->coll->client, comm, at, bytes, NCCL_PTR_HOST, mhandle);

	return result == ncclSuccess ? 0 : bnet_coll_net_fail(tagged->coll, result, peer->rank, "regMr");
}

static int need_slots(struct bnet_tagged *tagged, struct bnet_tagged_peer *peer)
{
	if (peer->slots == NULL)
		peer->slots = calloc(BNET_COLL_DEPTH + 1, BNET_TAGGED_SLOT);
	return peer->slots != NULL ? 0 : bnet_coll_fail(tagged->coll, -ENOMEM, "messages: out of memory");
}

static char *in_slot(const struct bnet_tagged_peer *peer)
{
	return peer->slots + BNET_COLL_DEPTH * BNET_TAGGED_SLOT;
}

static int ready_to_send(struct bnet_tagged *tagged, struct bnet_tagged_peer *peer, bool *progress)
{
	struct bnet_coll_link *link = &tagged->coll->peers[peer->rank].send;
	int rc = need_slots(tagged, peer);

	if (rc == 0)
		rc = bnet_coll_try_connect(tagged->coll, peer->rank, progress);
	if (rc != 0 || link->comm == NULL)
		return rc;
	rc = register_slots(tagged, peer, link->comm, peer->slots, BNET_COLL_DEPTH * BNET_TAGGED_SLOT,
			    &peer->out_mhandle);
	peer->out_ready = rc == 0;
	return rc;
}

/* A network gives up an accept without a connection, ours after BAGUA_NET_CONNECT_TIMEOUT, and logs a warning. Here
 * that is no failure: a peer without messages does not connect. So accept again and again. */
static bool accepted(struct bnet_tagged *tagged, const struct bnet_tagged_peer *peer, bool *progress)
{
	bnet_coll_mute(true);
	bnet_coll_try_accept(tagged->coll, peer->rank, progress);
	bnet_coll_mute(false);
	return tagged->coll->peers[peer->rank].recv.comm != NULL;
}

static int ready_to_receive(struct bnet_tagged *tagged, struct bnet_tagged_peer *peer, bool *progress)
{
	struct bnet_coll_link *link = &tagged->coll->peers[peer->rank].recv;
	int rc = need_slots(tagged, peer);

	if (rc != 0 || !accepted(tagged, peer, progress))
		return rc;
	rc = register_slots(tagged, peer, link->comm, in_slot(peer), BNET_TAGGED_SLOT, &peer->in_mhandle);
	peer->in_ready = rc == 0;
	return rc;
}

static int register_buffer(struct bnet_tagged *tagged, struct bnet_tagged_peer *peer, struct bnet_tagged_op *op)
{
	const struct bnet_coll_peer *links = &tagged->coll->peers[peer->rank];
	ncclResult_t result = bnet_client_reg(&tagged->coll->client, op->sends ? links->send.comm : links->recv.comm,
					      op->buf, op->bytes, NCCL_PTR_HOST, &op->mhandle);

	if (result != ncclSuccess)
		return bnet_coll_net_fail(tagged->coll, result, peer->rank, "regMr");
	op->registered = true;
	return 0;
}

static void deregister_buffer(struct bnet_tagged *tagged, const struct bnet_tagged_peer *peer,
			      struct bnet_tagged_op *op)
{
	const struct bnet_coll_peer *links = &tagged->coll->peers[peer->rank];

	if (op->registered)
		bnet_client_dereg(&tagged->coll->client, op->sends ? links->send.comm : links->recv.comm, op->mhandle);
	op->registered = false;
}

/* The oldest message in flight: 1 done, 0 not yet, or -errno. */
static int test_oldest(struct bnet_tagged *tagged, const struct bnet_tagged_peer *peer,
		       const struct bnet_tagged_flight *oldest, bool sends, int *bytes)
{
	int done = 0;
	ncclResult_t result = bnet_client_test(&tagged->coll->client, oldest->request, &done, bytes);

	if (result != ncclSuccess)
		return bnet_coll_net_fail(tagged->coll, result, peer->rank, sends ? "a send" : "a receive");
	return done != 0;
}

/* ---- to the peer ---- */

static void end_frame(struct bnet_tagged_peer *peer, struct bnet_tagged_outgoing *outgoing)
{
	bnet_list_remove(&outgoing->node);
	free(outgoing);
	peer->header_sent = false;
	peer->out_sent = 0;
}

/* 1: posted, 0: no room now. op: the first of those that end with this message. */
static int post_send(struct bnet_tagged *tagged, struct bnet_tagged_peer *peer, char *data, size_t bytes, void *mhandle,
		     struct bnet_tagged_op *op)
{
	void *request = NULL;
	void *comm = tagged->coll->peers[peer->rank].send.comm;
	ncclResult_t result = bnet_client_isend(&tagged->coll->client, comm, data, bytes, 0, mhandle, &request);

	if (result != ncclSuccess)
		return bnet_coll_net_fail(tagged->coll, result, peer->rank, "isend");
	if (request == NULL)
		return 0;
	peer->out_flight[peer->out_posted % BNET_COLL_DEPTH] = (struct bnet_tagged_flight){request, op, bytes};
	peer->out_posted++;
	return 1;
}

static struct bnet_tagged_outgoing *first_out(const struct bnet_tagged_peer *peer)
{
	return bnet_entry(peer->out.next, struct bnet_tagged_outgoing, node);
}

/* The frames that one slot has room for, encoded. Thousands of small messages cost few system calls this way. */
struct packet {
	char *slot;
	size_t bytes;
	size_t ends; /* frames that are complete with it; a DATA behind them is not */
	bool has_data;
	struct bnet_tagged_op *first; /* of the operations that end with it, and … */
	struct bnet_tagged_op **last; /* … where the next one is entered */
};

static void pack_frame(struct packet *packet, const struct bnet_tagged_outgoing *outgoing)
{
	struct bnet_tagged_op *op = outgoing->op;
	const bool eager = outgoing->frame.kind == BNET_TAGGED_EAGER;

	packet->bytes += bnet_tagged_frame_encode(packet->slot + packet->bytes, &outgoing->frame,
						  eager ? op->buf : (const void *)&outgoing->offer);
	packet->has_data = outgoing->frame.kind == BNET_TAGGED_DATA;
	if (packet->has_data)
		return;
	packet->ends++;
	if (op == NULL)
		return;
	op->with = NULL;
	*packet->last = op;
	packet->last = &op->with;
}

static void pack(struct packet *packet, const struct bnet_tagged_peer *peer)
{
	uint64_t credit = peer->credit_due;

	*packet = (struct packet){.slot = peer->slots + peer->out_posted % BNET_COLL_DEPTH * BNET_TAGGED_SLOT};
	packet->last = &packet->first;
	bnet_list_each(node, &peer->out) {
		struct bnet_tagged_outgoing *outgoing = bnet_entry(node, struct bnet_tagged_outgoing, node);
		const size_t bytes = sizeof(outgoing->frame) + bnet_tagged_frame_payload(&outgoing->frame);

		if (packet->has_data || packet->bytes + bytes > BNET_TAGGED_SLOT)
			return;
		outgoing->frame.credit = credit;
		credit = 0;
		pack_frame(packet, outgoing);
	}
}

static int post_frames(struct bnet_tagged *tagged, struct bnet_tagged_peer *peer)
{
	struct packet packet;
	int rc;

	pack(&packet, peer);
	rc = post_send(tagged, peer, packet.slot, packet.bytes, peer->out_mhandle, packet.first);
	if (rc <= 0)
		return rc;
	peer->credit_due = 0;
	for (size_t i = 0; i < packet.ends; i++)
		end_frame(peer, first_out(peer));
	peer->header_sent = packet.has_data;
	return 1;
}

static int post_chunk(struct bnet_tagged *tagged, struct bnet_tagged_peer *peer, struct bnet_tagged_outgoing *outgoing)
{
	struct bnet_tagged_op *op = outgoing->op;
	const size_t bytes = bnet_coll_min(BNET_COLL_CHUNK, op->bytes - peer->out_sent);
	const bool last = peer->out_sent + bytes == op->bytes;
	int rc = op->registered ? 0 : register_buffer(tagged, peer, op);

	op->with = NULL;
	if (rc == 0)
		rc = post_send(tagged, peer, op->buf + peer->out_sent, bytes, op->mhandle, last ? op : NULL);
	if (rc <= 0)
		return rc;
	peer->out_sent += bytes;
	if (last)
		end_frame(peer, outgoing);
	return 1;
}

static int post_out(struct bnet_tagged *tagged, struct bnet_tagged_peer *peer, bool *progress)
{
	while (!bnet_list_empty(&peer->out) && peer->out_posted - peer->out_done < BNET_COLL_DEPTH) {
		int rc = peer->header_sent ? post_chunk(tagged, peer, first_out(peer)) : post_frames(tagged, peer);

		if (rc <= 0)
			return rc;
		*progress = true;
	}
	return 0;
}

static int complete_out(struct bnet_tagged *tagged, struct bnet_tagged_peer *peer, bool *progress)
{
	while (peer->out_done < peer->out_posted) {
		const struct bnet_tagged_flight oldest = peer->out_flight[peer->out_done % BNET_COLL_DEPTH];
		int rc = test_oldest(tagged, peer, &oldest, true, NULL);

		if (rc <= 0)
			return rc;
		peer->out_done++;
		*progress = true;
		for (struct bnet_tagged_op *op = oldest.op; op != NULL; op = op->with) {
			deregister_buffer(tagged, peer, op);
			bnet_tagged_finish(tagged, op, 0);
		}
	}
	return 0;
}

bool bnet_tagged_has_frames(const struct bnet_tagged_peer *peer)
{
	return !bnet_list_empty(&peer->out) || peer->out_done < peer->out_posted;
}

static int probe(struct bnet_tagged *tagged, struct bnet_tagged_peer *peer)
{
	const struct bnet_tagged_frame credit = {.kind = BNET_TAGGED_CREDIT};
	int64_t now;

	if (peer->out_lost != 0 || peer->in_ready || peer->awaited == 0 || bnet_tagged_has_frames(peer))
		return 0;
	now = bnet_coll_now();
	if (peer->probe_at == 0)
		peer->probe_at = now + PROBE_NS;
	if (now < peer->probe_at)
		return 0;
	peer->probe_at = now + PROBE_NS;
	return bnet_tagged_queue(tagged, peer, &credit, NULL);
}

int bnet_tagged_move_out(struct bnet_tagged *tagged, struct bnet_tagged_peer *peer, bool *progress)
{
	int rc = probe(tagged, peer);

	if (rc != 0 || !bnet_tagged_has_frames(peer))
		return rc;
	if (!peer->out_ready)
		rc = ready_to_send(tagged, peer, progress);
	if (rc == 0 && peer->out_ready)
		rc = post_out(tagged, peer, progress);
	if (rc == 0 && peer->out_ready)
		rc = complete_out(tagged, peer, progress);
	return rc;
}

/* Of any of the operations that end together? */
static bool has_payload(const struct bnet_tagged_op *op)
{
	for (; op != NULL; op = op->with)
		if (op->sends)
			return true;
	return false;
}

/* False if payload to this peer is queued or in flight: answers behind it are given up with it. */
static bool owes_answer(const struct bnet_tagged_peer *peer)
{
	bool answer = peer->out_done < peer->out_posted;

	for (size_t i = peer->out_done; i < peer->out_posted; i++)
		if (has_payload(peer->out_flight[i % BNET_COLL_DEPTH].op))
			return false;
	bnet_list_each(node, &peer->out) {
		const struct bnet_tagged_outgoing *outgoing = bnet_entry(node, struct bnet_tagged_outgoing, node);

		if (outgoing->op != NULL && outgoing->op->sends)
			return false;
		answer |= outgoing->frame.kind == BNET_TAGGED_CTS || outgoing->frame.kind == BNET_TAGGED_READ;
	}
	return answer;
}

bool bnet_tagged_flush_answers(struct bnet_tagged *tagged, struct bnet_tagged_peer *peer)
{
	bool progress = false;

	if (!owes_answer(peer))
		return false;
	if (bnet_tagged_move_out(tagged, peer, &progress) != 0)
		bnet_tagged_release_out(tagged, peer);
	return owes_answer(peer);
}

/* ---- from the peer ---- */

/* 1: posted, 0: no room now. */
static int post_receive(struct bnet_tagged *tagged, struct bnet_tagged_peer *peer, char *data, size_t bytes,
			void *mhandle)
{
	void *request = NULL;
	void *comm = tagged->coll->peers[peer->rank].recv.comm;
	ncclResult_t result = bnet_client_irecv(&tagged->coll->client, comm, data, bytes, 0, mhandle, &request);

	if (result != ncclSuccess)
		return bnet_coll_net_fail(tagged->coll, result, peer->rank, "irecv");
	if (request == NULL)
		return 0;
	peer->in_flight[peer->in_posted % BNET_COLL_DEPTH] = (struct bnet_tagged_flight){request, NULL, bytes};
	peer->in_posted++;
	return 1;
}

/* A posted receive keeps the plugin's control thread polling, and turns the regular end of a peer into a failure. That
 * is justified if a frame is awaited, or to learn of credit once the window is half used. */
static bool wants_frame(const struct bnet_tagged *tagged, const struct bnet_tagged_peer *peer)
{
	return peer->awaited > 0 || tagged->any > 0 || peer->uncredited > BNET_TAGGED_WINDOW / 2;
}

static int post_in(struct bnet_tagged *tagged, struct bnet_tagged_peer *peer)
{
	struct bnet_tagged_op *op = peer->into;
	int rc = 1;

	if (op == NULL)
		return peer->in_posted > peer->in_done
			       ? 0
			       : post_receive(tagged, peer, in_slot(peer), BNET_TAGGED_SLOT, peer->in_mhandle);
	while (rc > 0 && peer->in_bytes < op->bytes && peer->in_posted - peer->in_done < BNET_COLL_DEPTH) {
		const size_t bytes = bnet_coll_min(BNET_COLL_CHUNK, op->bytes - peer->in_bytes);

		rc = post_receive(tagged, peer, op->buf + peer->in_bytes, bytes, op->mhandle);
		if (rc > 0)
			peer->in_bytes += bytes;
	}
	return rc;
}

static int malformed(struct bnet_tagged *tagged, const struct bnet_tagged_peer *peer)
{
	return bnet_coll_fail(tagged->coll, -EPROTO, "messages: rank %d sent a malformed frame to rank %d", peer->rank,
			      tagged->coll->rank);
}

static int frames_arrived(struct bnet_tagged *tagged, struct bnet_tagged_peer *peer, size_t bytes)
{
	const char *at = in_slot(peer), *const end = at + bytes;
	int rc = 0;

	do {
		struct bnet_tagged_frame frame;
		const char *payload = bnet_tagged_frame_decode(at, (size_t)(end - at), &frame);

		if (payload == NULL || frame.credit > peer->uncredited || peer->into != NULL)
			return malformed(tagged, peer);
		peer->uncredited -= frame.credit;
		rc = bnet_tagged_arrived(tagged, peer, &frame, payload);
		at = payload + bnet_tagged_frame_payload(&frame);
	} while (rc == 0 && at < end);
	if (rc == 0 && peer->into != NULL) {
		peer->in_bytes = 0;
		rc = register_buffer(tagged, peer, peer->into);
	}
	return rc;
}

static int chunk_arrived(struct bnet_tagged *tagged, struct bnet_tagged_peer *peer, size_t bytes, size_t expected)
{
	struct bnet_tagged_op *op = peer->into;

	if (bytes != expected)
		return malformed(tagged, peer);
	if (peer->in_bytes < op->bytes || peer->in_done < peer->in_posted)
		return 0;
	peer->into = NULL;
	deregister_buffer(tagged, peer, op);
	bnet_tagged_finish(tagged, op, 0);
	return 0;
}

static int complete_in(struct bnet_tagged *tagged, struct bnet_tagged_peer *peer, bool *progress)
{
	while (peer->in_done < peer->in_posted) {
		const struct bnet_tagged_flight oldest = peer->in_flight[peer->in_done % BNET_COLL_DEPTH];
		int bytes = 0, rc = test_oldest(tagged, peer, &oldest, false, &bytes);

		if (rc <= 0)
			return rc;
		peer->in_done++;
		*progress = true;
		rc = peer->into != NULL ? chunk_arrived(tagged, peer, (size_t)bytes, oldest.bytes)
					: frames_arrived(tagged, peer, (size_t)bytes);
		if (rc != 0)
			return rc;
	}
	return 0;
}

/* 0, or the failure of a peer that cannot be reached and whose connection has not appeared within the grace time. */
static int absent(struct bnet_tagged *tagged, const struct bnet_tagged_peer *peer)
{
	if (peer->out_lost == 0 || bnet_coll_now() < peer->grace_until)
		return 0;
	return bnet_coll_fail(tagged->coll, peer->out_lost,
			      "messages: rank %d lost rank %d: it cannot be reached, and it has not connected",
			      tagged->coll->rank, peer->rank);
}

/* Posts and completes a frame, or chunks. */
static int receive_next(struct bnet_tagged *tagged, struct bnet_tagged_peer *peer, bool *progress)
{
	int rc = post_in(tagged, peer);

	return rc < 0 ? rc : complete_in(tagged, peer, progress);
}

int bnet_tagged_move_in(struct bnet_tagged *tagged, struct bnet_tagged_peer *peer, bool *progress)
{
	bool more = wants_frame(tagged, peer); /* else the peer need not even exist any more */
	int rc = 0;

	if (more && !peer->in_ready)
		rc = ready_to_receive(tagged, peer, progress);
	if (rc == 0 && more && !peer->in_ready)
		rc = absent(tagged, peer);
	/* A pass visits every peer: it takes all frames that have arrived from each, up to a limit for a fast one. */
	for (int frames = 0; rc == 0 && more && peer->in_ready && frames < BNET_COLL_DEPTH; frames++) {
		more = false;
		rc = receive_next(tagged, peer, &more);
		*progress |= more;
		more &= wants_frame(tagged, peer);
	}
	return rc;
}

/* ---- the end of the connections ---- */

void bnet_tagged_release_out(struct bnet_tagged *tagged, struct bnet_tagged_peer *peer)
{
	if (peer->out_ready)
		bnet_client_dereg(&tagged->coll->client, tagged->coll->peers[peer->rank].send.comm, peer->out_mhandle);
	for (size_t i = peer->out_done; i < peer->out_posted; i++)
		for (struct bnet_tagged_op *op = peer->out_flight[i % BNET_COLL_DEPTH].op; op != NULL; op = op->with)
			deregister_buffer(tagged, peer, op);
	bnet_list_each(node, &peer->out) {
		struct bnet_tagged_outgoing *outgoing = bnet_entry(node, struct bnet_tagged_outgoing, node);

		if (outgoing->op != NULL)
			deregister_buffer(tagged, peer, outgoing->op);
		end_frame(peer, outgoing);
	}
	peer->out_ready = false;
	peer->out_done = peer->out_posted = 0;
}

void bnet_tagged_release(struct bnet_tagged *tagged, struct bnet_tagged_peer *peer)
{
	bnet_tagged_release_out(tagged, peer);
	if (peer->in_ready)
		bnet_client_dereg(&tagged->coll->client, tagged->coll->peers[peer->rank].recv.comm, peer->in_mhandle);
	if (peer->into != NULL)
		deregister_buffer(tagged, peer, peer->into);
	peer->in_ready = false;
	peer->into = NULL;
	peer->in_done = peer->in_posted = 0;
}
