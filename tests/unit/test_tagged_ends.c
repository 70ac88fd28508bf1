/* SPDX-License-Identifier: MIT
 *
 * Tagged messages that fail, and the others, which do not: wrong sizes, deadlines, peers that are late or gone. Over
 * the library's own tables, as in test_tagged.c.
 */
#include <errno.h>
#include <sys/wait.h>
#include <time.h>

#include "coll/log.h"
#include "coll/wait.h"
#include "tagged_pair.h"

static void check_failed(struct endpoint *self, uint64_t id, int rc, const char *word)
{
	check_int(self->done[id].rc, rc);
	if (strstr(self->errors[id], word) == NULL)
		fprintf(stderr, "expected \"%s\": %s\n", word, self->errors[id]);
	check(strstr(self->errors[id], word) != NULL);
}

/* Large and small; later operations are not affected. */
static void wrong_size(struct rank *rank)
{
	struct endpoint *self = new_endpoint(rank);
	char *buf = calloc(1, 20000); /* not static: the other rank is a thread */

	check(buf != NULL);
	if (rank->rank == 0) {
		post_recv(self, buf, 10000, 1, 0);
		finish(self);
		check_failed(self, 0, -EMSGSIZE, "sent 20000");
		post_recv(self, buf, 99, 1, 1);
		finish(self);
		check_failed(self, 1, -EMSGSIZE, "sent 100");
		post_recv(self, buf, 20000, 1, 2);
		finish(self);
		check_int(self->done[2].rc, 0);
	} else {
		post_send(self, buf, 20000, 0, 0);
		finish(self);
		check_failed(self, 0, -EMSGSIZE, "expects 10000");
		post_send(self, buf, 100, 0, 1);
		post_send(self, buf, 20000, 0, 2);
		finish(self);
		check_int(self->done[1].rc, 0);
		check_int(self->done[2].rc, 0);
	}
	pthread_barrier_wait(&rank->group->barrier);
	free_endpoint(self);
	free(buf);
}

/* The receiver posts nothing after a wrong size. The sender learns of it from one that sleeps until it is stopped … */
static void wrong_size_last(struct rank *rank)
{
	struct endpoint *self = new_endpoint(rank);
	char *buf = calloc(1, 20000);
	bnet_tagged_done_t done;

	check(buf != NULL);
	rank->group->shared[rank->rank] = (char *)self->tagged;
	pthread_barrier_wait(&rank->group->barrier);
	if (rank->rank == 0) {
		post_recv(self, buf, 10000, 1, 0);
		finish(self);
		check_failed(self, 0, -EMSGSIZE, "sent 20000");
		check_int(bnet_tagged_progress(self->tagged, &done, 1), 0);
	} else {
		post_send(self, buf, 20000, 0, 0);
		finish(self);
		check_failed(self, 0, -EMSGSIZE, "expects 10000");
		bnet_tagged_stop((bnet_tagged_t *)rank->group->shared[0]);
	}
	pthread_barrier_wait(&rank->group->barrier);
	free_endpoint(self);
	free(buf);
}

/* … and from one that leaves at once. */
static void wrong_size_and_gone(struct rank *rank)
{
	struct endpoint *self = new_endpoint(rank);
	char *buf = calloc(1, 20000);

	check(buf != NULL);
	if (rank->rank == 0) {
		post_send(self, buf, 1, 1, 1); /* connected */
		post_recv(self, buf, 10000, 1, 0);
		finish(self);
		check_failed(self, 1, -EMSGSIZE, "sent 20000");
	} else {
		post_recv(self, buf, 1, 0, 1);
		finish_well(self);
		post_send(self, buf, 20000, 0, 0);
		finish(self);
		check_failed(self, 1, -EMSGSIZE, "expects 10000");
	}
	free_endpoint(self);
	free(buf);
	pthread_barrier_wait(&rank->group->barrier);
}

/* Two messages of a wrong size are reported together, each with its own reason. */
static void each_its_reason(struct rank *rank)
{
	struct endpoint *self = new_endpoint(rank);
	char buf[100] = {0};

	if (rank->rank == 0) {
		post_recv(self, buf, 1, 1, 3);
		finish_well(self); /* all three have arrived: they arrive in order */
		post_recv(self, buf, 98, 1, 1);
		post_recv(self, buf, 99, 1, 2);
		finish(self);
		check_failed(self, 1, -EMSGSIZE, "expects 98");
		check_failed(self, 2, -EMSGSIZE, "expects 99");
	} else {
		post_send(self, buf, 100, 0, 1);
		post_send(self, buf, 100, 0, 2);
		post_send(self, buf, 1, 0, 3);
		finish_well(self);
	}
	pthread_barrier_wait(&rank->group->barrier);
	free_endpoint(self);
}

