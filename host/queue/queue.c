/* SPDX-License-Identifier: MIT
 *
 * See queue.h. Any thread, but for the last call, which is bnet_queue_destroy.
 */
#include "queue/queue.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/thread.h"
#include "coll/coll.h"

/* Seconds for which callbacks may keep others' operations from running while none of their own ends. */
#define TURN_S 10.0

/* ---- lists ---- */

static void empty(struct bnet_list *list)
{
	*list = (struct bnet_list){.last = &list->first};
}

static void append_to(struct bnet_list *list, struct bnet_posted *posted)
{
	*list->last = posted;
	list->last = &posted->next;
}

static struct bnet_posted *take_first(struct bnet_list *list)
{
	struct bnet_posted *posted = list->first;

	list->first = posted->next;
	if (list->first == NULL)
		list->last = &list->first;
	return posted;
}

/* ---- the beginning ---- */

int bnet_queue_create(bnet_queue_t **out, bnet_coll_t *coll)
{
	struct bnet_queue *queue = calloc(1, sizeof(*queue));

	*out = NULL;
	if (queue == NULL)
		return -ENOMEM;
	queue->board = bnet_board_new();
	if (queue->board == NULL) {
		free(queue);
		return -ENOMEM;
	}
	queue->coll = coll;
	empty(&queue->posts);
	*out = queue;
	return 0;
}

/* ---- turns, under the lock ---- */

static void begin_turn(struct bnet_queue *queue, struct bnet_posted *posted)
{
	struct bnet_turn *turn = posted->turn;

	posted->turn = NULL;
	turn->until = bnet_board_after(TURN_S);
	turn->below = queue->turn;
	queue->turn = turn;
}

/* NULL: the operation has no turn, or not any more. */
static struct bnet_turn *turn_of(const struct bnet_queue *queue, const bnet_ticket_t *ticket)
{
	struct bnet_turn *turn = queue->turn;

	while (turn != NULL && turn->ticket != ticket)
		turn = turn->below;
	return turn;
}

/* Where the calling thread's posts go. */
static struct bnet_list *own_list(struct bnet_queue *queue)
{
	for (struct bnet_turn *turn = queue->turn; turn != NULL; turn = turn->below)
		if (turn->entered && !turn->left && pthread_equal(turn->thread, pthread_self()))
			return &turn->posts;
	return &queue->posts;
}

static bool may_end(const struct bnet_queue *queue, const struct bnet_turn *turn)
{
	return turn->posts.first == NULL && (turn->left || queue->closing || bnet_board_passed(&turn->until));
}

/* What runs next comes from this list. */
static struct bnet_list *list_in_turn(struct bnet_queue *queue)
{
	while (queue->turn != NULL && may_end(queue, queue->turn)) {
		struct bnet_turn *turn = queue->turn;

		queue->turn = turn->below;
		free(turn);
		bnet_board_wake(queue->board);
	}
	return queue->turn != NULL ? &queue->turn->posts : &queue->posts;
}

int bnet_queue_hold(bnet_queue_t *queue, bnet_ticket_t *ticket)
{
	struct bnet_posted *posted = (struct bnet_posted *)(void *)ticket;
	struct bnet_turn *turn = calloc(1, sizeof(*turn));
	bool held;

	if (turn == NULL)
		return 0;
	turn->ticket = ticket;
	empty(&turn->posts);
	bnet_board_lock(queue->board);
	held = !ticket->over && posted->turn == NULL;
	if (held)
		posted->turn = turn;
	bnet_board_unlock(queue->board);
	if (!held)
		free(turn);
	return held;
}

void bnet_queue_enter(bnet_queue_t *queue, bnet_ticket_t *ticket)
{
	struct bnet_turn *turn;

	bnet_board_lock(queue->board);
	turn = turn_of(queue, ticket);
	if (turn != NULL) {
		turn->entered = true;
		turn->thread = pthread_self();
	}
	bnet_board_unlock(queue->board);
}

