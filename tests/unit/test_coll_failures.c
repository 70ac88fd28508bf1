/* SPDX-License-Identifier: MIT
 *
 * What the host-memory collectives refuse, and how they fail: threads as ranks, real sockets on the loopback interface.
 */
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <unistd.h>

#include "bagua_net.h"
#include "bagua_net_host.h"
#include "check.h"
#include "coll/connect.h"
#include "ranks.h"

#define DEADLINE_S 250 /* of the whole program */

static void check_error(struct rank *rank, int rc, int expected, const char *word)
{
	const char *text = bnet_coll_error(rank->coll);

	if (rc != expected || strstr(text, word) == NULL)
		fprintf(stderr, "rank %d: %d, expected %d and \"%s\": %s\n", rank->rank, rc, expected, word, text);
	check_int(rc, expected);
	check(strstr(text, word) != NULL);
}

static void bad_arguments(struct rank *rank)
{
	bnet_coll_t *coll = rank->coll;
	const bnet_op_t integers = {.kind = BNET_COLL_ALLREDUCE_Q,
				    .dtype = BNET_INT32,
				    .codec = BNET_CODEC_U8,
				    .block = 32};
	int32_t x = 1, y = 0;

	check_error(rank, bnet_coll_run(coll, &integers), -EINVAL, "only float32");
	check_error(rank, bnet_coll_allreduce_q(coll, &x, &y, 1, BNET_MAX, BNET_CODEC_U8, 32, NULL), -EINVAL,
		    "allreduce_q: only sums and averages");
	check_error(rank, bnet_coll_allreduce_q(coll, &x, &y, 1, BNET_SUM, 3, 32, NULL), -EINVAL, "codec 3");
	check_error(rank, bnet_coll_reduce_scatter_q(coll, &x, &y, 1, BNET_SUM, BNET_CODEC_U4, 48, NULL), -EINVAL,
		    "reduce_scatter_q: codec 2 with blocks of 48");
	check_error(rank, bnet_coll_allreduce_q(coll, &x, &y, SIZE_MAX / 2, BNET_SUM, BNET_CODEC_U8, 32, NULL), -EINVAL,
		    "too many");
	check_error(rank, bnet_coll_allreduce(coll, &x, &y, 1, 99, BNET_SUM, BNET_ALGO_AUTO), -EINVAL, "99");
	check_error(rank, bnet_coll_allreduce(coll, &x, &y, 1, BNET_INT32, 77, BNET_ALGO_AUTO), -EINVAL, "77");
	check_error(rank, bnet_coll_allreduce(coll, &x, &y, 1, BNET_INT32, BNET_SUM, 55), -EINVAL, "55");
	check_error(rank, bnet_coll_allreduce(coll, &x, &y, SIZE_MAX / 2, BNET_INT32, BNET_SUM, 0), -EINVAL,
		    "too many");
	check_error(rank, bnet_coll_allreduce(coll, &x, &y, 1, BNET_FLOAT32, BNET_BOR, 0), -EINVAL, "bitwise");
	check_error(rank, bnet_coll_broadcast(coll, &x, 1, BNET_INT32, rank->nranks), -EINVAL, "root");
	check_error(rank, bnet_coll_reduce(coll, &x, &y, 1, BNET_INT32, BNET_SUM, -1), -EINVAL, "root");
	check_error(rank, bnet_coll_gather(coll, &x, &y, 1, BNET_INT32, rank->nranks), -EINVAL, "root");
	check_error(rank, bnet_coll_scatter(coll, &x, &y, 1, BNET_INT32, -1), -EINVAL, "root");
	check_error(rank, bnet_coll_send(coll, &x, 1, BNET_INT32, rank->rank), -EINVAL, "exchange");
	check_error(rank, bnet_coll_recv(coll, &x, 1, BNET_INT32, -1), -EINVAL, "exchange");
	check_error(rank, bnet_coll_sendrecv(coll, &x, 1, rank->nranks, &y, 1, -1, BNET_INT32), -EINVAL, "exchange");
	check_error(rank, bnet_coll_connect(coll, rank->group->rows, 1), -EINVAL, "before");
	check_ok(rank, bnet_coll_allreduce(coll, &x, &y, 1, BNET_INT32, BNET_SUM, BNET_ALGO_AUTO)); /* still usable */
	check_int(y, rank->nranks);
}

static void *abort_thread(void *arg)
{
	struct rank *rank = arg;

	while (!atomic_load(&rank->group->flag))
		sched_yield();
	bnet_coll_abort(rank->coll);
	return NULL;
}

