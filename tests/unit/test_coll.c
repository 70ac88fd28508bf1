/* SPDX-License-Identifier: MIT
 *
 * The host-memory collectives over the library's own tables: threads as ranks, real sockets on the loopback interface.
 */
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <unistd.h>

#include "bagua_net.h"
#include "check.h"
#include "ranks.h"
#include "../sanitize.h"

/* A rank's thread runs ten times slower under ThreadSanitizer, and more ranks share no more data than two. */
#if defined(SANITIZE_THREAD)
#define MOST_RANKS 3
#else
#define MOST_RANKS 5
#endif
#define CONNECT_TIMEOUT_S 60
#define DEADLINE_S 250 /* of the whole program */

/* Elements: none, one, odd numbers; the large ones exceed a chunk, all chunks in flight, and a round. */
static const size_t small_counts[] = {0, 1, 3, 1021};
static const size_t large_counts[] = {65537, 1400003};

/* ---- a group of threads ---- */

static void connect_rank(struct rank *rank)
{
	int rc = bnet_coll_connect(rank->coll, rank->group->rows, CONNECT_TIMEOUT_S);

	if (rc != 0)
		fprintf(stderr, "%s\n", bnet_coll_error(rank->coll));
	check_int(rc, 0);
}

static void check_ok(struct rank *rank, int rc)
{
	if (rc != 0)
		fprintf(stderr, "rank %d of %d, v%d: %s\n", rank->rank, rank->nranks, rank->group->version,
			bnet_coll_error(rank->coll));
	check_int(rc, 0);
}

/* ---- elements: small whole numbers, exact in every type ---- */

static void store(void *buf, size_t i, int dtype, int value)
{
	const float single = (float)value;
	uint32_t bits;
	int exponent = 0;

	switch (dtype) {
	case BNET_INT8:
	case BNET_UINT8:
		((uint8_t *)buf)[i] = (uint8_t)value;
		return;
	case BNET_INT32:
		((int32_t *)buf)[i] = value;
		return;
	case BNET_INT64:
		((int64_t *)buf)[i] = value;
		return;
	case BNET_FLOAT16:
		while (value >> (exponent + 1) != 0)
			exponent++;
		((uint16_t *)buf)[i] =
			(uint16_t)(value == 0 ? 0 : (exponent + 15) << 10 | ((value << 10 >> exponent) & 0x3ff));
		return;
	case BNET_BFLOAT16:
		memcpy(&bits, &single, sizeof(bits));
		((uint16_t *)buf)[i] = (uint16_t)(bits >> 16);
		return;
	case BNET_FLOAT32:
		((float *)buf)[i] = single;
		return;
	default:
		((double *)buf)[i] = value;
	}
}

/* A rank's element i: 0 … 10; 1 or 2 for products. */
static int input(int rank, size_t i, int op)
{
	const int value = (int)((i * 7 + i / 251 + (size_t)rank * 3) % 11);

	return op == BNET_PROD ? 1 + value % 2 : value;
}

static int reduced(int nranks, size_t i, int op)
{
	int result = input(0, i, op);

	for (int rank = 1; rank < nranks; rank++) {
		const int value = input(rank, i, op);

		if (op == BNET_PROD)
			result *= value;
		else if (op == BNET_MIN || op == BNET_MAX)
			result = (op == BNET_MIN) == (value < result) ? value : result;
		else
			result += value;
	}
	return result;
}

static char *new_buffer(size_t count, int dtype)
{
	char *buf = malloc(count * bnet_coll_dtype_size(dtype) + 1);

	check(buf != NULL);
	memset(buf, 0x77, count * bnet_coll_dtype_size(dtype) + 1);
	return buf;
}

static void fill(void *buf, int rank, size_t first, size_t count, int dtype, int op)
{
	for (size_t i = 0; i < count; i++)
		store(buf, i, dtype, input(rank, first + i, op));
}

/* buf holds the reduction of elements first … first+count-1. */
static void check_reduced(const char *buf, int nranks, size_t first, size_t count, int dtype, int op)
{
	char *expected = new_buffer(count, dtype);

	for (size_t i = 0; i < count; i++)
		store(expected, i, dtype, reduced(nranks, first + i, op));
	if (op == BNET_AVG)
		check_int(bnet_coll_scale_local(expected, count, dtype, nranks), 0);
	check(memcmp(buf, expected, count * bnet_coll_dtype_size(dtype)) == 0);
	free(expected);
}

