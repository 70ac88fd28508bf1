/* SPDX-License-Identifier: MIT
 *
 * See ticket.h.
 */
#include "queue/ticket.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/thread.h"

#define NS_PER_S 1000000000L
/* Longer than any job, and short enough for every clock. */
#define MOST_SECONDS 1e8

/* ---- processes: getpid() is a system call, and every look at a ticket asks ---- */

static pthread_once_t once = PTHREAD_ONCE_INIT;
static atomic_uint forks; /* since this code was loaded, in the line of this process's ancestors */

static void count_fork(void)
{
	atomic_fetch_add_explicit(&forks, 1, memory_order_relaxed);
}

static void watch_forks(void)
{
	pthread_atfork(NULL, NULL, count_fork);
}

static unsigned this_process(void)
{
	return atomic_load_explicit(&forks, memory_order_relaxed);
}

/* ---- boards ---- */

static bool init_locks(struct bnet_board *board)
{
	return bnet_cond_init(&board->changed) == 0 && pthread_mutex_init(&board->lock, NULL) == 0;
}

struct bnet_board *bnet_board_new(void)
{
	struct bnet_board *board = calloc(1, sizeof(*board));

	pthread_once(&once, watch_forks);
	if (board != NULL && !init_locks(board)) {
		free(board);
		return NULL;
	}
	if (board == NULL)
		return NULL;
	board->holders = 1;
	board->process = this_process();
	return board;
}

void bnet_board_lock(struct bnet_board *board)
{
	pthread_mutex_lock(&board->lock);
}

void bnet_board_unlock(struct bnet_board *board)
{
	pthread_mutex_unlock(&board->lock);
}

/* Unlocks, and frees what nobody holds. */
static void unlock_and_free(struct bnet_board *board)
{
	const bool held = board->holders > 0;

	bnet_board_unlock(board);
	if (held)
		return;
	pthread_cond_destroy(&board->changed);
	pthread_mutex_destroy(&board->lock);
	free(board);
}

void bnet_board_release(struct bnet_board *board)
{
	bnet_board_lock(board);
	board->holders--;
	unlock_and_free(board);
}

void bnet_board_wake(struct bnet_board *board)
{
	pthread_cond_broadcast(&board->changed);
}

bool bnet_board_passed(const struct timespec *until)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec != until->tv_sec ? now.tv_sec > until->tv_sec : now.tv_nsec >= until->tv_nsec;
}

void bnet_board_wait(struct bnet_board *board)
{
	pthread_cond_wait(&board->changed, &board->lock);
}

struct timespec bnet_board_after(double seconds)
{
	const double bounded = seconds < MOST_SECONDS ? seconds : MOST_SECONDS;
	const time_t whole = (time_t)bounded;
	struct timespec when;

	clock_gettime(CLOCK_MONOTONIC, &when);
	when.tv_sec += whole;
	when.tv_nsec += (long)((bounded - (double)whole) * NS_PER_S);
	if (when.tv_nsec >= NS_PER_S) {
		when.tv_sec++;
		when.tv_nsec -= NS_PER_S;
	}
	return when;
}

bool bnet_board_wait_until(struct bnet_board *board, const struct timespec *until)
{
	return pthread_cond_timedwait(&board->changed, &board->lock, until) == 0;
}

/* ---- tickets ---- */

void bnet_ticket_begin(struct bnet_ticket *ticket, struct bnet_board *board)
{
	*ticket = (struct bnet_ticket){.board = board, .holders = 2, .peer = -1};
	board->holders++;
}

static void let_go(struct bnet_ticket *ticket, int holders)
{
	ticket->holders -= holders;
	if (ticket->holders > 0)
		return;
	ticket->board->holders--;
	free(ticket->error);
	free(ticket);
}

void bnet_ticket_cancel(struct bnet_ticket *ticket)
{
	let_go(ticket, 2);
}

void bnet_ticket_finish(struct bnet_ticket *ticket, int rc, int peer, const char *error)
{
	struct bnet_board *board = ticket->board;

	ticket->rc = rc;
	ticket->peer = peer;
	ticket->error = error != NULL ? strdup(error) : NULL;
	atomic_store_explicit(&ticket->over, true, memory_order_release);
	board->ended++;
	let_go(ticket, 1);
	bnet_board_wake(board);
}

/* ---- public ---- */

static bool is_forked(const bnet_ticket_t *ticket)
{
	return ticket->board->process != this_process();
}

int bnet_ticket_wait(bnet_ticket_t *ticket, double seconds)
{
	const struct timespec until = bnet_board_after(seconds);
	bool over;

	if (is_forked(ticket))
		return 0;
	bnet_board_lock(ticket->board);
	while (!ticket->over && !bnet_board_passed(&until))
		if (ticket->board->help == NULL || !ticket->board->help(ticket->board->owner, ticket, &until))
			bnet_board_wait_until(ticket->board, &until);
	over = ticket->over;
	bnet_board_unlock(ticket->board);
	return over ? 0 : -ETIMEDOUT;
}

int bnet_ticket_over(bnet_ticket_t *ticket)
{
	if (is_forked(ticket))
		return -1;
	if (!atomic_load_explicit(&ticket->over, memory_order_acquire))
		return 0;
	return ticket->rc == 0 ? 1 : -1;
}

int bnet_ticket_result(bnet_ticket_t *ticket, bnet_result_t *out)
{
	bool over;

	if (is_forked(ticket)) {
		*out = (bnet_result_t){.rc = -ECHILD, .peer = -1, .error = "it belongs to the parent process"};
		return 0;
	}
	bnet_board_lock(ticket->board);
	over = ticket->over;
	*out = (bnet_result_t){.rc = ticket->rc, .peer = ticket->peer, .error = ticket->error};
	bnet_board_unlock(ticket->board);
	return over ? 0 : -EINPROGRESS;
}

void bnet_ticket_release(bnet_ticket_t *ticket)
{
	struct bnet_board *board;

	if (ticket == NULL || is_forked(ticket))
		return;
	board = ticket->board;
	bnet_board_lock(board);
	let_go(ticket, 1);
	unlock_and_free(board);
}