/* Rank 0 waits for a message that is never sent. */
static void aborted(struct rank *rank)
{
	pthread_t thread;
	int32_t x = 0;

	if (rank->rank == 0) {
		check_int(pthread_create(&thread, NULL, abort_thread, rank), 0);
		atomic_store(&rank->group->flag, true);
		check_error(rank, bnet_coll_recv(rank->coll, &x, 1, BNET_INT32, 1), -ECANCELED, "abort");
		check_int(pthread_join(thread, NULL), 0);
		check_int(bnet_coll_barrier(rank->coll), -ECANCELED);
	}
	pthread_barrier_wait(&rank->group->barrier);
}

/* Unusable from here on. Calls that would be refused anyway do not hide why. */
static void stays_failed(struct rank *rank, int rc, const char *word)
{
	const bnet_op_t unknown = {.kind = 99, .dtype = BNET_INT32};
	bnet_coll_t *coll = rank->coll;
	int32_t x = 0;

	check_error(rank, bnet_coll_barrier(coll), rc, word);
	check_error(rank, bnet_coll_run(coll, &unknown), rc, word);
	check_error(rank, bnet_coll_allreduce(coll, &x, &x, 1, 99, BNET_SUM, BNET_ALGO_AUTO), rc, word);
	check_error(rank, bnet_coll_broadcast(coll, &x, 1, BNET_INT32, rank->nranks), rc, word);
	check_error(rank, bnet_coll_send(coll, &x, 1, BNET_INT32, rank->rank), rc, word);
	check_error(rank, bnet_coll_sendrecv(coll, &x, 1, rank->nranks, &x, 1, -1, BNET_INT32), rc, word);
	check_error(rank, bnet_coll_connect(coll, rank->group->rows, 1), rc, word);
}

static void timed_out(struct rank *rank)
{
	int32_t x = 0;

	if (rank->rank == 0) {
		bnet_coll_set_timeout(rank->coll, 0.2);
		check_error(rank, bnet_coll_recv(rank->coll, &x, 1, BNET_INT32, 1), -ETIMEDOUT, "waits for rank 1");
		stays_failed(rank, -ETIMEDOUT, "waits for rank 1");
	}
	pthread_barrier_wait(&rank->group->barrier);
}

enum { COUNT = 100000 };

static int allreduce(struct rank *rank, float *buf)
{
	return bnet_coll_allreduce(rank->coll, buf, buf, COUNT, BNET_FLOAT32, BNET_SUM, BNET_ALGO_RING);
}

static int compressed(struct rank *rank, float *buf)
{
	return bnet_coll_allreduce_q(rank->coll, buf, buf, COUNT, BNET_SUM, BNET_CODEC_U4, 64, NULL);
}

/* The last rank leaves in the middle; all others fail, including those that exchange nothing with it. */
static void dies_in(struct rank *rank, int (*reduce)(struct rank *rank, float *buf))
{
	float *buf = calloc(COUNT, sizeof(float));
	int rc = 0;

	check(buf != NULL);
	check_ok(rank, bnet_coll_barrier(rank->coll));
	if (rank->rank == rank->nranks - 1) {
		bnet_coll_destroy(rank->coll);
		rank->coll = NULL;
	} else {
		bnet_coll_set_timeout(rank->coll, 100); /* ends a hang, with another error */
		for (int i = 0; i < 1000 && rc == 0; i++)
			rc = reduce(rank, buf);
		if (rc != -EREMOTEIO && rc != -EIO)
			fprintf(stderr, "rank %d: %d: %s\n", rank->rank, rc, bnet_coll_error(rank->coll));
		check(rc == -EREMOTEIO || rc == -EIO);
		check(strstr(bnet_coll_error(rank->coll), "allreduce") != NULL);
		check(strstr(bnet_coll_error(rank->coll), "lost rank") != NULL);
		check_int(bnet_coll_barrier(rank->coll), rc);
	}
	pthread_barrier_wait(&rank->group->barrier);
	free(buf);
}

static void peer_dies(struct rank *rank)
{
	dies_in(rank, allreduce);
}

static void peer_dies_compressed(struct rank *rank)
{
	dies_in(rank, compressed);
}

/* Rank 1 takes no part. */
static void compressed_alone(struct rank *rank)
{
	float *buf = calloc(COUNT, sizeof(float));
	pthread_t thread;

	check(buf != NULL);
	if (rank->rank == 0 && atomic_load(&rank->group->flag)) {
		check_int(pthread_create(&thread, NULL, abort_thread, rank), 0);
		check_error(rank, compressed(rank, buf), -ECANCELED, "allreduce_q: aborted");
		check_int(pthread_join(thread, NULL), 0);
	} else if (rank->rank == 0) {
		bnet_coll_set_timeout(rank->coll, 0.2);
		check_error(rank, compressed(rank, buf), -ETIMEDOUT, "waits for rank 1");
	}
	pthread_barrier_wait(&rank->group->barrier);
	free(buf);
}