/* A receive is posted for a message that the peer does not live to send. */
static void peer_dies(struct rank *rank)
{
	struct endpoint *self = new_endpoint(rank);
	int32_t number = 0;

	if (rank->rank == 0) {
		post_recv(self, &number, sizeof(number), 1, 0);
		finish_well(self);
		post_recv(self, &number, sizeof(number), 1, 0);
		finish(self);
		check(self->done[1].rc == -EREMOTEIO || self->done[1].rc == -EIO);
		check(strstr(self->errors[1], "lost rank 1") != NULL);
	} else {
		post_send(self, &number, sizeof(number), 0, 0);
		finish_well(self);
	}
	free_endpoint(self);
	pthread_barrier_wait(&rank->group->barrier);
}

/* The peer leaves before it has sent or received anything: no connection breaks. */
static void peer_dies_silent(struct rank *rank)
{
	struct endpoint *self = new_endpoint(rank);
	char token = 0;

	if (rank->rank == 1)
		free_endpoint(self);
	pthread_barrier_wait(&rank->group->barrier);
	if (rank->rank == 1)
		return;
	post_recv(self, &token, 1, 1, 0);
	finish(self);
	check(self->done[0].rc == -EREMOTEIO || self->done[0].rc == -EIO);
	check(strstr(self->errors[0], "lost rank 1") != NULL);
	free_endpoint(self);
}

/* The peer sent before it left, and a send to it fails before that message is received. */
static void sent_before_leaving(struct rank *rank)
{
	struct endpoint *self = new_endpoint(rank);
	char token = 0;
	bnet_tagged_done_t done = {0};
	uint64_t words;

	if (rank->rank == 1) {
		post_recv(self, &token, 1, 0, 8);
		post_send(self, &token, 1, 0, 9);
		post_send(self, &token, 1, 0, 10);
		finish_well(self);
		free_endpoint(self);
		pthread_barrier_wait(&rank->group->barrier);
		return;
	}
	post_send(self, &token, 1, 1, 8);
	post_recv(self, &token, 1, 1, 9);
	finish_well(self);
	pthread_barrier_wait(&rank->group->barrier);
	while (done.rc == 0) { /* the kernel accepts some before it reports the end */
		check_int(bnet_tagged_send(self->tagged, &token, 1, 1, 8, MAX_OPS), 0);
		check_int(bnet_tagged_progress(self->tagged, &done, 1), 1);
	}
	check(strstr(done.error, "lost rank 1") != NULL);
	words = post_recv(self, &token, 1, 1, 10);
	finish_well(self);
	check_int(self->done[words].rc, 0);
	free_endpoint(self);
}

/* The same where the peer's connection is not even accepted yet when the send fails. */
static void sent_before_accept(struct rank *rank)
{
	struct endpoint *self = new_endpoint(rank);
	char word = 'w', token = 0;

	if (rank->rank == 1) {
		post_send(self, &word, 1, 0, 0);
		finish_well(self);
		free_endpoint(self);
		pthread_barrier_wait(&rank->group->barrier);
		return;
	}
	pthread_barrier_wait(&rank->group->barrier);
	post_send(self, &token, 1, 1, 1);
	finish(self);
	check(self->done[0].rc != 0 && strstr(self->errors[0], "cannot reach rank 1") != NULL);
	post_recv(self, &token, 1, 1, 0);
	post_recv(self, &word, 1, 1, 0);
	finish(self);
	check_int(self->done[1].rc, 0);
	check_int(token, 'w');
	check(self->done[2].rc != 0 && strstr(self->errors[2], "lost rank 1") != NULL);
	free_endpoint(self);
}

/* One of three leaves. Its messages are received, the others continue, and a further receive from it fails. */
static void one_leaves(struct rank *rank)
{
	struct endpoint *self = new_endpoint(rank);
	const int other = 3 - rank->rank; /* of 1 and 2 */
	static int32_t zero;
	int32_t in[4] = {-1, -1, -1, -1}, out = rank->rank;

	for (int peer = 0; peer < 3; peer++) {
		if (peer != rank->rank)
			post_send(self, rank->rank == 0 ? &zero : &out, sizeof(out), peer, 0);
		if (peer != rank->rank)
			post_recv(self, &in[peer], sizeof(out), peer, 0);
	}
	finish_well(self);
	pthread_barrier_wait(&rank->group->barrier);
	if (rank->rank == 0) {
		post_send(self, &zero, sizeof(zero), 1, 1);
		post_send(self, &zero, sizeof(zero), 2, 1);
		finish_well(self);
		free_endpoint(self);
		pthread_barrier_wait(&rank->group->barrier);
		pthread_barrier_wait(&rank->group->barrier);
		return;
	}
	pthread_barrier_wait(&rank->group->barrier);
	post_send(self, &out, sizeof(out), other, 2);
	post_recv(self, &in[other], sizeof(out), -1, 2);
	finish_well(self);
	post_recv(self, &in[3], sizeof(out), 0, 1);
	finish_well(self);
	check_int(in[other], other);
	check_int(in[3], 0);
	post_recv(self, &in[3], sizeof(out), 0, 1);
	finish(self);
	check(self->done[self->posted - 1].rc != 0 && strstr(self->errors[self->posted - 1], "lost rank 0") != NULL);
	pthread_barrier_wait(&rank->group->barrier); /* else the rank that leaves first would be lost last */
	free_endpoint(self);
}