static void check_input(const char *buf, int rank, size_t first, size_t count, int dtype)
{
	char *expected = new_buffer(count, dtype);

	fill(expected, rank, first, count, dtype, BNET_SUM);
	check(memcmp(buf, expected, count * bnet_coll_dtype_size(dtype)) == 0);
	free(expected);
}

/* ---- every collective ---- */

static void one_allreduce(struct rank *rank, size_t count, int dtype, int op, int algo, bool in_place)
{
	char *send = new_buffer(count, dtype), *recv = in_place ? send : new_buffer(count, dtype);

	fill(send, rank->rank, 0, count, dtype, op);
	check_ok(rank, bnet_coll_allreduce(rank->coll, send, recv, count, dtype, op, algo));
	check_reduced(recv, rank->nranks, 0, count, dtype, op);
	check_int(recv[count * bnet_coll_dtype_size(dtype)], 0x77);
	if (!in_place) {
		for (size_t i = 0; i < count; i += 97) /* the input is untouched */
			check_input(send + i * bnet_coll_dtype_size(dtype), rank->rank, i, op == BNET_PROD ? 0 : 1,
				    dtype);
		free(recv);
	}
	free(send);
}

static void one_reduce_scatter(struct rank *rank, size_t count, int dtype, int op, bool in_place)
{
	const size_t size = bnet_coll_dtype_size(dtype), mine = (size_t)rank->rank * count;
	char *send = new_buffer(count * (size_t)rank->nranks, dtype);
	char *recv = in_place ? send + mine * size : new_buffer(count, dtype);

	fill(send, rank->rank, 0, count * (size_t)rank->nranks, dtype, op);
	check_ok(rank, bnet_coll_reduce_scatter(rank->coll, send, recv, count, dtype, op));
	check_reduced(recv, rank->nranks, mine, count, dtype, op);
	if (!in_place) {
		check_int(recv[count * size], 0x77);
		free(recv);
	}
	free(send);
}

static void one_all_gather(struct rank *rank, size_t count, int dtype, bool in_place)
{
	const size_t size = bnet_coll_dtype_size(dtype);
	char *recv = new_buffer(count * (size_t)rank->nranks, dtype);
	char *send = in_place ? recv + (size_t)rank->rank * count * size : new_buffer(count, dtype);

	fill(send, rank->rank, 0, count, dtype, BNET_SUM);
	check_ok(rank, bnet_coll_all_gather(rank->coll, send, recv, count, dtype));
	for (int from = 0; from < rank->nranks; from++)
		check_input(recv + (size_t)from * count * size, from, 0, count, dtype);
	check_int(recv[count * (size_t)rank->nranks * size], 0x77);
	if (!in_place)
		free(send);
	free(recv);
}

static void one_broadcast(struct rank *rank, size_t count, int dtype, int root)
{
	char *buf = new_buffer(count, dtype);

	if (rank->rank == root)
		fill(buf, root, 0, count, dtype, BNET_SUM);
	check_ok(rank, bnet_coll_broadcast(rank->coll, buf, count, dtype, root));
	check_input(buf, root, 0, count, dtype);
	check_int(buf[count * bnet_coll_dtype_size(dtype)], 0x77);
	free(buf);
}

static void one_all_to_all(struct rank *rank, size_t count, int dtype, bool in_place)
{
	const size_t size = bnet_coll_dtype_size(dtype), total = count * (size_t)rank->nranks;
	char *send = new_buffer(total, dtype), *recv = in_place ? send : new_buffer(total, dtype);

	fill(send, rank->rank, 0, total, dtype, BNET_SUM);
	check_ok(rank, bnet_coll_all_to_all(rank->coll, send, recv, count, dtype));
	for (int from = 0; from < rank->nranks; from++)
		check_input(recv + (size_t)from * count * size, from, (size_t)rank->rank * count, count, dtype);
	check_int(recv[total * size], 0x77);
	if (!in_place)
		free(recv);
	free(send);
}

/* Rank r sends (r + to) % 3 thirds of count elements to rank `to`, beginning with element `to`. */
static size_t share(int from, int to, size_t count)
{
	return (size_t)((from + to) % 3) * count / 3;
}