static void peer_disagrees(struct rank *rank)
{
	int32_t buf[100] = {0};

	if (rank->rank == 0)
		check_error(rank, bnet_coll_recv(rank->coll, buf, 100, BNET_INT32, 1), -EMSGSIZE, "got 200");
	else
		check_ok(rank, bnet_coll_send(rank->coll, buf, 50, BNET_INT32, 0));
	pthread_barrier_wait(&rank->group->barrier);
}

/* Both ranks learn what the other one calls, whichever notices first. */
static void calls_differ(struct rank *rank)
{
	float buf[100] = {0};
	int rc = 0;

	check_ok(rank, bnet_coll_barrier(rank->coll));
	if (rank->rank == 0)
		rc = bnet_coll_allreduce(rank->coll, buf, buf, 100, BNET_FLOAT32, BNET_SUM, BNET_ALGO_AUTO);
	else
		rc = bnet_coll_broadcast(rank->coll, buf, 400, BNET_UINT8, 0);
	check_error(rank, rc, -EPROTO, "allreduce (operation 2 of the group, 400 bytes, sum of float32)");
	check_error(rank, rc, -EPROTO, "broadcast (operation 2 of the group, 400 bytes, root 0)");
	pthread_barrier_wait(&rank->group->barrier);
}

static void reductions_differ(struct rank *rank)
{
	float buf[100000] = {0};
	const int op = rank->rank == 0 ? BNET_SUM : BNET_MAX;
	int rc = bnet_coll_allreduce(rank->coll, buf, buf, 100000, BNET_FLOAT32, op, BNET_ALGO_RING);

	check_error(rank, rc, -EPROTO, "sum of float32");
	check_error(rank, rc, -EPROTO, "maximum of float32");
	pthread_barrier_wait(&rank->group->barrier);
}

static void codecs_differ(struct rank *rank)
{
	float *buf = calloc(COUNT, sizeof(float));
	const int codec = rank->rank == 0 ? BNET_CODEC_U8 : BNET_CODEC_U4;
	int rc;

	check(buf != NULL);
	rc = bnet_coll_allreduce_q(rank->coll, buf, buf, COUNT, BNET_AVG, codec, 512, NULL);
	check_error(rank, rc, -EPROTO, "average of float32 in 8 bits, blocks of 512");
	check_error(rank, rc, -EPROTO, "average of float32 in 4 bits, blocks of 512");
	pthread_barrier_wait(&rank->group->barrier);
	free(buf);
}

static void blocks_differ(struct rank *rank)
{
	float buf[200] = {0};
	const size_t block = rank->rank == 0 ? 32 : 64;
	int rc = bnet_coll_reduce_scatter_q(rank->coll, buf, buf, 100, BNET_SUM, BNET_CODEC_U8, block, NULL);

	check_error(rank, rc, -EPROTO, "blocks of 32");
	check_error(rank, rc, -EPROTO, "blocks of 64");
	pthread_barrier_wait(&rank->group->barrier);
}

static int halves(int rank)
{
	return rank / 2;
}

/* On two hosts of two ranks: rank 0 goes through its host's memory, the others go over the network. */
static void courses_differ(struct rank *rank)
{
	enum { LARGE = 1 << 18, SMALL = 1 << 10 };
	float *buf = calloc(LARGE, sizeof(float));
	const size_t count = rank->rank == 0 ? LARGE : SMALL;
	int rc;

	check(buf != NULL);
	rc = bnet_coll_allreduce(rank->coll, buf, buf, count, BNET_FLOAT32, BNET_SUM, BNET_ALGO_AUTO);
	check(rc != 0 && rc != -ETIMEDOUT);
	if (rank->rank < 2) {
		check_error(rank, rc, -EPROTO, "4096 bytes");
		check_error(rank, rc, -EPROTO, "1048576 bytes");
	}
	pthread_barrier_wait(&rank->group->barrier);
	free(buf);
}

static void peer_never_connects(struct rank *rank)
{
	int32_t x = 0;

	check_error(rank, bnet_coll_send(rank->coll, &x, 1, BNET_INT32, 1 - rank->rank), -ENOTCONN, "connect");
	if (rank->rank == 0)
		check_error(rank, bnet_coll_connect(rank->coll, rank->group->rows, 0.3), -ETIMEDOUT, "from rank 1");
	pthread_barrier_wait(&rank->group->barrier);
}

