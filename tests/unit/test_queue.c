/* SPDX-License-Identifier: MIT
 *
 * The queue of collectives: threads as ranks, real sockets on the loopback interface and shared memory.
 */
#include <errno.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bagua_net_host.h"
#include "check.h"
#include "ranks.h"

#define TIMEOUT_S 60
#define DEADLINE_S 250
#define OPERATIONS 100

static bnet_op_t sum(const float *send, float *recv, size_t count)
{
	return (bnet_op_t){.kind = BNET_COLL_ALLREDUCE,
			   .dtype = BNET_FLOAT32,
			   .op = BNET_SUM,
			   .send = send,
			   .recv = recv,
			   .count = count};
}

static bnet_queue_t *queue_of(struct rank *rank)
{
	bnet_queue_t *queue;

	check_int(bnet_queue_create(&queue, rank->coll), 0);
	return queue;
}

static void connect_queue(struct rank *rank, bnet_queue_t *queue)
{
	const size_t bytes = (size_t)rank->nranks * bnet_coll_handle_size(rank->coll);

	check_int(bnet_queue_connect(queue, rank->group->rows, bytes, TIMEOUT_S), 0);
}

/* The queue destroys the group. */
static void end(struct rank *rank, bnet_queue_t *queue)
{
	bnet_queue_destroy(queue);
	rank->coll = NULL;
}

static void check_result(bnet_ticket_t *ticket, int rc, const char *word)
{
	bnet_result_t result;

	check_int(bnet_ticket_wait(ticket, TIMEOUT_S), 0);
	check_int(bnet_ticket_result(ticket, &result), 0);
	if (result.rc != rc)
		fprintf(stderr, "%s\n", result.error != NULL ? result.error : "no reason");
	check_int(result.rc, rc);
	check_int(result.peer, -1);
	check((result.error != NULL) == (rc != 0));
	check(word == NULL || strstr(result.error, word) != NULL);
	bnet_ticket_release(ticket);
}

/* ---- bodies ---- */

/* Posts before the group is connected, then runs one on its own thread; some tickets are released early. */
static void in_order(struct rank *rank)
{
	bnet_queue_t *queue = queue_of(rank);
	bnet_ticket_t *tickets[OPERATIONS], *own;
	float *value = calloc(1, sizeof(float)), other = 1;
	bnet_op_t op = sum(value, value, 1), own_op = sum(&other, &other, 1);
	uint64_t seen, ended;
	float expected = 1;

	check(value != NULL);
	*value = 1;
	for (int i = 0; i < OPERATIONS; i++) {
		check_int(bnet_queue_post(queue, &op, TIMEOUT_S, &tickets[i]), 0);
		expected = i < 8 ? expected * (float)rank->nranks : expected;
		op.op = i < 7 ? BNET_SUM : BNET_MAX;
		if (i % 3 == 0) {
			bnet_ticket_release(tickets[i]);
			tickets[i] = NULL;
		}
	}
	check_int(bnet_ticket_wait(tickets[1], 0), -ETIMEDOUT);
	check_int(bnet_queue_posted(queue, &ended), OPERATIONS);
	check_int(ended, 0);
	connect_queue(rank, queue);
	check_int(bnet_queue_run(queue, &own_op, TIMEOUT_S, NULL, &own), 0); /* waits its turn */
	check_result(own, 0, NULL);
	for (int i = 0; i < OPERATIONS; i++)
		if (tickets[i] != NULL)
			check_result(tickets[i], 0, NULL);
	check(*value == expected);
	check(other == (float)rank->nranks);
	seen = bnet_queue_ended(queue, UINT64_MAX);
	check_int(seen, OPERATIONS + 1);
	check_int(bnet_queue_run(queue, &own_op, TIMEOUT_S, NULL, &own), 0);
	check_int(bnet_ticket_wait(own, 0), 0); /* over on return: nothing else was in progress */
	check_int(bnet_queue_ended(queue, seen), seen + 1);
	bnet_queue_close(queue);
	check_int(bnet_queue_drain(queue, TIMEOUT_S), 0);
	check_int(bnet_queue_ended(queue, seen + 1), seen + 1);
	check_int(bnet_queue_post(queue, &op, TIMEOUT_S, &tickets[0]), -ESHUTDOWN);
	check(tickets[0] == NULL);
	check_int(bnet_queue_posted(queue, &ended), OPERATIONS + 2);
	check_int(ended, OPERATIONS + 2);
	end(rank, queue);
	check_result(own, 0, NULL); /* a ticket outlives its queue */
	free(value);
}

