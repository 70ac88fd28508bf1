/* SPDX-License-Identifier: MIT
 *
 * Tagged messages over the library's own tables: threads as ranks, real sockets on the loopback interface. Each rank's
 * thread posts and makes progress, but where a scenario says otherwise.
 */
#include <errno.h>
#include <math.h>
#include <stdint.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "bagua_net.h"
#include "check.h"
#include "coll.h"
#include "mail.h"
#include "ranks.h"

#define DEADLINE_S 250 /* of the whole program */
#define TIMEOUT_S 100  /* of an operation: a hang would end here */
#define MAX_OPS 8192

/* Nothing, one byte, the largest letter, the first parcel, several chunks with a tail. */
static const size_t sizes[] = {0, 1, 8192, 8193, 3 * 1024 * 1024 + 5};
#define NSIZES (sizeof(sizes) / sizeof(sizes[0]))

struct box {
	struct rank *rank;
	bnet_mail_t *mail;
	size_t posted;
	size_t over;
	bnet_mail_done_t done[MAX_OPS]; /* by id */
	char *said[MAX_OPS];            /* errors */
};

static void open_box(struct box *box, struct rank *rank)
{
	memset(box, 0, sizeof(*box));
	box->rank = rank;
	check_int(bnet_mail_create(&box->mail, rank->coll, rank->group->rows), 0);
	rank->coll = NULL; /* the messages' from now on */
}

static struct box *new_box(struct rank *rank)
{
	struct box *box = malloc(sizeof(*box));

	check(box != NULL);
	open_box(box, rank);
	return box;
}

static void free_box(struct box *box)
{
	bnet_mail_destroy(box->mail);
	for (size_t i = 0; i < box->posted; i++)
		free(box->said[i]);
	free(box);
}

static uint64_t post_send(struct box *box, const void *buf, size_t bytes, int peer, int64_t tag)
{
	check(box->posted < MAX_OPS);
	check_int(bnet_mail_send(box->mail, buf, bytes, peer, tag, TIMEOUT_S, box->posted), 0);
	return box->posted++;
}

static uint64_t post_recv(struct box *box, void *buf, size_t bytes, int peer, int64_t tag)
{
	check(box->posted < MAX_OPS);
	check_int(bnet_mail_recv(box->mail, buf, bytes, peer, tag, TIMEOUT_S, box->posted), 0);
	return box->posted++;
}

static void keep(struct box *box, const bnet_mail_done_t *done)
{
	box->done[done->id] = *done;
	check(done->rc == 0 ? done->error == NULL : done->error != NULL);
	box->said[done->id] = strdup(done->rc == 0 ? "" : done->error);
	check(box->said[done->id] != NULL);
	box->over++;
}

/* Until all that was posted is over. */
static void finish(struct box *box)
{
	bnet_mail_done_t done[7];

	while (box->over < box->posted) {
		int count = bnet_mail_progress(box->mail, done, 7);

		check(count > 0);
		for (int i = 0; i < count; i++)
			keep(box, &done[i]);
	}
}

static void finish_well(struct box *box)
{
	finish(box);
	for (size_t i = 0; i < box->posted; i++) {
		if (box->done[i].rc != 0)
			fprintf(stderr, "rank %d: %s\n", box->rank->rank, box->said[i]);
		check_int(box->done[i].rc, 0);
	}
}

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

/* ---- everybody with everybody, received in another order than it was sent ---- */

static void any_order(struct rank *rank)
{
	struct box *box = new_box(rank);
	unsigned char *out[MAX_RANKS][NSIZES] = {{0}}, *in[MAX_RANKS][NSIZES] = {{0}};
	const bool sends_first = rank->rank % 2 == 0;

	for (int turn = 0; turn < 2; turn++) {
		for (int peer = 0; peer < rank->nranks; peer++) {
			for (size_t i = 0; i < NSIZES && peer != rank->rank; i++) {
				const size_t back = NSIZES - 1 - i;

				if ((turn == 0) == sends_first) {
					out[peer][i] = new_message(rank->rank, (int64_t)i - 2, sizes[i]);
					post_send(box, out[peer][i], sizes[i], peer, (int64_t)i - 2);
				} else {
					in[peer][back] = malloc(sizes[back] + 1);
					check(in[peer][back] != NULL);
					post_recv(box, in[peer][back], sizes[back], peer, (int64_t)back - 2);
				}
			}
		}
	}
	finish_well(box);
	for (int peer = 0; peer < rank->nranks; peer++) {
		for (size_t i = 0; i < NSIZES && peer != rank->rank; i++) {
			check_message(in[peer][i], peer, (int64_t)i - 2, sizes[i]);
			free(in[peer][i]);
			free(out[peer][i]);
		}
	}
	pthread_barrier_wait(&rank->group->barrier);
	free_box(box);
}

/* ---- any source: rank 0 hears from all, and is told who it was ---- */

