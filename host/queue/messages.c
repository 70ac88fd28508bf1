/* SPDX-License-Identifier: MIT
 *
 * See messages.h. Any thread, but for the last call, which is bnet_messages_destroy.
 */
#include "queue/messages.h"

#include <errno.h>
#include <sched.h>
#include <stdlib.h>

#include "common/thread.h"
#include "tagged/tagged.h"

/* Ends that are reported at a time. */
#define REPORTS 64
/* Of the thread. Some small messages are posted in that time, and a packet of them costs as much as one. */
#define SHORT_NAP_NS 100000

/* ---- driving ---- */

static void report(struct bnet_messages *messages, const bnet_tagged_done_t *done, int count)
{
	for (int i = 0; i < count; i++) {
		struct bnet_message *message = (struct bnet_message *)(uintptr_t)done[i].id;

		messages->sends -= message->sends;
		if (!message->sends && done[i].rc == 0)
			messages->counts[done[i].peer].received++;
		bnet_ticket_finish(&message->ticket, done[i].rc, done[i].peer, done[i].error);
	}
}

static void reset_waits(struct bnet_messages *messages)
{
	bnet_coll_wait_reset(&messages->wait);
	bnet_coll_wait_reset(&messages->unwatched);
}

/* A pass by who drives. False: it has moved nothing. */
static bool drive(struct bnet_messages *messages)
{
	bnet_tagged_done_t done[REPORTS];
	bool moved;
	int count;

	bnet_board_unlock(messages->board);
	count = bnet_tagged_pass(messages->tagged, done, REPORTS, &moved);
	bnet_board_lock(messages->board);
	report(messages, done, count);
	messages->stopped = count < 0;
	messages->idle = !messages->stopped && bnet_tagged_idle(messages->tagged);
	if (messages->stopped)
		bnet_board_wake(messages->board);
	if (moved || count > 0)
		reset_waits(messages);
	return moved || count > 0;
}

/* ---- after a pass that has moved nothing ---- */

static void nap(struct bnet_messages *messages, long ns)
{
	const struct timespec until = bnet_board_after((double)ns / 1e9);
	const bool is_long = ns > SHORT_NAP_NS;

	messages->long_naps += is_long;
	pthread_cond_timedwait(&messages->work, &messages->board->lock, &until);
	messages->long_naps -= is_long;
}

static void rest_as_caller(struct bnet_messages *messages)
{
	const long ns = bnet_coll_wait_fruitless(&messages->wait);

	if (ns > 0) {
		nap(messages, ns);
		return;
	}
	bnet_board_unlock(messages->board);
	sched_yield();
	bnet_board_lock(messages->board);
}

static void rest_as_thread(struct bnet_messages *messages)
{
	const long ns = bnet_coll_wait_fruitless(&messages->unwatched);

	nap(messages, ns > SHORT_NAP_NS ? ns : SHORT_NAP_NS);
}

/* Something was posted. A short nap ends soon enough by itself. */
static void wake(struct bnet_messages *messages)
{
	if (messages->idle || messages->long_naps > 0)
		pthread_cond_broadcast(&messages->work);
	messages->idle = false;
	reset_waits(messages);
}

/* ---- who drives ---- */

/* Hands driving on: to another helper; after the last one to the thread, or to destroy if that waits. */
static void give_way(struct bnet_messages *messages)
{
	if (messages->driven)
		return;
	if (messages->helpers > 0 || messages->board->help == NULL)
		bnet_board_wake(messages->board);
	else if (!messages->idle)
		pthread_cond_broadcast(&messages->work);
	if (messages->stopped)
		pthread_cond_broadcast(&messages->work);
}