static void one_all_to_allv(struct rank *rank, size_t count, int dtype)
{
	const size_t size = bnet_coll_dtype_size(dtype);
	size_t send_counts[MAX_RANKS], recv_counts[MAX_RANKS], sent = 0, received = 0, at = 0;
	char *send, *recv;

	for (int peer = 0; peer < rank->nranks; peer++) {
		sent += send_counts[peer] = share(rank->rank, peer, count);
		received += recv_counts[peer] = share(peer, rank->rank, count);
	}
	send = new_buffer(sent, dtype);
	recv = new_buffer(received, dtype);
	for (int peer = 0; peer < rank->nranks; at += send_counts[peer] * size, peer++)
		fill(send + at, rank->rank, (size_t)peer, send_counts[peer], dtype, BNET_SUM);
	check_ok(rank, bnet_coll_all_to_allv(rank->coll, send, send_counts, recv, recv_counts, dtype));
	at = 0;
	for (int peer = 0; peer < rank->nranks; at += recv_counts[peer] * size, peer++)
		check_input(recv + at, peer, (size_t)rank->rank, recv_counts[peer], dtype);
	check_int(recv[received * size], 0x77);
	free(send);
	free(recv);
}

static void one_reduce(struct rank *rank, size_t count, int dtype, int op, int root, bool in_place)
{
	char *send = new_buffer(count, dtype), *recv = in_place ? send : new_buffer(count, dtype);

	fill(send, rank->rank, 0, count, dtype, op);
	check_ok(rank, bnet_coll_reduce(rank->coll, send, rank->rank == root ? recv : NULL, count, dtype, op, root));
	if (rank->rank == root)
		check_reduced(recv, rank->nranks, 0, count, dtype, op);
	else if (op != BNET_PROD)
		check_input(send, rank->rank, 0, count, dtype); /* untouched */
	check_int(recv[count * bnet_coll_dtype_size(dtype)], 0x77);
	if (!in_place)
		free(recv);
	free(send);
}

static void one_gather_and_scatter(struct rank *rank, size_t count, int dtype, int root)
{
	const size_t size = bnet_coll_dtype_size(dtype), total = count * (size_t)rank->nranks;
	char *own = new_buffer(count, dtype), *all = new_buffer(total, dtype);

	fill(own, rank->rank, 0, count, dtype, BNET_SUM);
	check_ok(rank, bnet_coll_gather(rank->coll, own, all, count, dtype, root));
	for (int from = 0; from < rank->nranks && rank->rank == root; from++)
		check_input(all + (size_t)from * count * size, from, 0, count, dtype);
	memset(own, 0, count * size);
	check_ok(rank, bnet_coll_scatter(rank->coll, all, own, count, dtype, root));
	check_input(own, rank->rank, 0, count, dtype); /* back at its source */
	check_int(own[count * size], 0x77);
	check_int(all[total * size], 0x77);
	free(own);
	free(all);
}

/* Each rank to the next one, then rank 0 to rank 1 only. */
static void one_sendrecv(struct rank *rank, size_t count, int dtype, bool in_place)
{
	const int next = (rank->rank + 1) % rank->nranks, previous = (rank->rank + rank->nranks - 1) % rank->nranks;
	char *send = new_buffer(count, dtype), *recv = in_place ? send : new_buffer(count, dtype);

	fill(send, rank->rank, 0, count, dtype, BNET_SUM);
	check_ok(rank, bnet_coll_sendrecv(rank->coll, send, count, next, recv, count, previous, dtype));
	check_input(recv, previous, 0, count, dtype);
	fill(send, rank->rank, 5, count, dtype, BNET_SUM);
	if (rank->rank == 0 && rank->nranks > 1)
		check_ok(rank, bnet_coll_send(rank->coll, send, count, dtype, 1));
	if (rank->rank == 1) {
		check_ok(rank, bnet_coll_recv(rank->coll, recv, count, dtype, 0));
		check_input(recv, 0, 5, count, dtype);
	}
	if (!in_place)
		free(recv);
	free(send);
}

