/* SPDX-License-Identifier: MIT
 *
 * Tagged messages over the library's own tables: threads as ranks, real sockets on the loopback interface. Each rank's
 * thread posts and makes progress, except where a scenario says otherwise.
 */
#include <errno.h>

#include "tagged_pair.h"

/* Nothing, one byte, the largest EAGER, the smallest RTS, several chunks with a tail. */
static const size_t sizes[] = {0, 1, 8192, 8193, 3 * 1024 * 1024 + 5};
#define NSIZES (sizeof(sizes) / sizeof(sizes[0]))

static unsigned char byte_of(int from, int64_t tag, size_t i)
{
	return (unsigned char)((size_t)from * 31 + (size_t)tag * 7 + i + i / 251);
}

static unsigned char *new_message(int from, int64_t tag, size_t bytes)
{
	unsigned char *message = malloc(bytes + 1);

	check(message != NULL);
	for (size_t i = 0; i < bytes; i++)
		message[i] = byte_of(from, tag, i);
	return message;
}

static void check_message(const unsigned char *message, int from, int64_t tag, size_t bytes)
{
	for (size_t i = 0; i < bytes; i++)
		if (message[i] != byte_of(from, tag, i)) {
			fprintf(stderr, "byte %zu of %zu from %d with tag %lld is wrong\n", i, bytes, from,
				(long long)tag);
			exit(1);
		}
}

/* ---- every rank with every other one, received in another order than sent ---- */

static void any_order(struct rank *rank)
{
	struct endpoint *self = new_endpoint(rank);
	unsigned char *out[MAX_RANKS][NSIZES] = {{0}}, *in[MAX_RANKS][NSIZES] = {{0}};
	const bool sends_first = rank->rank % 2 == 0;

	for (int turn = 0; turn < 2; turn++) {
		for (int peer = 0; peer < rank->nranks; peer++) {
			for (size_t i = 0; i < NSIZES && peer != rank->rank; i++) {
				const size_t back = NSIZES - 1 - i;

				if ((turn == 0) == sends_first) {
					out[peer][i] = new_message(rank->rank, (int64_t)i - 2, sizes[i]);
					post_send(self, out[peer][i], sizes[i], peer, (int64_t)i - 2);
				} else {
					in[peer][back] = malloc(sizes[back] + 1);
					check(in[peer][back] != NULL);
					post_recv(self, in[peer][back], sizes[back], peer, (int64_t)back - 2);
				}
			}
		}
	}
	finish_well(self);
	for (int peer = 0; peer < rank->nranks; peer++) {
		for (size_t i = 0; i < NSIZES && peer != rank->rank; i++) {
			check_message(in[peer][i], peer, (int64_t)i - 2, sizes[i]);
			free(in[peer][i]);
			free(out[peer][i]);
		}
	}
	pthread_barrier_wait(&rank->group->barrier);
	free_endpoint(self);
}

/* ---- any source: rank 0 receives from all and is told the source ---- */

static void any_source(struct rank *rank)
{
	const int others = rank->nranks - 1;
	struct endpoint *self = new_endpoint(rank);
	unsigned char *buf[2 * MAX_RANKS] = {0};

	for (int large = 0; large < 2; large++) {
		const size_t bytes = large ? sizes[4] : 100;

		for (int i = 0; i < others && rank->rank == 0; i++) {
			buf[large * others + i] = malloc(bytes);
			check(buf[large * others + i] != NULL);
			post_recv(self, buf[large * others + i], bytes, -1, large);
		}
		if (rank->rank != 0) {
			buf[large] = new_message(rank->rank, large, bytes);
			post_send(self, buf[large], bytes, 0, large);
		}
	}
	finish_well(self);
	for (int large = 0; large < 2 && rank->rank == 0; large++) {
		bool heard[MAX_RANKS] = {false};

		for (int i = 0; i < others; i++) {
			const int from = self->done[large * others + i].peer;

			check(from > 0 && from < rank->nranks && !heard[from]);
			heard[from] = true;
			check_message(buf[large * others + i], from, large, large ? sizes[4] : 100);
		}
	}
	pthread_barrier_wait(&rank->group->barrier);
	free_endpoint(self);
	for (size_t i = 0; i < sizeof(buf) / sizeof(buf[0]); i++)
		free(buf[i]);
}

/* ---- more unexpected messages than the window has room for; one tag keeps its order ---- */

#define FLOOD 1000