/* Two leave, one after the other; the second failure does not repeat the reason of the first. */
static void lost_one_by_one(struct rank *rank)
{
	struct endpoint *self = new_endpoint(rank);
	const char *reasons[2];
	char token = 0;

	if (rank->rank == 0) {
		post_recv(self, &token, 1, 1, 0);
		post_recv(self, &token, 1, 2, 0);
	} else {
		post_send(self, &token, 1, 0, 0);
	}
	finish_well(self);
	for (int leaver = 1; leaver < 3 && rank->rank == 0; leaver++) {
		const uint64_t id = post_recv(self, &token, 1, leaver, 1);

		pthread_barrier_wait(&rank->group->barrier); /* now */
		finish(self);
		reasons[leaver - 1] = strstr(self->errors[id], "the connection from");
	}
	if (rank->rank == 0 && reasons[0] != NULL && reasons[1] != NULL) /* each names its peer, unless it came late */
		check(strcmp(reasons[0], reasons[1]) != 0);
	for (int leaver = 1; leaver < 3 && rank->rank != 0; leaver++) {
		pthread_barrier_wait(&rank->group->barrier);
		if (rank->rank == leaver)
			free_endpoint(self);
	}
	if (rank->rank == 0)
		free_endpoint(self);
}

static void refused(struct rank *rank)
{
	struct endpoint *self = new_endpoint(rank);
	char byte = 0;

	check_int(bnet_tagged_send(self->tagged, &byte, 1, rank->rank, 0, 0), -EINVAL);
	check_int(bnet_tagged_send(self->tagged, &byte, 1, -1, 0, 0), -EINVAL);
	check_int(bnet_tagged_send(self->tagged, &byte, 1, rank->nranks, 0, 0), -EINVAL);
	check_int(bnet_tagged_recv(self->tagged, &byte, 1, -2, 0, 0), -EINVAL);
	check_int(bnet_tagged_progress(self->tagged, NULL, 0), -EINVAL);
	free_endpoint(self);
}

/* ---- a peer that connects later than a network waits for a connection is neither lost nor warned of ---- */

#define ACCEPT_S "1" /* the network waits this long */

static void late(struct rank *rank)
{
	struct endpoint *self = new_endpoint(rank);
	const unsigned warnings = bnet_coll_warnings();
	const int64_t until = bnet_coll_now() + 1500000000;
	const struct timespec time = {.tv_sec = until / 1000000000, .tv_nsec = until % 1000000000};
	char token = 0;

	if (rank->rank == 1) { /* late on purpose */
		check_int(clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &time, NULL), 0);
		post_send(self, &token, 1, 0, 0);
	} else if (rank->rank == 0) {
		post_recv(self, &token, 1, -1, 0);
	}
	finish_well(self);
	if (rank->rank == 0) {
		check_int(bnet_coll_warnings(), warnings);
		post_recv(self, &token, 1, -1, 1);
	} else if (rank->rank == 2) {
		post_send(self, &token, 1, 0, 1);
	}
	pthread_barrier_wait(&rank->group->barrier);
	finish_well(self);
	pthread_barrier_wait(&rank->group->barrier);
	free_endpoint(self);
}

/* In a separate process, because a network reads its parameters once. */
static void late_with_little_patience(void)
{
	pid_t pid = fork();
	int status;

	check(pid >= 0);
	if (pid == 0) {
		alarm(DEADLINE_S);
		setenv("BAGUA_NET_CONNECT_TIMEOUT", ACCEPT_S, 1);
		run_group(&(struct group){0}, 12, 3, late);
		exit(0);
	}
	check_int(waitpid(pid, &status, 0), pid);
	check_int(status, 0);
}

int main(void)
{
	static const int versions[] = {8, 12};
	static void (*const pairs[])(struct rank *) = {
		wrong_size,         wrong_size_last, wrong_size_and_gone, each_its_reason, sent_before_leaving,
		sent_before_accept, peer_dies,       peer_dies_silent,    refused,
	};

	setenv("NCCL_SOCKET_IFNAME", "lo", 1);
	alarm(DEADLINE_S);
	late_with_little_patience();
	for (size_t v = 0; v < sizeof(versions) / sizeof(versions[0]); v++) {
		for (size_t i = 0; i < sizeof(pairs) / sizeof(pairs[0]); i++)
			run_group(&(struct group){0}, versions[v], 2, pairs[i]);
		run_group(&(struct group){0}, versions[v], 3, one_leaves);
		run_group(&(struct group){0}, versions[v], 3, lost_one_by_one);
	}
	return 0;
}
