/* SPDX-License-Identifier: MIT
 *
 * Tagged messages that somebody else moves: callers that wait, and the library's thread where nobody does. Threads as
 * ranks, real sockets on the loopback interface.
 */
#include <errno.h>
#include <sched.h>
#include <unistd.h>

#include "bagua_net_host.h"
#include "check.h"
#include "queue/messages.h"
#include "ranks.h"

#define TIMEOUT_S 60
#define DEADLINE_S 250
#define THREADS 3
#define ROUNDS 60
#define LARGEST 100000

static bnet_messages_t *messages_of(struct rank *rank)
{
	bnet_tagged_t *tagged;
	bnet_messages_t *messages;

	check_int(bnet_tagged_create(&tagged, rank->coll, rank->group->rows), 0);
	rank->coll = NULL; /* belongs to the messages from now on */
	check_int(bnet_messages_create(&messages, tagged), 0);
	return messages;
}

/* All ranks have what they wait for. */
static void end(struct rank *rank, bnet_messages_t *messages)
{
	check_int(bnet_messages_drain(messages, TIMEOUT_S), 0);
	pthread_barrier_wait(&rank->group->barrier);
	bnet_messages_destroy(messages);
}

static void check_result(bnet_ticket_t *ticket, int rc, int peer)
{
	bnet_result_t result;

	check_int(bnet_ticket_wait(ticket, TIMEOUT_S), 0);
	check_int(bnet_ticket_result(ticket, &result), 0);
	check_int(result.rc, rc);
	check_int(bnet_ticket_over(ticket), rc == 0 ? 1 : -1);
	if (rc == 0)
		check_int(result.peer, peer);
	bnet_ticket_release(ticket);
}

static int other(const struct rank *rank)
{
	return 1 - rank->rank;
}

/* ---- callers that wait ---- */

struct player {
	struct rank *rank;
	bnet_messages_t *messages;
	int tag;
};

static void fill(unsigned char *buf, size_t bytes, int round, int tag)
{
	for (size_t i = 0; i < bytes; i++)
		buf[i] = (unsigned char)(i + (size_t)(round * 7 + tag));
}

/* Small messages, large ones, and empty ones. */
static size_t bytes_of(int round)
{
	static const size_t sizes[] = {1, 64, 0, 9000, LARGEST};

	return sizes[(size_t)round % (sizeof(sizes) / sizeof(sizes[0]))];
}

static void *play(void *arg)
{
	const struct player *player = arg;
	unsigned char *mine = malloc(LARGEST), *theirs = malloc(LARGEST);
	const int peer = other(player->rank), tag = player->tag;
	bnet_ticket_t *ticket;

	check(mine != NULL && theirs != NULL);
	for (int round = 0; round < ROUNDS; round++) {
		const size_t bytes = bytes_of(round);

		fill(mine, bytes, round, tag);
		for (int turn = 0; turn < 2; turn++) {
			if (turn == player->rank->rank)
				check_int(bnet_messages_send(player->messages, mine, bytes, peer, tag, &ticket), 0);
			else
				check_int(bnet_messages_recv(player->messages, theirs, bytes, peer, tag, &ticket), 0);
			check_result(ticket, 0, peer);
		}
		check(bytes == 0 || memcmp(mine, theirs, bytes) == 0);
	}
	free(mine);
	free(theirs);
	return NULL;
}