static void flood(struct rank *rank)
{
	struct endpoint *self = new_endpoint(rank);
	uint64_t *numbers = malloc((FLOOD + 1) * 4096);
	char token = 0;

	check(numbers != NULL);
	if (rank->rank == 0) {
		for (uint64_t i = 0; i < FLOOD; i++) {
			numbers[i * 512] = i;
			post_send(self, &numbers[i * 512], 4096, 1, 5);
		}
		post_send(self, &token, 1, 1, 6); /* arrives last, is received first */
	} else {
		post_recv(self, &token, 1, 0, 6);
		finish_well(self);
		for (uint64_t i = 0; i < FLOOD; i++)
			post_recv(self, &numbers[i * 512], 4096, 0, 5);
	}
	finish_well(self);
	for (uint64_t i = 0; i < FLOOD; i++)
		check_int(numbers[i * 512], i);
	for (int i = 0; i < FLOOD; i++) { /* one at a time: the window has room again */
		if (rank->rank == 0)
			post_send(self, &token, 1, 1, 7);
		else
			post_recv(self, &token, 1, 0, 7);
		finish_well(self);
	}
	pthread_barrier_wait(&rank->group->barrier);
	free(numbers);
	free_endpoint(self);
}

#define EMPTY 7000 /* more than the window has room for, by the headers alone */

static void flood_of_nothing(struct rank *rank)
{
	struct endpoint *self = new_endpoint(rank);
	char token = 0;

	for (int i = 0; i < EMPTY && rank->rank == 0; i++)
		post_send(self, NULL, 0, 1, 5);
	if (rank->rank == 0) {
		post_send(self, &token, 1, 1, 6);
	} else {
		post_recv(self, &token, 1, 0, 6);
		finish_well(self);
	}
	for (int i = 0; i < EMPTY && rank->rank == 1; i++)
		post_recv(self, NULL, 0, 0, 5);
	finish_well(self);
	pthread_barrier_wait(&rank->group->barrier);
	free_endpoint(self);
}

/* ---- a rank without messages need not take part ---- */

static void two_of_three(struct rank *rank)
{
	int32_t number = rank->rank;

	if (rank->rank < 2) {
		struct endpoint *self = new_endpoint(rank);

		if (rank->rank == 0)
			post_send(self, &number, sizeof(number), 1, 0);
		else
			post_recv(self, &number, sizeof(number), 0, 0);
		finish_well(self);
		check_int(number, 0);
		free_endpoint(self);
	}
	pthread_barrier_wait(&rank->group->barrier);
}

/* ---- no receive stays posted on a connection where nothing is awaited ---- */

static void nothing_awaited(struct rank *rank)
{
	struct endpoint *self = new_endpoint(rank);
	const struct bnet_tagged_peer *peer = &self->tagged->peers[1 - rank->rank];
	char token = 0, own = 0;

	post_recv(self, &token, 1, 1 - rank->rank, 0);
	post_send(self, &own, 1, 1 - rank->rank, 0);
	finish_well(self);
	post_send(self, &own, 1, 1 - rank->rank, 1); /* one more pass over all connections */
	finish_well(self);
	check_int(peer->in_done, peer->in_posted);
	pthread_barrier_wait(&rank->group->barrier);
	free_endpoint(self);
}

/* ---- another thread posts, and stops a receive without a message ---- */

static void *post_and_stop(void *arg)
{
	struct endpoint *self = arg;
	static int32_t never;

	check_int(bnet_tagged_recv(self->tagged, &never, sizeof(never), 1, 0, 77), 0);
	bnet_tagged_stop(self->tagged);
	check_int(bnet_tagged_recv(self->tagged, &never, sizeof(never), 1, 0, 78), -ECANCELED);
	return NULL;
}

static void stopped(struct rank *rank)
{
	struct endpoint *self = new_endpoint(rank);
	bnet_tagged_done_t done;
	pthread_t thread;

	if (rank->rank == 0) {
		check_int(pthread_create(&thread, NULL, post_and_stop, self), 0);
		check_int(bnet_tagged_progress(self->tagged, &done, 1), 1); /* sleeps until there is an operation */
		check_int(done.id, 77);
		check_int(done.rc, -ECANCELED);
		check_int(bnet_tagged_progress(self->tagged, &done, 1), 0);
		check_int(pthread_join(thread, NULL), 0);
	}
	pthread_barrier_wait(&rank->group->barrier);
	free_endpoint(self);
}

int main(void)
{
	static const int versions[] = {8, 12};
	static void (*const pairs[])(struct rank *) = {nothing_awaited, flood, flood_of_nothing, stopped};

	setenv("NCCL_SOCKET_IFNAME", "lo", 1);
	alarm(DEADLINE_S);
	for (size_t v = is_nightly() ? 0 : 1; v < sizeof(versions) / sizeof(versions[0]); v++) {
		for (int nranks = 2; nranks <= (is_brief() ? 3 : 4); nranks++) {
			run_group(&(struct group){0}, versions[v], nranks, any_order);
			run_group(&(struct group){0}, versions[v], nranks, any_source);
			run_group(&(struct group){.shares = true}, versions[v], nranks, any_order);
			run_group(&(struct group){.shares = true}, versions[v], nranks, any_source);
		}
		for (size_t i = 0; i < sizeof(pairs) / sizeof(pairs[0]); i++)
			run_group(&(struct group){0}, versions[v], 2, pairs[i]);
		run_group(&(struct group){0}, versions[v], 3, two_of_three);
	}
	return 0;
}
