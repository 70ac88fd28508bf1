/* SPDX-License-Identifier: MIT
 *
 * What ends a wait for another rank of the host, and what does not. One thread plays both ranks: while one waits, it is
 * asked ten times a second whether it is still wanted, and then the other one acts.
 */
#include <errno.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"
#include "shared/wait.h"

/* As long as ten questions take, so that a slow machine is no difference. */
#define TIMEOUT_NS 1000000000
#define QUESTIONS 15

static struct bnet_segment ends[2];
static int questions;

static void open_ends(void)
{
	questions = 0;
	check_int(bnet_segment_create(&ends[0], 2), 0);
	check_int(bnet_segment_attach(&ends[1], dup(ends[0].fd), 2, 1), 0);
}

static void close_ends(void)
{
	bnet_segment_leave(&ends[1], "");
	bnet_segment_leave(&ends[0], "");
}

static int wait_for_the_other(int64_t timeout_ns, int (*meanwhile)(void))
{
	const atomic_bool aborted = false;
	const struct bnet_shared_wait_limits limits = {.timeout_ns = timeout_ns,
						       .aborted = &aborted,
						       .interrupted = meanwhile};

	return bnet_shared_await(&ends[0], 1, BNET_SHARED_PUT, 1, &limits);
}

static int idle(void)
{
	questions++;
	return 0;
}

/* The network moves, and at last the round is there. */
static int move(void)
{
	bnet_shared_moved(&ends[1]);
	if (++questions == QUESTIONS)
		bnet_shared_publish(&ends[1], BNET_SHARED_PUT, 1);
	return 0;
}

static int stop(void)
{
	return 1;
}

static const struct bnet_shared_note this_call = {{7, 1, 1}}, other_call = {{7, 2, 1}}, next_call = {{8, 2, 1}};

static int call_something_else(void)
{
	bnet_shared_begin(&ends[1], &other_call);
	return ++questions > QUESTIONS;
}

static int go_ahead(void)
{
	bnet_shared_begin(&ends[1], &next_call);
	return ++questions > QUESTIONS;
}

static void ends_of_waits(void)
{
	open_ends();
	check_int(wait_for_the_other(TIMEOUT_NS, idle), -ETIMEDOUT);
	check(questions > 0);
	check_int(wait_for_the_other(0, stop), -EINTR);
	bnet_shared_publish(&ends[1], BNET_SHARED_PUT, 1);
	check_int(wait_for_the_other(TIMEOUT_NS, stop), 0);
	close_ends();
}

/* It has inherited what its parent knows of itself. */
static void a_child_that_dies(void)
{
	pid_t child;

	check_int(bnet_segment_create(&ends[0], 2), 0);
	child = fork();
	if (child == 0)
		_exit(bnet_segment_attach(&ends[1], dup(ends[0].fd), 2, 1) != 0);
	check_int(waitpid(child, &(int){0}, 0), child);
	check(bnet_segment_process_gone(&ends[0], 1));
	bnet_segment_leave(&ends[0], "");
}

/* A rank that the network still serves is no reason to give up. */
static void timeout_without_progress_only(void)
{
	open_ends();
	check_int(wait_for_the_other(TIMEOUT_NS, move), 0);
	check_int(questions, QUESTIONS);
	close_ends();
}

static void calls_that_differ(void)
{
	struct bnet_shared_note note;

	open_ends();
	check(!bnet_shared_current(&ends[0], 1, &note));
	bnet_shared_begin(&ends[0], &this_call);
	check_int(wait_for_the_other(0, call_something_else), -EPROTO);
	check(bnet_shared_current(&ends[0], 1, &note) && memcmp(&note, &other_call, sizeof(note)) == 0);
	check_int(wait_for_the_other(0, go_ahead), -EINTR); /* another number: it is ahead, or behind */
	close_ends();
}

static void a_rank_that_leaves(void)
{
	open_ends();
	bnet_segment_say_left(&ends[1], "it has failed");
	check_int(wait_for_the_other(0, idle), -ECONNRESET);
	close_ends();
}

int main(void)
{
	ends_of_waits();
	timeout_without_progress_only();
	calls_that_differ();
	a_rank_that_leaves();
	a_child_that_dies();
	return 0;
}