/* Large counts are totals, so that the bytes do not grow with the square of the ranks. */
static void all_collectives(struct rank *rank, size_t count, int dtype, int op, bool in_place)
{
	const size_t block = count < 65536 ? count : count / (size_t)rank->nranks;

	for (int algo = BNET_ALGO_AUTO; algo <= BNET_ALGO_DIRECT; algo++)
		one_allreduce(rank, count, dtype, op, algo, in_place);
	one_reduce_scatter(rank, block, dtype, op, in_place);
	one_all_gather(rank, block, dtype, in_place);
	one_all_to_all(rank, block, dtype, in_place);
	one_all_to_allv(rank, block, dtype);
	one_reduce(rank, count, dtype, op, (int)(count % (size_t)rank->nranks), in_place);
	one_gather_and_scatter(rank, block, dtype, (int)(count % (size_t)rank->nranks));
	one_sendrecv(rank, count, dtype, in_place);
	one_broadcast(rank, count, dtype, (int)(count % (size_t)rank->nranks));
}

static void collectives(struct rank *rank)
{
	for (int dtype = BNET_INT8; dtype <= BNET_FLOAT64; dtype++)
		for (int op = BNET_SUM; op <= BNET_AVG; op++)
			for (size_t i = 0; i < sizeof(small_counts) / sizeof(small_counts[0]); i++)
				all_collectives(rank, small_counts[i], dtype, op, i % 2 == 0);
	for (size_t i = 0; i < sizeof(large_counts) / sizeof(large_counts[0]); i++)
		for (int in_place = 0; in_place < 2; in_place++)
			all_collectives(rank, large_counts[i], in_place ? BNET_FLOAT32 : BNET_BFLOAT16, BNET_SUM,
					in_place);
	if (rank->nranks == 3) { /* several rounds of several steps */
		one_reduce_scatter(rank, 700001, BNET_FLOAT64, BNET_AVG, false);
		one_all_gather(rank, 700001, BNET_FLOAT64, false);
		one_all_to_all(rank, 700001, BNET_FLOAT64, true);
		one_allreduce(rank, 1700001, BNET_INT64, BNET_AVG, BNET_ALGO_RING, false);
	}
	for (int root = 0; root < rank->nranks; root++) {
		one_reduce(rank, 17, BNET_INT32, BNET_SUM, root, true);
		one_reduce(rank, 5000001, BNET_INT8, BNET_SUM, root, true); /* more chunks than slots */
		one_gather_and_scatter(rank, 300001, BNET_INT32, root);
		one_broadcast(rank, 17, BNET_INT32, root);
		one_broadcast(rank, 300001, BNET_INT32, root);
		check_ok(rank, bnet_coll_barrier(rank->coll));
	}
}

/* No rank leaves before all ranks have arrived. */
static void barrier(struct rank *rank)
{
	static atomic_int arrived[MAX_RANKS + 1];
	atomic_int *count = &arrived[rank->nranks];

	for (int round = 0; round < 50; round++) {
		atomic_fetch_add(count, 1);
		check_ok(rank, bnet_coll_barrier(rank->coll));
		check(atomic_load(count) >= rank->nranks * (round + 1));
		check_ok(rank, bnet_coll_barrier(rank->coll));
	}
	pthread_barrier_wait(&rank->group->barrier);
	atomic_store(count, 0);
}

/* Sums whose bits depend on the order of additions are the same on all ranks. */
static void identical(struct rank *rank)
{
	enum { COUNT = 300001 };
	struct group *group = rank->group;
	float *send = malloc(COUNT * sizeof(float)), *recv = malloc(COUNT * sizeof(float));
	uint32_t seed = 12345U * (uint32_t)(rank->rank + 1);

	check(send != NULL && recv != NULL);
	for (size_t i = 0; i < COUNT; i++) {
		seed = seed * 1664525 + 1013904223;
		send[i] = (float)(int32_t)seed * (seed & 0x100 ? 1e-6F : 1e3F);
	}
	group->shared[rank->rank] = (char *)recv;
	for (int algo = BNET_ALGO_AUTO; algo <= BNET_ALGO_DIRECT; algo++) {
		check_ok(rank, bnet_coll_allreduce(rank->coll, send, recv, COUNT, BNET_FLOAT32, BNET_SUM, algo));
		pthread_barrier_wait(&group->barrier);
		check(memcmp(recv, group->shared[0], COUNT * sizeof(float)) == 0);
		pthread_barrier_wait(&group->barrier);
	}
	free(send);
	free(recv);
}

/* ---- failures ---- */

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
	int32_t x = 1, y = 0;

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

