/* SPDX-License-Identifier: MIT
 *
 * Ranks of one host that have no memory for what they know of each other: an error, and the group can try again.
 * Threads as ranks.
 */
#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#include "check.h"
#include "ranks.h"

#define DEADLINE_S 100
/* A rank's lists of the others. */
#define LISTS 6

/* ---- the linker has the library call this one (CMakeLists.txt) ---- */

static _Thread_local int fails_at; /* 0: none fails; 1: the next one does */

void *__real_calloc(size_t number, size_t size);
void *__wrap_calloc(size_t number, size_t size);
void *__wrap_calloc(size_t number, size_t size)
{
	return fails_at > 0 && --fails_at == 0 ? NULL : __real_calloc(number, size);
}

/* ---- bodies ---- */

static void connects_later(struct rank *rank)
{
	for (int list = 1; list <= LISTS; list++) {
		fails_at = list;
		check_int(bnet_coll_connect(rank->coll, rank->group->rows, 0), -ENOMEM);
		check(strstr(bnet_coll_error(rank->coll), "connect: out of memory") != NULL);
		check_int(bnet_coll_barrier(rank->coll), -ENOTCONN);
	}
	connect_rank(rank);
	check_ok(rank, bnet_coll_barrier(rank->coll));
}

static void check_barrier(bnet_queue_t *queue)
{
	const bnet_op_t barrier = {.kind = BNET_COLL_BARRIER};
	bnet_ticket_t *ticket;
	bnet_result_t result;

	check_int(bnet_queue_run(queue, &barrier, 0, NULL, &ticket), 0);
	check_int(bnet_ticket_result(ticket, &result), 0);
	check_int(result.rc, -ENOMEM);
	check(strstr(result.error, "connect: out of memory") != NULL);
	bnet_ticket_release(ticket);
}

/* Each of its operations fails, for this reason. */
static void a_queue_fails(struct rank *rank)
{
	const size_t bytes = (size_t)rank->nranks * bnet_coll_handle_size(rank->coll);
	bnet_queue_t *queue;

	check_int(bnet_queue_create(&queue, rank->coll), 0);
	check_int(bnet_queue_connect(queue, rank->group->rows, bytes, 0), 0);
	fails_at = 2; /* after the ticket */
	check_barrier(queue);
	check_barrier(queue);
	bnet_queue_destroy(queue);
	rank->coll = NULL;
}

int main(void)
{
	setenv("NCCL_SOCKET_IFNAME", "lo", 1);
	alarm(DEADLINE_S);
	run_group(&(struct group){.shares = true}, 12, 2, connects_later);
	run_group(&(struct group){.shares = true}, 12, 2, a_queue_fails);
	return 0;
}
