/* SPDX-License-Identifier: MIT
 *
 * Operations that another thread carries out: a ticket for each, to wait for its end and ask for its result. Tickets
 * belong to a board, which is what their waiters share. Any thread.
 *
 * Both are counted: a ticket is held by who carries it out, until its end, and by the caller; a board by its owner and
 * by its tickets. So a caller may keep a ticket longer than the owner keeps the board.
 */
#ifndef BNET_TICKET_H
#define BNET_TICKET_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <time.h>

#include "bagua_net_host.h"

struct bnet_ticket;

/* Does the work that a waiter waits for, on its thread. Under the lock, which it may leave for a while. Returns when
 * the ticket is over or that time has come; false at once if somebody else does the work. */
typedef bool bnet_board_help(void *owner, const struct bnet_ticket *ticket, const struct timespec *until);

struct bnet_board {
	pthread_mutex_t lock; /* also guards what its owner keeps beside it */
	pthread_cond_t changed;
	uint64_t ended;   /* tickets that are over */
	unsigned process; /* in a child of fork() the lock may be held for ever, and nobody carries out anything */
	int holders;
	bnet_board_help *help; /* NULL: waiters only wait */
	void *owner;
};

struct bnet_ticket {
	struct bnet_board *board;
	int holders;
	atomic_bool over; /* set under the lock, after the result */
	int rc;
	int peer;    /* of a message; else -1 */
	char *error; /* NULL, or the reason */
};

/* NULL: out of memory. */
struct bnet_board *bnet_board_new(void);
void bnet_board_lock(struct bnet_board *board);
void bnet_board_unlock(struct bnet_board *board);
/* The owner does not use it any more. Not under the lock. */
void bnet_board_release(struct bnet_board *board);

/* So many seconds from now. */
struct timespec bnet_board_after(double seconds);
bool bnet_board_passed(const struct timespec *until);

/* The following are called under the lock. */

void bnet_board_wake(struct bnet_board *board);
void bnet_board_wait(struct bnet_board *board);
/* The same, until a time of bnet_board_after: false once that has come. */
bool bnet_board_wait_until(struct bnet_board *board, const struct timespec *until);
/* Prepares a zeroed ticket, which may be the head of a larger object that free() frees. */
void bnet_ticket_begin(struct bnet_ticket *ticket, struct bnet_board *board);
/* A ticket that was never handed out. */
void bnet_ticket_cancel(struct bnet_ticket *ticket);
/* The operation has ended: nobody touches its buffers any more. */
void bnet_ticket_finish(struct bnet_ticket *ticket, int rc, int peer, const char *error);

#endif
