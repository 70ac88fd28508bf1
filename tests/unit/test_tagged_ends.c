/* SPDX-License-Identifier: MIT
 *
 * Tagged messages that fail, and what is left of the others: wrong sizes, deadlines, peers that are late or gone. Over
 * the library's own tables, as in test_mail.c.
 */
#include <errno.h>
#include <math.h>
#include <sys/wait.h>
#include <time.h>

#include "tagged_pair.h"

static void check_failed(struct box *box, uint64_t id, int rc, const char *word)
{
	check_int(box->done[id].rc, rc);
	if (strstr(box->said[id], word) == NULL)
		fprintf(stderr, "expected \"%s\": %s\n", word, box->said[id]);
	check(strstr(box->said[id], word) != NULL);
}

static void timed_out(struct rank *rank)
{
	struct box *box = new_box(rank);
	int32_t number = 0;

	if (rank->rank == 0) {
		check_int(bnet_tagged_recv(box->mail, &number, sizeof(number), 1, 3, 0.2, box->posted++), 0);
		finish(box);
		check_failed(box, 0, -ETIMEDOUT, "tag 3");
		post_recv(box, &number, sizeof(number), 1, 4); /* all that comes later fails, too */
		finish(box);
		check_failed(box, 1, -ETIMEDOUT, "tag 3");
	}
	pthread_barrier_wait(&rank->group->barrier);
	free_box(box);
}

/* Though there is no pass in which nothing moves: small messages need no receiver to be sent. */
static void timed_out_in_traffic(struct rank *rank)
{
	struct box *box = new_box(rank);
	char byte = 0;

	if (rank->rank == 0) {
		post_send(box, &byte, 1, 1, 0);
		finish_well(box); /* connected */
		check_int(bnet_tagged_recv(box->mail, &byte, 1, 1, 3, 1e-9, box->posted++), 0);
		for (int i = 0; i < 1000 && box->done[1].rc == 0; i++) {
			bnet_tagged_done_t done;

			post_send(box, &byte, 1, 1, 0);
			check_int(bnet_tagged_progress(box->mail, &done, 1), 1);
			keep(box, &done);
		}
		check_failed(box, 1, -ETIMEDOUT, "tag 3");
	}
	pthread_barrier_wait(&rank->group->barrier);
	free_box(box);
}

/* Large and small; what is asked for after them is not harmed. */
static void wrong_size(struct rank *rank)
{
	struct box *box = new_box(rank);
	char *buf = calloc(1, 20000); /* its own: the other rank is a thread */

	check(buf != NULL);
	if (rank->rank == 0) {
		post_recv(box, buf, 10000, 1, 0);
		finish(box);
		check_failed(box, 0, -EMSGSIZE, "sent 20000");
		post_recv(box, buf, 99, 1, 1);
		finish(box);
		check_failed(box, 1, -EMSGSIZE, "sent 100");
		post_recv(box, buf, 20000, 1, 2);
		finish(box);
		check_int(box->done[2].rc, 0);
	} else {
		post_send(box, buf, 20000, 0, 0);
		finish(box);
		check_failed(box, 0, -EMSGSIZE, "expects 10000");
		post_send(box, buf, 100, 0, 1);
		post_send(box, buf, 20000, 0, 2);
		finish(box);
		check_int(box->done[1].rc, 0);
		check_int(box->done[2].rc, 0);
	}
	pthread_barrier_wait(&rank->group->barrier);
	free_box(box);
	free(buf);
}

/* Nothing is posted any more where a size was wrong: who sent hears of it all the same, from one that sleeps until it
 * is stopped … */
static void wrong_size_last(struct rank *rank)
{
	struct box *box = new_box(rank);
	char *buf = calloc(1, 20000);
	bnet_tagged_done_t done;

	check(buf != NULL);
	rank->group->shared[rank->rank] = (char *)box->mail;
	pthread_barrier_wait(&rank->group->barrier);
	if (rank->rank == 0) {
		post_recv(box, buf, 10000, 1, 0);
		finish(box);
		check_failed(box, 0, -EMSGSIZE, "sent 20000");
		check_int(bnet_tagged_progress(box->mail, &done, 1), 0);
	} else {
		post_send(box, buf, 20000, 0, 0);
		finish(box);
		check_failed(box, 0, -EMSGSIZE, "expects 10000");
		bnet_tagged_stop((bnet_tagged_t *)rank->group->shared[0]);
	}
	pthread_barrier_wait(&rank->group->barrier);
	free_box(box);
	free(buf);
}

/* … and from one that leaves at once. */
static void wrong_size_and_gone(struct rank *rank)
{
	struct box *box = new_box(rank);
	char *buf = calloc(1, 20000);

	check(buf != NULL);
	if (rank->rank == 0) {
		post_send(box, buf, 1, 1, 1); /* a connection there is */
		post_recv(box, buf, 10000, 1, 0);
		finish(box);
		check_failed(box, 1, -EMSGSIZE, "sent 20000");
	} else {
		post_recv(box, buf, 1, 0, 1);
		finish_well(box);
		post_send(box, buf, 20000, 0, 0);
		finish(box);
		check_failed(box, 1, -EMSGSIZE, "expects 10000");
	}
	free_box(box);
	free(buf);
	pthread_barrier_wait(&rank->group->barrier);
}