/* What callbacks post, while their operation has its turn, runs before what was posted earlier by others. */
struct callbacks {
	bnet_queue_t *queue;
	bnet_ticket_t *of;
	float *value;
	bnet_ticket_t *child;
};

static void *call_back(void *arg)
{
	struct callbacks *callbacks = arg;
	bnet_op_t op = sum(callbacks->value, callbacks->value, 1);

	check_int(bnet_ticket_wait(callbacks->of, TIMEOUT_S), 0);
	bnet_queue_enter(callbacks->queue, callbacks->of);
	check_int(bnet_queue_post(callbacks->queue, &op, TIMEOUT_S, &callbacks->child), 0);
	bnet_queue_leave(callbacks->queue, callbacks->of);
	return NULL;
}

static void turns(struct rank *rank)
{
	bnet_queue_t *queue = queue_of(rank);
	bnet_ticket_t *first, *later;
	float value = 1, other = 1;
	bnet_op_t op = sum(&value, &value, 1), after = sum(&other, &other, 1);
	struct callbacks callbacks = {.queue = queue, .value = &value};
	pthread_t thread;

	check_int(bnet_queue_post(queue, &op, TIMEOUT_S, &first), 0);
	check_int(bnet_queue_hold(queue, first), 1); /* no rows yet: it cannot be over */
	check_int(bnet_queue_hold(queue, first), 0);
	check_int(bnet_queue_post(queue, &after, TIMEOUT_S, &later), 0);
	callbacks.of = first;
	connect_queue(rank, queue);
	check_int(bnet_ticket_wait(first, TIMEOUT_S), 0);
	check_int(bnet_ticket_over(later), 0); /* the turn */
	check_int(pthread_create(&thread, NULL, call_back, &callbacks), 0);
	check_int(pthread_join(thread, NULL), 0);
	check_int(bnet_ticket_wait(later, TIMEOUT_S), 0);
	check_int(bnet_ticket_over(callbacks.child), 1); /* it was first */
	check_int(bnet_queue_hold(queue, later), 0);     /* over */
	bnet_ticket_release(first);
	bnet_ticket_release(later);
	bnet_ticket_release(callbacks.child);
	end(rank, queue);
}

static void without_rows(struct rank *rank)
{
	bnet_queue_t *queue = queue_of(rank);
	bnet_ticket_t *ticket;
	float value = 1;
	bnet_op_t op = sum(&value, &value, 1);

	check_int(bnet_queue_post(queue, &op, TIMEOUT_S, &ticket), 0);
	bnet_queue_fail(queue, "nobody else is here");
	check_result(ticket, -ETIMEDOUT, "nobody else");
	check_int(bnet_queue_run(queue, &op, TIMEOUT_S, NULL, &ticket), 0);
	check_result(ticket, -ETIMEDOUT, "nobody else");
	end(rank, queue);
}