void bnet_queue_leave(bnet_queue_t *queue, bnet_ticket_t *ticket)
{
	struct bnet_turn *turn;

	bnet_board_lock(queue->board);
	turn = turn_of(queue, ticket);
	if (turn != NULL)
		turn->left = true;
	bnet_board_wake(queue->board);
	bnet_board_unlock(queue->board);
}

/* ---- one operation ---- */

static int connect_once(struct bnet_queue *queue)
{
	if (!queue->has_tried)
		queue->connect_rc = bnet_coll_connect(queue->coll, queue->rows, queue->connect_timeout_s);
	queue->has_tried = true;
	return queue->connect_rc;
}

/* By the thread that has made the queue busy. Returns the result; *error: the reason, as long as the queue is busy. */
static int run(struct bnet_queue *queue, const struct bnet_posted *posted, const char **error)
{
	int rc;

	if (queue->rows == NULL) {
		*error = queue->failed;
		return -ETIMEDOUT;
	}
	queue->coll->interrupted = posted->interrupted;
	rc = connect_once(queue);
	if (rc == 0) {
		bnet_coll_set_timeout(queue->coll, posted->timeout_s);
		rc = bnet_coll_run(queue->coll, &posted->op);
	}
	*error = rc != 0 ? bnet_coll_error(queue->coll) : NULL;
	return rc;
}

/* Under the lock, which it leaves while the operation runs. */
static void run_unlocked(struct bnet_queue *queue, struct bnet_posted *posted)
{
	const char *error = NULL;
	int rc;

	queue->busy = true;
	bnet_board_unlock(queue->board);
	rc = run(queue, posted, &error);
	bnet_board_lock(queue->board);
	queue->busy = false;
	for (struct bnet_turn *turn = queue->turn; turn != NULL; turn = turn->below)
		turn->until = bnet_board_after(TURN_S);
	if (posted->turn != NULL)
		begin_turn(queue, posted);
	bnet_ticket_finish(&posted->ticket, rc, -1, error);
}

static bool over(const struct bnet_queue *queue)
{
	return queue->closing && queue->turn == NULL && queue->posts.first == NULL && !queue->busy;
}

static bool can_run(const struct bnet_queue *queue)
{
	return !queue->busy && (queue->rows != NULL || queue->hopeless);
}

/* ---- the thread ---- */

/* Until something changes, or the turn at the top has lasted too long. */
static void wait_for_change(struct bnet_queue *queue)
{
	if (queue->turn != NULL && queue->turn->posts.first == NULL)
		bnet_board_wait_until(queue->board, &queue->turn->until);
	else
		bnet_board_wait(queue->board);
}

static void *serve(void *arg)
{
	struct bnet_queue *queue = arg;

	bnet_board_lock(queue->board);
	for (;;) {
		struct bnet_list *list = list_in_turn(queue);

		if (list->first != NULL && can_run(queue))
			run_unlocked(queue, take_first(list));
		else if (over(queue))
			break;
		else
			wait_for_change(queue);
	}
	bnet_board_unlock(queue->board);
	return NULL;
}

/* Under the lock. */
static int start_thread(struct bnet_queue *queue)
{
	int rc;

	if (queue->has_thread)
		return 0;
	rc = bnet_thread_start(&queue->thread, serve, queue);
	queue->has_thread = rc == 0;
	return rc;
}

/* ---- posting ---- */

static int append(struct bnet_queue *queue, struct bnet_posted *posted)
{
	int rc = start_thread(queue);

	if (rc != 0)
		return rc;
	posted->interrupted = NULL; /* its caller can stop waiting without that */
	append_to(own_list(queue), posted);
	bnet_board_wake(queue->board);
	return 0;
}

static int post(struct bnet_queue *queue, struct bnet_posted *posted, bool now, bnet_ticket_t **out)
{
	struct bnet_list *list;
	int rc = 0;

	*out = NULL;
	if (posted == NULL)
		return -ENOMEM;
	bnet_board_lock(queue->board);
	bnet_ticket_begin(&posted->ticket, queue->board);
	list = list_in_turn(queue);
	queue->posted++;
	if (queue->closing)
		rc = -ESHUTDOWN;
	else if (now && list->first == NULL && list == own_list(queue) && can_run(queue))
		run_unlocked(queue, posted);
	else
		rc = append(queue, posted);
	if (rc == 0) {
		*out = &posted->ticket;
	} else {
		queue->posted--;
		bnet_ticket_cancel(&posted->ticket);
	}
	bnet_board_unlock(queue->board);
	return rc;
}