/* Two messages of a wrong size are reported at once, each with its own reason. */
static void each_its_reason(struct rank *rank)
{
	struct box *box = new_box(rank);
	char buf[100] = {0};

	if (rank->rank == 0) {
		post_recv(box, buf, 1, 1, 3);
		finish_well(box); /* all three have arrived: they come in order */
		post_recv(box, buf, 98, 1, 1);
		post_recv(box, buf, 99, 1, 2);
		finish(box);
		check_failed(box, 1, -EMSGSIZE, "expects 98");
		check_failed(box, 2, -EMSGSIZE, "expects 99");
	} else {
		post_send(box, buf, 100, 0, 1);
		post_send(box, buf, 100, 0, 2);
		post_send(box, buf, 1, 0, 3);
		finish_well(box);
	}
	pthread_barrier_wait(&rank->group->barrier);
	free_box(box);
}

/* One asks for more than the other lives to send. */
static void peer_dies(struct rank *rank)
{
	struct box *box = new_box(rank);
	int32_t number = 0;

	if (rank->rank == 0) {
		post_recv(box, &number, sizeof(number), 1, 0);
		finish_well(box);
		post_recv(box, &number, sizeof(number), 1, 0);
		finish(box);
		check(box->done[1].rc == -EREMOTEIO || box->done[1].rc == -EIO);
		check(strstr(box->said[1], "lost rank 1") != NULL);
	} else {
		post_send(box, &number, sizeof(number), 0, 0);
		finish_well(box);
	}
	free_box(box);
	pthread_barrier_wait(&rank->group->barrier);
}

/* Who left had never said a word, nor heard one: no connection broke. */
static void peer_dies_unheard(struct rank *rank)
{
	struct box *box = new_box(rank);
	char token = 0;

	if (rank->rank == 1)
		free_box(box);
	pthread_barrier_wait(&rank->group->barrier);
	if (rank->rank == 1)
		return;
	post_recv(box, &token, 1, 1, 0);
	finish(box);
	check(box->done[0].rc == -EREMOTEIO || box->done[0].rc == -EIO);
	check(strstr(box->said[0], "lost rank 1") != NULL);
	free_box(box);
}

/* Who left had said something before, and to send to it fails before that is looked at. */
static void last_words(struct rank *rank)
{
	struct box *box = new_box(rank);
	char token = 0;
	bnet_tagged_done_t done = {0};
	uint64_t words;

	if (rank->rank == 1) {
		post_recv(box, &token, 1, 0, 8);
		post_send(box, &token, 1, 0, 9);
		post_send(box, &token, 1, 0, 10);
		finish_well(box);
		free_box(box);
		pthread_barrier_wait(&rank->group->barrier);
		return;
	}
	post_send(box, &token, 1, 1, 8);
	post_recv(box, &token, 1, 1, 9);
	finish_well(box);
	pthread_barrier_wait(&rank->group->barrier);
	while (done.rc == 0) { /* the kernel takes some before it knows */
		check_int(bnet_tagged_send(box->mail, &token, 1, 1, 8, TIMEOUT_S, MAX_OPS), 0);
		check_int(bnet_tagged_progress(box->mail, &done, 1), 1);
	}
	check(strstr(done.error, "lost rank 1") != NULL);
	words = post_recv(box, &token, 1, 1, 10);
	finish_well(box);
	check_int(box->done[words].rc, 0);
	free_box(box);
}

/* Who left had said something before, which was never even accepted when to send to it fails. */
static void words_of_a_stranger(struct rank *rank)
{
	struct box *box = new_box(rank);
	char word = 'w', token = 0;

	if (rank->rank == 1) {
		post_send(box, &word, 1, 0, 0);
		finish_well(box);
		free_box(box);
		pthread_barrier_wait(&rank->group->barrier);
		return;
	}
	pthread_barrier_wait(&rank->group->barrier);
	post_send(box, &token, 1, 1, 1);
	finish(box);
	check(box->done[0].rc != 0 && strstr(box->said[0], "lost rank 1") != NULL);
	post_recv(box, &token, 1, 1, 0);
	post_recv(box, &word, 1, 1, 0);
	finish(box);
	check_int(box->done[1].rc, 0);
	check_int(token, 'w');
	check(box->done[2].rc != 0 && strstr(box->said[2], "lost rank 1") != NULL);
	free_box(box);
}

