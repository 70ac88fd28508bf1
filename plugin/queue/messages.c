/* SPDX-License-Identifier: MIT
 *
 * See messages.h. Any thread, but for the last call, which is bnet_messages_destroy.
 */
#include "queue/messages.h"

#include <errno.h>
#include <stdlib.h>

#include "queue/thread.h"

/* Ends that are reported at a time. */
#define REPORTS 64

/* ---- the thread ---- */

static void report(struct bnet_messages *messages, const bnet_tagged_done_t *done, int count)
{
	bnet_board_lock(messages->board);
	for (int i = 0; i < count; i++) {
		struct bnet_message *message = (struct bnet_message *)(uintptr_t)done[i].id;

		messages->sends -= message->sends;
		bnet_ticket_finish(&message->ticket, done[i].rc, done[i].peer, done[i].error);
	}
	bnet_board_unlock(messages->board);
}

static void *serve(void *arg)
{
	struct bnet_messages *messages = arg;
	bnet_tagged_done_t done[REPORTS];
	int count;

	while ((count = bnet_tagged_progress(messages->tagged, done, REPORTS)) > 0)
		report(messages, done, count);
	bnet_board_lock(messages->board);
	messages->stopped = true;
	bnet_board_wake(messages->board);
	bnet_board_unlock(messages->board);
	return NULL;
}

int bnet_messages_create(bnet_messages_t **out, bnet_tagged_t *tagged)
{
	struct bnet_messages *messages = calloc(1, sizeof(*messages));
	int rc;

	*out = NULL;
	if (messages == NULL)
		return -ENOMEM;
	messages->tagged = tagged;
	messages->board = bnet_board_new();
	rc = messages->board != NULL ? bnet_thread_start(&messages->thread, serve, messages) : -ENOMEM;
	if (rc == 0) {
		*out = messages;
		return 0;
	}
	if (messages->board != NULL)
		bnet_board_release(messages->board);
	free(messages);
	return rc;
}

/* ---- posting ---- */

/* The lock is held until the message is counted: its end may be reported before the call returns. */
static int post(struct bnet_messages *messages, bool sends, void *buf, size_t bytes, int peer, int64_t tag,
		bnet_ticket_t **out)
{
	struct bnet_message *message = calloc(1, sizeof(*message));
	int rc;

	*out = NULL;
	if (message == NULL)
		return -ENOMEM;
	bnet_board_lock(messages->board);
	bnet_ticket_begin(&message->ticket, messages->board);
	message->sends = sends;
	if (sends)
		rc = bnet_tagged_send(messages->tagged, buf, bytes, peer, tag, 0, (uintptr_t)message);
	else
		rc = bnet_tagged_recv(messages->tagged, buf, bytes, peer, tag, 0, (uintptr_t)message);
	if (rc == 0) {
		messages->sends += message->sends;
		*out = &message->ticket;
	} else {
		bnet_ticket_cancel(&message->ticket);
	}
	bnet_board_unlock(messages->board);
	return rc;
}

int bnet_messages_send(bnet_messages_t *messages, const void *buf, size_t bytes, int peer, int64_t tag,
		       bnet_ticket_t **ticket)
{
	return post(messages, true, (void *)(uintptr_t)buf, bytes, peer, tag, ticket);
}

int bnet_messages_recv(bnet_messages_t *messages, void *buf, size_t bytes, int peer, int64_t tag,
		       bnet_ticket_t **ticket)
{
	return post(messages, false, buf, bytes, peer, tag, ticket);
}

uint64_t bnet_messages_ended(bnet_messages_t *messages, uint64_t seen)
{
	uint64_t ended;

	bnet_board_lock(messages->board);
	while (messages->board->ended == seen && !messages->stopped)
		bnet_board_wait(messages->board);
	ended = messages->board->ended;
	bnet_board_unlock(messages->board);
	return ended;
}

int bnet_messages_drain(bnet_messages_t *messages, double seconds)
{
	const struct timespec until = bnet_board_after(seconds);
	bool done;

	bnet_board_lock(messages->board);
	while (messages->sends > 0 && bnet_board_wait_until(messages->board, &until))
		;
	done = messages->sends == 0;
	bnet_board_unlock(messages->board);
	return done ? 0 : -ETIMEDOUT;
}

uint64_t bnet_messages_sends(bnet_messages_t *messages)
{
	uint64_t sends;

	bnet_board_lock(messages->board);
	sends = messages->sends;
	bnet_board_unlock(messages->board);
	return sends;
}

/* ---- the end ---- */

void bnet_messages_stop(bnet_messages_t *messages)
{
	bnet_tagged_stop(messages->tagged);
}

void bnet_messages_destroy(bnet_messages_t *messages)
{
	if (messages == NULL)
		return;
	bnet_tagged_stop(messages->tagged);
	pthread_join(messages->thread, NULL);
	bnet_tagged_destroy(messages->tagged);
	bnet_board_release(messages->board);
	free(messages);
}
