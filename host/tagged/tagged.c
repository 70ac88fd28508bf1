/* SPDX-License-Identifier: MIT
 *
 * Tagged messages: the object, and the life of an operation. Any thread may call bnet_tagged_send, _recv and _stop,
 * which hand over to the progress thread under the lock. Everything else belongs to the progress thread.
 */
#include "tagged/tagged.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/thread.h"
#include "coll/connect.h"
#include "coll/wait.h"

/* ---- create ---- */

/* Ranks of this host read each other's memory; they share none. */
static void find_local_peers(struct bnet_tagged *tagged)
{
	struct bnet_coll_host *host = &tagged->coll->host;

	for (int member = 0; member < host->count; member++)
		tagged->peers[host->ranks[member]].local = host->same_pid_namespace[member];
	bnet_coll_host_agreed(host, false);
}

int bnet_tagged_create(bnet_tagged_t **out, bnet_coll_t *coll, const void *rows)
{
	struct bnet_tagged *tagged = calloc(1, sizeof(*tagged));
	int rc;

	*out = NULL;
	if (tagged != NULL)
		tagged->peers = calloc((size_t)coll->nranks, sizeof(*tagged->peers));
	if (tagged == NULL || tagged->peers == NULL)
		rc = bnet_coll_fail(coll, -ENOMEM, "messages: out of memory");
	else
		rc = bnet_coll_take_rows(coll, rows); /* from here on the group is the messages' */
	if (rc != 0) {
		if (tagged != NULL)
			free(tagged->peers);
		free(tagged);
		return rc;
	}
	tagged->coll = coll;
	coll->operation = "messages";
	pthread_mutex_init(&tagged->lock, NULL);
	bnet_cond_init(&tagged->posted);
	bnet_list_init(&tagged->incoming);
	bnet_list_init(&tagged->receives);
	bnet_list_init(&tagged->granted);
	bnet_list_init(&tagged->requested);
	bnet_list_init(&tagged->sending);
	bnet_list_init(&tagged->unexpected);
	bnet_list_init(&tagged->finished);
	bnet_list_init(&tagged->reported);
	for (int rank = 0; rank < coll->nranks; rank++) {
		tagged->peers[rank].rank = rank;
		bnet_list_init(&tagged->peers[rank].out);
	}
	tagged->secret = bnet_random();
	find_local_peers(tagged);
	*out = tagged;
	return 0;
}

/* ---- from any thread ---- */

static int post(struct bnet_tagged *tagged, const struct bnet_tagged_op *asked)
{
	struct bnet_tagged_op *op;
	bool stopped;

	if (asked->peer >= tagged->coll->nranks || asked->peer == tagged->coll->rank ||
	    asked->peer < (asked->sends ? 0 : -1))
		return -EINVAL;
	op = malloc(sizeof(*op));
	if (op == NULL)
		return -ENOMEM;
	*op = *asked;
	pthread_mutex_lock(&tagged->lock);
	stopped = tagged->stopped;
	if (!stopped) {
		bnet_list_add(&tagged->incoming, &op->node);
		pthread_cond_signal(&tagged->posted);
	}
	pthread_mutex_unlock(&tagged->lock);
	if (!stopped)
		return 0;
	free(op);
	return -ECANCELED;
}

int bnet_tagged_send(bnet_tagged_t *tagged, const void *buf, size_t bytes, int peer, int64_t tag, uint64_t id)
{
	const struct bnet_tagged_op op =
		{.id = id, .sends = true, .buf = (char *)(uintptr_t)buf, .bytes = bytes, .peer = peer, .tag = tag};

	return post(tagged, &op);
}

int bnet_tagged_recv(bnet_tagged_t *tagged, void *buf, size_t bytes, int peer, int64_t tag, uint64_t id)
{
	const struct bnet_tagged_op op = {.id = id, .buf = buf, .bytes = bytes, .peer = peer, .tag = tag};

	return post(tagged, &op);
}

void bnet_tagged_stop(bnet_tagged_t *tagged)
{
	pthread_mutex_lock(&tagged->lock);
	tagged->stopped = true;
	pthread_cond_signal(&tagged->posted);
	pthread_mutex_unlock(&tagged->lock);
}

/* ---- the progress thread's part of an operation ---- */

void bnet_tagged_await(struct bnet_tagged *tagged, struct bnet_tagged_op *op, bool awaits)
{
	unsigned *count = op->peer < 0 ? &tagged->any : &tagged->peers[op->peer].awaited;

	if (op->awaits == awaits)
		return;
	op->awaits = awaits;
	*count += awaits ? 1U : -1U;
}

static int queue(struct bnet_tagged *tagged, struct bnet_tagged_peer *peer, const struct bnet_tagged_outgoing *frame)
{
	struct bnet_tagged_outgoing *outgoing;

	if (peer->out_lost != 0)
		return 0;
	outgoing = malloc(sizeof(*outgoing));
	if (outgoing == NULL)
		return bnet_coll_fail(tagged->coll, -ENOMEM, "messages: out of memory");
	*outgoing = *frame;
	bnet_list_add(&peer->out, &outgoing->node);
	return 0;
}

int bnet_tagged_queue(struct bnet_tagged *tagged, struct bnet_tagged_peer *peer, const struct bnet_tagged_frame *frame,
		      struct bnet_tagged_op *op)
{
	return queue(tagged, peer, &(struct bnet_tagged_outgoing){.frame = *frame, .op = op});
}

int bnet_tagged_queue_offer(struct bnet_tagged *tagged, struct bnet_tagged_peer *peer, struct bnet_tagged_op *op)
{
	const uint64_t token = tagged->secret ^ op->key;
	const struct bnet_tagged_outgoing outgoing = {
		.frame = {.kind = BNET_TAGGED_OFFER, .key = op->key, .tag = op->tag, .bytes = op->bytes},
		.offer = {.process = getpid(),
			  .buffer = (uintptr_t)op->buf,
			  .token_at = (uintptr_t)&op->token,
			  .token = token},
	};

	atomic_store(&op->token, token);
	return queue(tagged, peer, &outgoing);
}

void bnet_tagged_finish(struct bnet_tagged *tagged, struct bnet_tagged_op *op, int rc)
{
	atomic_store(&op->token, 0); /* before anyone is told, and may use the buffer */
	bnet_tagged_await(tagged, op, false);
	bnet_list_remove(&op->node);
	bnet_list_add(&tagged->finished, &op->node);
	op->rc = rc;
	op->error = rc != 0 ? strdup(tagged->coll->error) : NULL;
	tagged->outstanding--;
}