/* A bad argument fails its own operation, and a timeout all that follow. */
static void failures(struct rank *rank)
{
	bnet_queue_t *queue = queue_of(rank);
	bnet_ticket_t *bad, *good, *late, *after;
	float value = 1;
	bnet_op_t op = sum(&value, &value, 1), wrong = op;

	wrong.dtype = 99;
	connect_queue(rank, queue);
	check_int(bnet_queue_post(queue, &wrong, TIMEOUT_S, &bad), 0);
	check_int(bnet_queue_post(queue, &op, TIMEOUT_S, &good), 0);
	check_result(bad, -EINVAL, "99");
	check_result(good, 0, NULL);
	if (rank->rank == 0) {
		check_int(bnet_queue_post(queue, &op, 0.1, &late), 0);
		check_int(bnet_queue_post(queue, &op, TIMEOUT_S, &after), 0);
		check_result(late, -ETIMEDOUT, "rank 1");
		check_result(after, -ETIMEDOUT, "rank 1");
	}
	pthread_barrier_wait(&rank->group->barrier);
	end(rank, queue);
}

static _Thread_local int asked;

static int at_the_third_time(void)
{
	return ++asked == 3;
}

static void interrupted(struct rank *rank)
{
	bnet_queue_t *queue = queue_of(rank);
	bnet_ticket_t *ticket;
	float value = 1;
	bnet_op_t op = sum(&value, &value, 1);

	connect_queue(rank, queue);
	check_int(bnet_queue_run(queue, &op, TIMEOUT_S, NULL, &ticket), 0);
	check_result(ticket, 0, NULL);
	if (rank->rank == 0) {
		check_int(bnet_queue_run(queue, &op, TIMEOUT_S, at_the_third_time, &ticket), 0);
		check_int(asked, 3);
		check_result(ticket, -EINTR, "interrupted");
	}
	pthread_barrier_wait(&rank->group->barrier);
	end(rank, queue);
}

static void aborted(struct rank *rank)
{
	bnet_queue_t *queue = queue_of(rank);
	bnet_ticket_t *first, *second;
	float value = 1;
	bnet_op_t op = sum(&value, &value, 1);

	connect_queue(rank, queue);
	if (rank->rank == 0) {
		check_int(bnet_queue_post(queue, &op, 0, &first), 0);
		check_int(bnet_queue_post(queue, &op, 0, &second), 0);
		bnet_coll_abort(rank->coll);
		check_result(first, -ECANCELED, "aborted");
		check_result(second, -ECANCELED, "aborted");
	}
	pthread_barrier_wait(&rank->group->barrier);
	end(rank, queue);
}

/* A child of fork() finds its parent's operations over, whoever holds the lock, and leaves them alone. */
static void forked(struct rank *rank)
{
	bnet_queue_t *queue = queue_of(rank);
	bnet_ticket_t *ticket;
	float value = 1;
	bnet_op_t op = sum(&value, &value, 1);
	int status = 0;

	check_int(bnet_queue_post(queue, &op, TIMEOUT_S, &ticket), 0);
	if (rank->rank == 0) {
		pid_t child = fork();

		if (child == 0) {
			bnet_result_t result;

			alarm(10);
			check_int(bnet_ticket_wait(ticket, TIMEOUT_S), 0);
			check_int(bnet_ticket_result(ticket, &result), 0);
			check_int(result.rc, -ECHILD);
			bnet_ticket_release(ticket);
			_exit(0);
		}
		check_int(waitpid(child, &status, 0), child);
		check_int(status, 0);
	}
	connect_queue(rank, queue);
	check_result(ticket, 0, NULL);
	end(rank, queue);
}

int main(void)
{
	static void (*const bodies[])(struct rank *) = {in_order, failures, interrupted, aborted, forked};

	setenv("NCCL_SOCKET_IFNAME", "lo", 1);
	alarm(DEADLINE_S);
	run_group(&(struct group){0}, 12, 2, turns);
	run_group(&(struct group){0}, 12, 1, without_rows);
	for (int shares = 0; shares < 2; shares++)
		for (size_t i = 0; i < sizeof(bodies) / sizeof(bodies[0]); i++)
			run_group(&(struct group){.shares = shares}, 12, 2, bodies[i]);
	return 0;
}