/* Several threads of a rank, each with a tag of its own: one drives, and another one follows it. */
static void to_and_fro(struct rank *rank)
{
	bnet_messages_t *messages = messages_of(rank);
	struct player players[THREADS];
	pthread_t threads[THREADS];
	uint64_t sent, received;

	for (int i = 0; i < THREADS; i++) {
		players[i] = (struct player){rank, messages, i};
		check_int(pthread_create(&threads[i], NULL, play, &players[i]), 0);
	}
	for (int i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	bnet_messages_count(messages, other(rank), &sent, &received);
	check_int(sent, THREADS * ROUNDS);
	check_int(received, THREADS * ROUNDS);
	end(rank, messages);
}

/* ---- nobody waits ---- */

/* Nobody asks a ticket, and one caller has stopped waiting. */
static void unattended(struct rank *rank)
{
	bnet_messages_t *messages = messages_of(rank);
	unsigned char *buf = calloc(ROUNDS, LARGEST), *first = calloc(1, LARGEST);
	bnet_ticket_t *ticket;
	uint64_t seen = 0;

	check(buf != NULL && first != NULL);
	if (rank->rank == 0) {
		check_int(bnet_messages_recv(messages, first, LARGEST, 1, 0, &ticket), 0);
		check_int(bnet_ticket_wait(ticket, 0.01), -ETIMEDOUT);
		check_int(bnet_ticket_over(ticket), 0);
		bnet_ticket_release(ticket);
	} else {
		fill(first, LARGEST, 1, 1);
	}
	pthread_barrier_wait(&rank->group->barrier);
	for (int round = 0; round < ROUNDS; round++) {
		unsigned char *at = buf + (size_t)round * LARGEST;

		if (rank->rank == 1 && round == 0) {
			check_int(bnet_messages_send(messages, first, LARGEST, 0, 0, &ticket), 0);
			bnet_ticket_release(ticket);
		}
		if (rank->rank == 1) {
			fill(at, bytes_of(round), round, 0);
			check_int(bnet_messages_send(messages, at, bytes_of(round), 0, 0, &ticket), 0);
		} else {
			check_int(bnet_messages_recv(messages, at, bytes_of(round), 1, 0, &ticket), 0);
		}
		bnet_ticket_release(ticket);
	}
	while (seen < ROUNDS + 1)
		seen = bnet_messages_ended(messages, seen);
	for (int round = 0; round < ROUNDS; round++) {
		unsigned char expected[9000];
		const size_t bytes = bytes_of(round) < sizeof(expected) ? bytes_of(round) : sizeof(expected);

		fill(expected, bytes, round, 0);
		check(bytes == 0 || memcmp(buf + (size_t)round * LARGEST, expected, bytes) == 0);
	}
	end(rank, messages);
	free(buf);
	free(first);
}

/* ---- the end ---- */

static void *wait_in_vain(void *arg)
{
	check_result(arg, -ECANCELED, -1);
	return NULL;
}

static int helpers(bnet_messages_t *messages)
{
	int count;

	bnet_board_lock(messages->board);
	count = messages->driven ? messages->helpers : 0;
	bnet_board_unlock(messages->board);
	return count;
}

/* Two callers wait, and one of them drives, when the messages end. */
static void ended_under_waiters(struct rank *rank)
{
	bnet_messages_t *messages = messages_of(rank);
	bnet_ticket_t *tickets[2];
	pthread_t waiters[2];
	char byte[2];

	for (int i = 0; i < 2; i++) {
		check_int(bnet_messages_recv(messages, &byte[i], 1, other(rank), i, &tickets[i]), 0);
		check_int(pthread_create(&waiters[i], NULL, wait_in_vain, tickets[i]), 0);
	}
	while (helpers(messages) < 2)
		sched_yield();
	pthread_barrier_wait(&rank->group->barrier);
	if (rank->rank == 0)
		bnet_messages_stop(messages);
	bnet_messages_destroy(messages);
	for (int i = 0; i < 2; i++)
		pthread_join(waiters[i], NULL);
}

int main(void)
{
	void (*const bodies[])(struct rank *) = {to_and_fro, unattended, ended_under_waiters};

	setenv("NCCL_SOCKET_IFNAME", "lo", 1);
	alarm(DEADLINE_S);
	for (size_t i = 0; i < sizeof(bodies) / sizeof(bodies[0]); i++) {
		run_group(&(struct group){0}, 12, 2, bodies[i]);
		run_group(&(struct group){.shares = true}, 12, 2, bodies[i]);
	}
	return 0;
}