/* Rank 1 has all connections and then does nothing. The time of connect counts, not that of operations. */
static void peer_stops_when_connected(struct rank *rank)
{
	bool progress = false;

	bnet_coll_set_timeout(rank->coll, 0);
	if (rank->rank == 0) {
		check_error(rank, bnet_coll_connect(rank->coll, rank->group->rows, 1), -ETIMEDOUT, "connect");
	} else {
		const struct bnet_coll_peer *peer = &rank->coll->peers[0];

		check_ok(rank, bnet_coll_take_rows(rank->coll, rank->group->rows));
		while (peer->send.comm == NULL || peer->recv.comm == NULL) {
			check_ok(rank, bnet_coll_try_connect(rank->coll, 0, &progress));
			check_ok(rank, bnet_coll_try_accept(rank->coll, 0, &progress));
		}
	}
	pthread_barrier_wait(&rank->group->barrier);
}

/* Rank 0 has all connections, and gives nobody the memory. */
static void first_keeps_the_memory(struct rank *rank)
{
	bool progress = false;

	if (rank->rank == 1) {
		check_error(rank, bnet_coll_connect(rank->coll, rank->group->rows, 1), -ETIMEDOUT,
			    "the memory that rank 0, on this host, shares");
	} else {
		const struct bnet_coll_peer *peer = &rank->coll->peers[1];

		check_ok(rank, bnet_coll_take_rows(rank->coll, rank->group->rows));
		while (peer->send.comm == NULL || peer->recv.comm == NULL) {
			check_ok(rank, bnet_coll_try_connect(rank->coll, 1, &progress));
			check_ok(rank, bnet_coll_try_accept(rank->coll, 1, &progress));
		}
	}
	pthread_barrier_wait(&rank->group->barrier);
}

/* The timeout of operations is the caller's again. */
static void keeps_its_timeout(struct rank *rank)
{
	check_int(rank->coll->timeout_ns, 7000000000);
}

static void connect_with_timeout(struct rank *rank)
{
	bnet_coll_set_timeout(rank->coll, 7);
	connect_rank(rank);
}

static void refused_create(void)
{
	bnet_coll_t *coll = NULL;
	const void *table = bnet_net_table(12);

	check_int(bnet_coll_create(&coll, table, 7, 0, 0, 2), -EINVAL);
	check_int(bnet_coll_create(&coll, table, 12, 0, 2, 2), -EINVAL);
	check_int(bnet_coll_create(&coll, NULL, 12, 0, 0, 2), -EINVAL);
	check_int(bnet_coll_create(&coll, table, 12, 99, 0, 2), -ENODEV);
	check(coll == NULL);
	check(strstr(bnet_coll_error(NULL), "device") != NULL);
	bnet_coll_destroy(NULL);
	bnet_coll_abort(NULL);
}

int main(void)
{
	static const int versions[] = {8, 12};
	static void (*const failures[])(struct rank *) = {aborted, timed_out, peer_disagrees};

	setenv("NCCL_SOCKET_IFNAME", "lo", 1);
	alarm(DEADLINE_S);
	refused_create();
	run_group(&(struct group){.prepare = connect_rank, .shares = true, .checks = true, .host_of = halves}, 12, 4,
		  courses_differ);
	for (size_t v = 0; v < sizeof(versions) / sizeof(versions[0]); v++) {
		struct group checking = {.prepare = connect_rank, .checks = true};

		for (int nranks = 1; nranks <= 3; nranks++)
			run_group(&(struct group){.prepare = connect_rank}, versions[v], nranks, bad_arguments);
		run_group(&(struct group){.prepare = connect_rank, .shares = true}, versions[v], 2, bad_arguments);
		for (size_t i = 0; i < sizeof(failures) / sizeof(failures[0]); i++)
			run_group(&(struct group){.prepare = connect_rank}, versions[v], 2, failures[i]);
		run_group(&checking, versions[v], 2, calls_differ);
		run_group(&checking, versions[v], 2, reductions_differ);
		run_group(&checking, versions[v], 2, codecs_differ);
		run_group(&checking, versions[v], 2, blocks_differ);
		run_group(&(struct group){.prepare = connect_rank, .flag = true}, versions[v], 2, compressed_alone);
		run_group(&(struct group){.prepare = connect_rank}, versions[v], 2, compressed_alone);
		run_group(&(struct group){0}, versions[v], 2, peer_never_connects);
		run_group(&(struct group){0}, versions[v], 2, peer_stops_when_connected);
		run_group(&(struct group){.shares = true}, versions[v], 2, first_keeps_the_memory);
		run_group(&(struct group){.prepare = connect_with_timeout}, versions[v], 2, keeps_its_timeout);
		for (int nranks = 2; nranks <= 4; nranks++) {
			run_group(&(struct group){.prepare = connect_rank}, versions[v], nranks, peer_dies);
			run_group(&(struct group){.prepare = connect_rank}, versions[v], nranks, peer_dies_compressed);
		}
	}
	return 0;
}