static void any_source(struct rank *rank)
{
	const int others = rank->nranks - 1;
	struct box *box = new_box(rank);
	unsigned char *buf[2 * MAX_RANKS] = {0};

	for (int large = 0; large < 2; large++) {
		const size_t bytes = large ? sizes[4] : 100;

		for (int i = 0; i < others && rank->rank == 0; i++) {
			buf[large * others + i] = malloc(bytes);
			check(buf[large * others + i] != NULL);
			post_recv(box, buf[large * others + i], bytes, -1, large);
		}
		if (rank->rank != 0) {
			buf[large] = new_message(rank->rank, large, bytes);
			post_send(box, buf[large], bytes, 0, large);
		}
	}
	finish_well(box);
	for (int large = 0; large < 2 && rank->rank == 0; large++) {
		bool heard[MAX_RANKS] = {false};

		for (int i = 0; i < others; i++) {
			const int from = box->done[large * others + i].peer;

			check(from > 0 && from < rank->nranks && !heard[from]);
			heard[from] = true;
			check_message(buf[large * others + i], from, large, large ? sizes[4] : 100);
		}
	}
	pthread_barrier_wait(&rank->group->barrier);
	free_box(box);
	for (size_t i = 0; i < sizeof(buf) / sizeof(buf[0]); i++)
		free(buf[i]);
}

/* ---- more letters than the window has room for, unasked; one tag keeps its order ---- */

#define FLOOD 1000

static void flood(struct rank *rank)
{
	struct box *box = new_box(rank);
	uint64_t *numbers = malloc((FLOOD + 1) * 4096);
	char token = 0;

	check(numbers != NULL);
	if (rank->rank == 0) {
		for (uint64_t i = 0; i < FLOOD; i++) {
			numbers[i * 512] = i;
			post_send(box, &numbers[i * 512], 4096, 1, 5);
		}
		post_send(box, &token, 1, 1, 6); /* arrives behind them, and is asked for first */
	} else {
		post_recv(box, &token, 1, 0, 6);
		finish_well(box);
		for (uint64_t i = 0; i < FLOOD; i++)
			post_recv(box, &numbers[i * 512], 4096, 0, 5);
	}
	finish_well(box);
	for (uint64_t i = 0; i < FLOOD; i++)
		check_int(numbers[i * 512], i);
	for (int i = 0; i < FLOOD; i++) { /* one at a time: the window opens again */
		if (rank->rank == 0)
			post_send(box, &token, 1, 1, 7);
		else
			post_recv(box, &token, 1, 0, 7);
		finish_well(box);
	}
	pthread_barrier_wait(&rank->group->barrier);
	free(numbers);
	free_box(box);
}

#define EMPTY 7000 /* more than the window has room for, by their headers alone */

static void flood_of_nothing(struct rank *rank)
{
	struct box *box = new_box(rank);
	char token = 0;

	for (int i = 0; i < EMPTY && rank->rank == 0; i++)
		post_send(box, NULL, 0, 1, 5);
	if (rank->rank == 0) {
		post_send(box, &token, 1, 1, 6);
	} else {
		post_recv(box, &token, 1, 0, 6);
		finish_well(box);
	}
	for (int i = 0; i < EMPTY && rank->rank == 1; i++)
		post_recv(box, NULL, 0, 0, 5);
	finish_well(box);
	pthread_barrier_wait(&rank->group->barrier);
	free_box(box);
}

/* ---- only who has something to say needs to be there ---- */

static void two_of_three(struct rank *rank)
{
	int32_t number = rank->rank;

	if (rank->rank < 2) {
		struct box *box = new_box(rank);

		if (rank->rank == 0)
			post_send(box, &number, sizeof(number), 1, 0);
		else
			post_recv(box, &number, sizeof(number), 0, 0);
		finish_well(box);
		check_int(number, 0);
		free_box(box);
	}
	pthread_barrier_wait(&rank->group->barrier);
}

/* ---- nothing is posted to a network where nothing is awaited ---- */

static void nothing_awaited(struct rank *rank)
{
	struct box *box = new_box(rank);
	const struct bnet_box *peer = &box->mail->boxes[1 - rank->rank];
	char token = 0, own = 0;

	post_recv(box, &token, 1, 1 - rank->rank, 0);
	post_send(box, &own, 1, 1 - rank->rank, 0);
	finish_well(box);
	post_send(box, &own, 1, 1 - rank->rank, 1); /* all connections are looked at once more */
	finish_well(box);
	check_int(peer->in_done, peer->in_posted);
	pthread_barrier_wait(&rank->group->barrier);
	free_box(box);
}

/* ---- who has nothing to say for longer than a network waits for a connection is not lost, and nothing to warn of ---- */

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

/* ---- another thread posts, and one stops what waits in vain ---- */

static void *post_and_stop(void *arg)
{
	struct box *box = arg;
	static int32_t never;

	check_int(bnet_mail_recv(box->mail, &never, sizeof(never), 1, 0, 0, 77), 0);
	bnet_mail_stop(box->mail);
	check_int(bnet_mail_recv(box->mail, &never, sizeof(never), 1, 0, 0, 78), -ECANCELED);
	return NULL;
}

