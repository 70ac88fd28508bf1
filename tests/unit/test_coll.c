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

#include "bagua_net_host.h"
#include "check.h"
#include "coll/distance.h"
#include "copies.h"
#include "elements.h"
#include "ranks.h"
#include "../sanitize.h"

/* For ThreadSanitizer more ranks share no more data than two, and the table's version does not matter. FEW_RANKS and
 * the newest table are enough before the night. */
#if defined(SANITIZE_THREAD)
#define MOST_RANKS 3
#define OLDEST 12
#define FEW_RANKS 2
#define DEADLINE_S 600 /* of the whole program */
#else
#define MOST_RANKS 5
#define OLDEST 8
#define FEW_RANKS 3
#define DEADLINE_S 250
#endif
static int most_ranks = FEW_RANKS, oldest = 12;

/* Elements: none, one, odd numbers; the large ones exceed a chunk, all chunks in flight, and a round. */
static const size_t small_counts[] = {0, 1, 3, 1021};
static const size_t large_counts[] = {65537, 1400003};

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
	for (int dtype = BNET_INT8; dtype <= BNET_FLOAT64; dtype += is_sanitized() ? 4 : 1)
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
		if (!is_brief())
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

/* ---- far from each other: larger messages ---- */

static void connect_far_apart(struct rank *rank)
{
	connect_rank(rank);
	check_ok(rank, bnet_coll_agree_on_chunk(rank->coll, 20000000));
}

/* More chunks than slots. */
static void large_messages(struct rank *rank)
{
	enum { COUNT = 50000003 };

	one_allreduce(rank, COUNT, BNET_INT8, BNET_SUM, BNET_ALGO_RING, false);
	one_reduce(rank, COUNT, BNET_INT8, BNET_SUM, 0, true);
	one_broadcast(rank, COUNT, BNET_INT8, 0);
	one_sendrecv(rank, COUNT, BNET_INT8, true);
	one_all_to_all(rank, COUNT, BNET_INT8, true);
}

/* ---- several hosts ---- */

static int halves(int rank)
{
	return rank / 2;
}

static int in_turn(int rank)
{
	return rank % 2;
}

static int one_apart(int rank)
{
	return rank == 0;
}

enum { MOVED = 4 * 1024 * 1024 }; /* bytes of each rank's input */

/* How many bytes all ranks together send meanwhile. */
static uint64_t sent_by(struct rank *rank, int kind)
{
	char *send = calloc((size_t)rank->nranks, MOVED), *recv = calloc((size_t)rank->nranks, MOVED);
	const bool whole = kind == BNET_COLL_ALLREDUCE;
	const size_t count = MOVED / (whole ? 1 : (size_t)rank->nranks) / sizeof(float);
	const bnet_op_t op = {.kind = kind, .send = send, .recv = recv, .count = count, .dtype = BNET_FLOAT32};
	uint64_t bytes;

	check(send != NULL && recv != NULL);
	bytes = count_run(rank, &op).bytes_sent;
	free(send);
	free(recv);
	return bytes;
}

/* Two hosts of two ranks: the network carries no more than each host's sum, or its blocks, to the other. */
static void crosses_rarely(struct rank *rank)
{
	const uint64_t frames = 16 * 1024;

	check(sent_by(rank, BNET_COLL_ALLREDUCE) <= 2 * MOVED + frames);
	check(sent_by(rank, BNET_COLL_REDUCE_SCATTER) <= MOVED + frames);
	check(sent_by(rank, BNET_COLL_ALL_GATHER) <= MOVED + frames);
}

static void on_several_hosts(void)
{
	static int (*const layouts[])(int) = {halves, in_turn, one_apart};

	for (size_t i = 0; i < (is_nightly() ? sizeof(layouts) / sizeof(layouts[0]) : 1); i++) {
		struct group group = {.prepare = connect_rank, .shares = true, .checks = true, .host_of = layouts[i]};

		run_group(&group, 12, 4, collectives);
		run_group(&group, 12, 4, identical);
		if (layouts[i] != one_apart)
			run_group(&group, 12, 4, crosses_rarely);
		if (most_ranks > 4)
			run_group(&group, 12, 6, collectives); /* three hosts of two ranks, two of three */
	}
}

int main(void)
{
	setenv("NCCL_SOCKET_IFNAME", "lo", 1);
	alarm(DEADLINE_S);
	if (is_nightly()) {
		most_ranks = MOST_RANKS;
		oldest = OLDEST;
	}
	for (int version = oldest; version <= 12; version += 4) {
		struct group checking = {.prepare = connect_rank, .checks = true};
		struct group sharing = {.prepare = connect_rank, .shares = true};

		for (int nranks = 1; nranks <= most_ranks; nranks++) {
			run_group(&(struct group){.prepare = connect_rank}, version, nranks, collectives);
			run_group(&(struct group){.prepare = connect_rank}, version, nranks, barrier);
			run_group(&(struct group){.prepare = connect_rank}, version, nranks, identical);
		}
		if (most_ranks > 2)
			run_group(&(struct group){.prepare = connect_rank}, version, 6, one_is_slow);
		/* Neither depends on the version of the table. */
		if (version == 12)
			run_group(&checking, version, most_ranks, collectives);
		if (version == 12 && most_ranks > 2)
			run_group(&(struct group){.prepare = connect_far_apart}, version, 2, large_messages);
		if (version == 12 && most_ranks > 3)
			run_group(&(struct group){.prepare = connect_far_apart}, version, 3, collectives);
		for (int nranks = 2; nranks <= most_ranks && version == 12; nranks++) {
			run_group(&sharing, version, nranks, collectives);
			run_group(&sharing, version, nranks, barrier);
			run_group(&sharing, version, nranks, identical);
		}
	}
	if (most_ranks > 2)
		on_several_hosts();
	return 0;
}