static void timed_out(struct rank *rank)
{
	int32_t x = 0;

	if (rank->rank == 0) {
		bnet_coll_set_timeout(rank->coll, 0.2);
		check_error(rank, bnet_coll_recv(rank->coll, &x, 1, BNET_INT32, 1), -ETIMEDOUT, "waits for rank 1");
		check_int(bnet_coll_barrier(rank->coll), -ETIMEDOUT); /* unusable from here on */
	}
	pthread_barrier_wait(&rank->group->barrier);
}

/* The last rank leaves in the middle; all others fail, including those that exchange nothing with it. */
static void peer_dies(struct rank *rank)
{
	enum { COUNT = 100000 };
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
			rc = bnet_coll_allreduce(rank->coll, buf, buf, COUNT, BNET_FLOAT32, BNET_SUM, BNET_ALGO_RING);
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

static void peer_never_connects(struct rank *rank)
{
	int32_t x = 0;

	check_error(rank, bnet_coll_send(rank->coll, &x, 1, BNET_INT32, 1 - rank->rank), -ENOTCONN, "connect");
	if (rank->rank == 0)
		check_error(rank, bnet_coll_connect(rank->coll, rank->group->rows, 0.3), -ETIMEDOUT, "from rank 1");
	pthread_barrier_wait(&rank->group->barrier);
}

/* Rank 1 sends nothing before rank 5 is done, which is not among the first peers of the root. */
static void one_is_slow(struct rank *rank)
{
	enum { BLOCK = 16 * 1024 * 1024 }; /* more than the kernel buffers without a receiver */
	char *send = calloc(1, BLOCK), *recv = rank->rank == 0 ? malloc((size_t)rank->nranks * BLOCK) : NULL;

	check(send != NULL && (recv != NULL) == (rank->rank == 0));
	while (rank->rank == 1 && !atomic_load(&rank->group->flag))
		sched_yield();
	check_ok(rank, bnet_coll_gather(rank->coll, send, recv, BLOCK, BNET_UINT8, 0));
	if (rank->rank == 5)
		atomic_store(&rank->group->flag, true);
	pthread_barrier_wait(&rank->group->barrier);
	free(send);
	free(recv);
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

	setenv("NCCL_SOCKET_IFNAME", "lo", 1);
	alarm(DEADLINE_S);
	refused_create();
	for (size_t v = 0; v < sizeof(versions) / sizeof(versions[0]); v++) {
		struct group checking = {.prepare = connect_rank, .checks = true};
		struct group sharing = {.prepare = connect_rank, .shares = true};
		static void (*const failures[])(struct rank *) = {aborted, timed_out, peer_disagrees};

		for (int nranks = 1; nranks <= MOST_RANKS; nranks++) {
			run_group(&(struct group){.prepare = connect_rank}, versions[v], nranks, bad_arguments);
			run_group(&(struct group){.prepare = connect_rank}, versions[v], nranks, collectives);
			run_group(&(struct group){.prepare = connect_rank}, versions[v], nranks, barrier);
			run_group(&(struct group){.prepare = connect_rank}, versions[v], nranks, identical);
		}
		/* Neither depends on the version of the table. */
		if (versions[v] == 12)
			run_group(&checking, versions[v], MOST_RANKS, collectives);
		for (int nranks = 2; nranks <= MOST_RANKS && versions[v] == 12; nranks++) {
			run_group(&sharing, versions[v], nranks, bad_arguments);
			run_group(&sharing, versions[v], nranks, collectives);
			run_group(&sharing, versions[v], nranks, barrier);
			run_group(&sharing, versions[v], nranks, identical);
		}
		for (size_t i = 0; i < sizeof(failures) / sizeof(failures[0]); i++)
			run_group(&(struct group){.prepare = connect_rank}, versions[v], 2, failures[i]);
		run_group(&checking, versions[v], 2, calls_differ);
		run_group(&checking, versions[v], 2, reductions_differ);
		run_group(&(struct group){0}, versions[v], 2, peer_never_connects);
		for (int nranks = 2; nranks <= 4; nranks++)
			run_group(&(struct group){.prepare = connect_rank}, versions[v], nranks, peer_dies);
		run_group(&(struct group){.prepare = connect_rank}, versions[v], 6, one_is_slow);
	}
	return 0;
}