static void stopped(struct rank *rank)
{
	struct box *box = new_box(rank);
	bnet_mail_done_t done;
	pthread_t thread;

	if (rank->rank == 0) {
		check_int(pthread_create(&thread, NULL, post_and_stop, box), 0);
		check_int(bnet_mail_progress(box->mail, &done, 1), 1); /* sleeps until there is something */
		check_int(done.id, 77);
		check_int(done.rc, -ECANCELED);
		check_int(bnet_mail_progress(box->mail, &done, 1), 0);
		check_int(pthread_join(thread, NULL), 0);
	}
	pthread_barrier_wait(&rank->group->barrier);
	free_box(box);
}

/* ---- what goes wrong ---- */

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
		check_int(bnet_mail_recv(box->mail, &number, sizeof(number), 1, 3, 0.2, box->posted++), 0);
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
		check_int(bnet_mail_recv(box->mail, &byte, 1, 1, 3, 1e-9, box->posted++), 0);
		for (int i = 0; i < 1000 && box->done[1].rc == 0; i++) {
			bnet_mail_done_t done;

			post_send(box, &byte, 1, 1, 0);
			check_int(bnet_mail_progress(box->mail, &done, 1), 1);
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

/* Nothing is posted any more where a size was wrong: who sent hears of it all the same, from one that sleeps until it is
 * stopped … */
static void wrong_size_last(struct rank *rank)
{
	struct box *box = new_box(rank);
	char *buf = calloc(1, 20000);
	bnet_mail_done_t done;

	check(buf != NULL);
	rank->group->shared[rank->rank] = (char *)box->mail;
	pthread_barrier_wait(&rank->group->barrier);
	if (rank->rank == 0) {
		post_recv(box, buf, 10000, 1, 0);
		finish(box);
		check_failed(box, 0, -EMSGSIZE, "sent 20000");
		check_int(bnet_mail_progress(box->mail, &done, 1), 0);
	} else {
		post_send(box, buf, 20000, 0, 0);
		finish(box);
		check_failed(box, 0, -EMSGSIZE, "expects 10000");
		bnet_mail_stop((bnet_mail_t *)rank->group->shared[0]);
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

/* Who left had said something before, and to send to it fails before that is looked at. */
static void last_words(struct rank *rank)
{
	struct box *box = new_box(rank);
	char token = 0;
	uint64_t first, words;

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
	first = post_send(box, &token, 1, 1, 8);
	while (box->posted < first + 100)
		post_send(box, &token, 1, 1, 8);
	words = post_recv(box, &token, 1, 1, 10);
	finish(box);
	check_failed(box, words - 1, -EREMOTEIO, "lost rank 1");
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
	const char *reason;
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
		reason = strstr(box->said[id], "broke while");
		check(reason == NULL || strstr(reason + 1, "broke while") == NULL);
	}
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

	check_int(bnet_mail_send(box->mail, &byte, 1, rank->rank, 0, 0, 0), -EINVAL);
	check_int(bnet_mail_send(box->mail, &byte, 1, -1, 0, 0, 0), -EINVAL);
	check_int(bnet_mail_send(box->mail, &byte, 1, rank->nranks, 0, 0, 0), -EINVAL);
	check_int(bnet_mail_recv(box->mail, &byte, 1, -2, 0, 0, 0), -EINVAL);
	check_int(bnet_mail_recv(box->mail, &byte, 1, -1, 0, -0.5, 0), -EINVAL);
	check_int(bnet_mail_recv(box->mail, &byte, 1, -1, 0, (double)NAN, 0), -EINVAL);
	check_int(bnet_mail_progress(box->mail, NULL, 0), -EINVAL);
	free_box(box);
}

int main(void)
{
	static const int versions[] = {8, 12};
	static void (*const pairs[])(struct rank *) = {
		nothing_awaited, flood, flood_of_nothing, stopped, timed_out, timed_out_in_traffic, wrong_size, wrong_size_last,
		wrong_size_and_gone, each_its_reason, last_words, words_of_a_stranger, peer_dies, refused,
	};

	setenv("NCCL_SOCKET_IFNAME", "lo", 1);
	alarm(DEADLINE_S);
	late_with_little_patience();
	for (size_t v = 0; v < sizeof(versions) / sizeof(versions[0]); v++) {
		for (int nranks = 2; nranks <= 4; nranks++) {
			run_group(&(struct group){0}, versions[v], nranks, any_order);
			run_group(&(struct group){0}, versions[v], nranks, any_source);
		}
		for (size_t i = 0; i < sizeof(pairs) / sizeof(pairs[0]); i++)
			run_group(&(struct group){0}, versions[v], 2, pairs[i]);
		run_group(&(struct group){0}, versions[v], 3, two_of_three);
		run_group(&(struct group){0}, versions[v], 3, one_leaves);
		run_group(&(struct group){0}, versions[v], 3, lost_one_by_one);
	}
	return 0;
}