/* One of three leaves. What it said is there, the others go on, and whoever asks it for more hears that it is gone. */
static void one_leaves(struct rank *rank)
{
	struct box *box = new_box(rank);
	const int other = 3 - rank->rank; /* of 1 and 2 */
	static int32_t zero;
	int32_t in[4] = {-1, -1, -1, -1}, out = rank->rank;

	for (int peer = 0; peer < 3; peer++) {
		if (peer != rank->rank)
			post_send(box, rank->rank == 0 ? &zero : &out, sizeof(out), peer, 0);
		if (peer != rank->rank)
			post_recv(box, &in[peer], sizeof(out), peer, 0);
	}
	finish_well(box);
	pthread_barrier_wait(&rank->group->barrier);
	if (rank->rank == 0) {
		post_send(box, &zero, sizeof(zero), 1, 1);
		post_send(box, &zero, sizeof(zero), 2, 1);
		finish_well(box);
		free_box(box);
		pthread_barrier_wait(&rank->group->barrier);
		pthread_barrier_wait(&rank->group->barrier);
		return;
	}
	pthread_barrier_wait(&rank->group->barrier);
	post_send(box, &out, sizeof(out), other, 2);
	post_recv(box, &in[other], sizeof(out), -1, 2);
	finish_well(box);
	post_recv(box, &in[3], sizeof(out), 0, 1);
	finish_well(box);
	check_int(in[other], other);
	check_int(in[3], 0);
	post_recv(box, &in[3], sizeof(out), 0, 1);
	finish(box);
	check(box->done[box->posted - 1].rc != 0 && strstr(box->said[box->posted - 1], "lost rank 0") != NULL);
	pthread_barrier_wait(&rank->group->barrier); /* who leaves first would be who was lost last */
	free_box(box);
}

/* Two leave, one after the other; what is said of the second is not what was said of the first. */
static void lost_one_by_one(struct rank *rank)
{
	struct box *box = new_box(rank);
	const char *reasons[2];
	char token = 0;

	if (rank->rank == 0) {
		post_recv(box, &token, 1, 1, 0);
		post_recv(box, &token, 1, 2, 0);
	} else {
		post_send(box, &token, 1, 0, 0);
	}
	finish_well(box);
	for (int leaver = 1; leaver < 3 && rank->rank == 0; leaver++) {
		const uint64_t id = post_recv(box, &token, 1, leaver, 1);

		pthread_barrier_wait(&rank->group->barrier); /* now */
		finish(box);
		reasons[leaver - 1] = strstr(box->said[id], "the connection from");
	}
	if (rank->rank == 0 && reasons[0] != NULL && reasons[1] != NULL) /* a reason may come late; which names the peer */
		check(strcmp(reasons[0], reasons[1]) != 0);
	for (int leaver = 1; leaver < 3 && rank->rank != 0; leaver++) {
		pthread_barrier_wait(&rank->group->barrier);
		if (rank->rank == leaver)
			free_box(box);
	}
	if (rank->rank == 0)
		free_box(box);
}

static void refused(struct rank *rank)
{
	struct box *box = new_box(rank);
	char byte = 0;

	check_int(bnet_tagged_send(box->mail, &byte, 1, rank->rank, 0, 0, 0), -EINVAL);
	check_int(bnet_tagged_send(box->mail, &byte, 1, -1, 0, 0, 0), -EINVAL);
	check_int(bnet_tagged_send(box->mail, &byte, 1, rank->nranks, 0, 0, 0), -EINVAL);
	check_int(bnet_tagged_recv(box->mail, &byte, 1, -2, 0, 0, 0), -EINVAL);
	check_int(bnet_tagged_recv(box->mail, &byte, 1, -1, 0, -0.5, 0), -EINVAL);
	check_int(bnet_tagged_recv(box->mail, &byte, 1, -1, 0, (double)NAN, 0), -EINVAL);
	check_int(bnet_tagged_progress(box->mail, NULL, 0), -EINVAL);
	free_box(box);
}

/* ---- who has nothing to say for longer than a network waits for a connection is not lost, and nothing to warn of
 * ---- */

#define ACCEPT_S "1" /* a network waits */

static void late(struct rank *rank)
{
	struct box *box = new_box(rank);
	const unsigned warnings = bnet_coll_warnings();
	const int64_t until = bnet_coll_now() + 1500000000;
	const struct timespec time = {.tv_sec = until / 1000000000, .tv_nsec = until % 1000000000};
	char token = 0;

	if (rank->rank == 1) { /* its being late is what this is about */
		check_int(clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &time, NULL), 0);
		post_send(box, &token, 1, 0, 0);
	} else if (rank->rank == 0) {
		post_recv(box, &token, 1, -1, 0);
	}
	finish_well(box);
	if (rank->rank == 0) {
		check_int(bnet_coll_warnings(), warnings);
		post_recv(box, &token, 1, -1, 1);
	} else if (rank->rank == 2) {
		post_send(box, &token, 1, 0, 1);
	}
	pthread_barrier_wait(&rank->group->barrier);
	finish_well(box);
	pthread_barrier_wait(&rank->group->barrier);
	free_box(box);
}

/* In a process of its own: a network reads its parameters once. */
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
		timed_out,  timed_out_in_traffic, wrong_size,          wrong_size_last, wrong_size_and_gone,
		each_its_reason, last_words,      words_of_a_stranger, peer_dies,       peer_dies_unheard,
		refused,
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