static bool help(void *owner, const struct bnet_ticket *ticket, const struct timespec *until)
{
	struct bnet_messages *messages = owner;

	if (messages->stopped)
		return false;
	messages->helpers++;
	while (messages->driven && !ticket->over && bnet_board_wait_until(messages->board, until))
		;
	if (!messages->driven) {
		messages->driven = true;
		while (!ticket->over && !messages->stopped && !bnet_board_passed(until))
			if (!drive(messages) && !ticket->over)
				rest_as_caller(messages);
		messages->driven = false;
	}
	messages->helpers--;
	give_way(messages);
	return true;
}

static void *serve(void *arg)
{
	struct bnet_messages *messages = arg;

	bnet_board_lock(messages->board);
	while (!messages->stopped) {
		bool moved;

		if (messages->driven || messages->helpers > 0 || messages->idle) {
			pthread_cond_wait(&messages->work, &messages->board->lock);
			continue;
		}
		messages->driven = true;
		moved = drive(messages);
		messages->driven = false;
		if (messages->helpers > 0)
			give_way(messages);
		else if (!moved && !messages->idle && !messages->stopped)
			rest_as_thread(messages);
	}
	bnet_board_unlock(messages->board);
	return NULL;
}

/* ---- the object ---- */

static void free_messages(struct bnet_messages *messages)
{
	if (messages->board != NULL)
		bnet_board_release(messages->board);
	pthread_cond_destroy(&messages->work);
	free(messages->counts);
	free(messages);
}

int bnet_messages_create(bnet_messages_t **out, bnet_tagged_t *tagged)
{
	struct bnet_messages *messages = calloc(1, sizeof(*messages));
	int rc;

	*out = NULL;
	if (messages == NULL)
		return -ENOMEM;
	rc = bnet_cond_init(&messages->work);
	if (rc != 0) {
		free(messages);
		return rc;
	}
	messages->tagged = tagged;
	messages->idle = true;
	messages->wait.nap_after = BNET_TAGGED_PASSES;
	messages->unwatched.nap_after = 1;
	messages->counts = calloc((size_t)tagged->coll->nranks, sizeof(*messages->counts));
	messages->board = bnet_board_new();
	rc = -ENOMEM;
	if (messages->board != NULL && messages->counts != NULL)
		rc = bnet_thread_start(&messages->thread, serve, messages);
	if (rc != 0) {
		free_messages(messages);
		return rc;
	}
	bnet_board_lock(messages->board);
	messages->board->owner = messages;
	messages->board->help = help;
	bnet_board_unlock(messages->board);
	*out = messages;
	return 0;
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
		rc = bnet_tagged_send(messages->tagged, buf, bytes, peer, tag, (uintptr_t)message);
	else
		rc = bnet_tagged_recv(messages->tagged, buf, bytes, peer, tag, (uintptr_t)message);
	if (rc == 0) {
		messages->sends += message->sends;
		if (sends)
			messages->counts[peer].sent++;
		wake(messages);
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

void bnet_messages_count(bnet_messages_t *messages, int peer, uint64_t *sent, uint64_t *received)
{
	bnet_board_lock(messages->board);
	*sent = messages->counts[peer].sent;
	*received = messages->counts[peer].received;
	bnet_board_unlock(messages->board);
}

/* ---- the end ---- */

void bnet_messages_stop(bnet_messages_t *messages)
{
	bnet_board_lock(messages->board);
	bnet_tagged_stop(messages->tagged);
	messages->idle = false;
	pthread_cond_broadcast(&messages->work);
	bnet_board_unlock(messages->board);
}

/* Tickets, and those who wait for them, may outlive the messages, but not touch them. */
static void await_helpers(struct bnet_messages *messages)
{
	bnet_board_lock(messages->board);
	messages->board->help = NULL;
	while (messages->helpers > 0)
		bnet_board_wait(messages->board);
	bnet_board_unlock(messages->board);
}

void bnet_messages_destroy(bnet_messages_t *messages)
{
	if (messages == NULL)
		return;
	bnet_messages_stop(messages);
	pthread_join(messages->thread, NULL);
	await_helpers(messages);
	bnet_tagged_destroy(messages->tagged);
	free_messages(messages);
}