/* NULL: out of memory. */
static struct bnet_posted *new_posted(const bnet_op_t *op, double timeout_s, int (*interrupted)(void))
{
	struct bnet_posted *posted = calloc(1, sizeof(*posted));

	if (posted != NULL)
		*posted = (struct bnet_posted){.op = *op, .timeout_s = timeout_s, .interrupted = interrupted};
	return posted;
}

int bnet_queue_post(bnet_queue_t *queue, const bnet_op_t *op, double timeout_s, bnet_ticket_t **ticket)
{
	return post(queue, new_posted(op, timeout_s, NULL), false, ticket);
}

int bnet_queue_run(bnet_queue_t *queue, const bnet_op_t *op, double timeout_s, int (*interrupted)(void),
		   bnet_ticket_t **ticket)
{
	return post(queue, new_posted(op, timeout_s, interrupted), true, ticket);
}

uint64_t bnet_queue_ended(bnet_queue_t *queue, uint64_t seen)
{
	uint64_t ended;

	bnet_board_lock(queue->board);
	while (queue->board->ended == seen && !over(queue))
		bnet_board_wait(queue->board);
	ended = queue->board->ended;
	bnet_board_unlock(queue->board);
	return ended;
}

uint64_t bnet_queue_posted(bnet_queue_t *queue, uint64_t *ended)
{
	uint64_t posted;

	bnet_board_lock(queue->board);
	posted = queue->posted;
	*ended = queue->board->ended;
	bnet_board_unlock(queue->board);
	return posted;
}

/* ---- beginning and end ---- */

int bnet_queue_connect(bnet_queue_t *queue, const void *rows, size_t bytes, double timeout_s)
{
	void *copy = malloc(bytes);

	if (copy == NULL)
		return -ENOMEM;
	memcpy(copy, rows, bytes);
	bnet_board_lock(queue->board);
	if (queue->rows == NULL) {
		queue->rows = copy;
		queue->connect_timeout_s = timeout_s;
		copy = NULL;
	}
	bnet_board_wake(queue->board);
	bnet_board_unlock(queue->board);
	free(copy);
	return 0;
}

void bnet_queue_fail(bnet_queue_t *queue, const char *reason)
{
	char *copy = strdup(reason);

	bnet_board_lock(queue->board);
	if (!queue->hopeless) {
		queue->hopeless = true;
		queue->failed = copy;
		copy = NULL;
	}
	bnet_board_wake(queue->board);
	bnet_board_unlock(queue->board);
	free(copy);
}

void bnet_queue_close(bnet_queue_t *queue)
{
	bnet_board_lock(queue->board);
	queue->closing = true;
	bnet_board_wake(queue->board);
	bnet_board_unlock(queue->board);
}

int bnet_queue_drain(bnet_queue_t *queue, double seconds)
{
	const struct timespec until = bnet_board_after(seconds);
	bool done;

	bnet_board_lock(queue->board);
	while (!over(queue) && bnet_board_wait_until(queue->board, &until))
		;
	done = over(queue);
	bnet_board_unlock(queue->board);
	return done ? 0 : -ETIMEDOUT;
}

void bnet_queue_destroy(bnet_queue_t *queue)
{
	if (queue == NULL)
		return;
	bnet_queue_close(queue);
	bnet_board_lock(queue->board);
	while (!over(queue))
		bnet_board_wait(queue->board);
	bnet_board_unlock(queue->board);
	if (queue->has_thread)
		pthread_join(queue->thread, NULL);
	bnet_coll_destroy(queue->coll);
	bnet_board_release(queue->board);
	free(queue->rows);
	free(queue->failed);
	free(queue);
}
