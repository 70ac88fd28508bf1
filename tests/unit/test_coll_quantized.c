/* SPDX-License-Identifier: MIT
 *
 * Compressed reductions: their bits against the same computed by one thread, their bound, residuals, values that are
 * not finite. Threads as ranks, real sockets on the loopback interface.
 */
#include <float.h>
#include <math.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <unistd.h>

#include "bagua_net.h"
#include "bagua_net_host.h"
#include "check.h"
#include "codec/codec.h"
#include "ranks.h"
#include "../sanitize.h"

/* Sanitized codecs take thirty times as long. */
#if defined(SANITIZE_THREAD) || defined(SANITIZE_ADDRESS)
#define MOST_RANKS 3
#define LARGE 300003
#define LARGER 0
#define CALLS 12
#define DEADLINE_S 600 /* of the whole program */
#else
#define MOST_RANKS 5
#define LARGE 1400003
#define LARGER 4500001
#define CALLS 50
#define DEADLINE_S 250
#endif

static const int codecs[] = {BNET_CODEC_U8, BNET_CODEC_U4};
static const int ops[] = {BNET_SUM, BNET_AVG};

static unsigned calls(void)
{
	return is_brief() ? 3 : CALLS;
}

/* ---- inputs: whole numbers, with a range that differs between blocks, so that sums of them are exact ---- */

static float input(int rank, size_t i, unsigned call)
{
	uint32_t bits = (uint32_t)i * 2654435761U + (uint32_t)rank * 40503U + call * 69621U;

	bits ^= bits >> 15;
	bits *= 2246822519U;
	bits ^= bits >> 13;
	return (float)(int32_t)(bits % (i / 300 % 3 == 0 ? 20001 : 201)) - (i / 300 % 5 == 0 ? 10000 : 50);
}

static float *new_floats(size_t count)
{
	float *x = malloc((count + 1) * sizeof(*x));

	check(x != NULL);
	for (size_t i = 0; i <= count; i++)
		x[i] = 77;
	return x;
}

/* Elements `first` to first+count-1 of a rank. */
static void fill(float *x, int rank, size_t first, size_t count, unsigned call)
{
	for (size_t i = 0; i < count; i++)
		x[i] = input(rank, first + i, call);
}

/* ---- the same, computed by one thread ---- */

/* Ranks whose inputs are encoded as one: those of one host, where the group shares memory. */
struct division {
	int parts;
	int of[MAX_RANKS];
};

static struct division apart(int nranks)
{
	struct division division = {.parts = nranks};

	for (int i = 0; i < nranks; i++)
		division.of[i] = i;
	return division;
}

/* Only hosts with equally many ranks count. */
static struct division division_of(const struct rank *rank)
{
	const struct group *group = rank->group;
	struct division division = {.parts = 1};
	int members[MAX_RANKS] = {0};

	if (!group->shares)
		return apart(rank->nranks);
	for (int i = 0; i < rank->nranks; i++) {
		division.of[i] = group->host_of != NULL ? group->host_of(i) : 0;
		members[division.of[i]]++;
		division.parts = division.of[i] < division.parts ? division.parts : division.of[i] + 1;
	}
	for (int host = 1; host < division.parts; host++)
		if (members[host] != members[0])
			return apart(rank->nranks);
	return division;
}

static void part_of(const struct division *division, int part, int nranks, float *sum, size_t first, size_t count,
		    unsigned call)
{
	memset(sum, 0, count * sizeof(*sum));
	for (int rank = 0; rank < nranks; rank++)
		for (size_t i = 0; i < count && division->of[rank] == part; i++)
			sum[i] += input(rank, first + i, call);
}

struct reduction {
	int codec;
	size_t block;
	int op;
	bool encodes_sum; /* allreduce */
};

static void round_trip(const struct reduction *how, float *x, size_t count, void *encoded, bool adds, float *sum)
{
	const size_t bytes = bnet_codec_bytes(how->codec, how->block, count);

	bnet_codec_encode(how->codec, how->block, x, count, encoded);
	check_int(adds ? bnet_codec_decode_add(how->codec, how->block, encoded, bytes, sum, count)
		       : bnet_codec_decode(how->codec, how->block, encoded, bytes, sum, count),
		  0);
}

/* What the elements first … first+count-1 of all ranks reduce to. */
static float *expected_of(const struct rank *rank, const struct reduction *how, size_t first, size_t count)
{
	const struct division division = division_of(rank);
	float *sum = new_floats(count), *x = new_floats(count);
	char *encoded = malloc(bnet_codec_bytes(how->codec, how->block, count) + 1);

	check(encoded != NULL);
	for (int part = 0; part < division.parts; part++) {
		part_of(&division, part, rank->nranks, x, first, count, 0);
		if (division.parts > 1)
			round_trip(how, x, count, encoded, part > 0, sum);
		else
			memcpy(sum, x, count * sizeof(*x));
	}
	if (how->op == BNET_AVG)
		check_int(bnet_coll_scale_local(sum, count, BNET_FLOAT32, rank->nranks), 0);
	if (how->encodes_sum && division.parts > 1)
		round_trip(how, sum, count, encoded, false, sum);
	free(x);
	free(encoded);
	return sum;
}

/* ---- the bound: half a step of each input and of the result ---- */

static double step_of(const struct reduction *how, const double *x, size_t count, double widened)
{
	double least = x[0], most = x[0];

	for (size_t i = 1; i < count; i++) {
		least = fmin(least, x[i]);
		most = fmax(most, x[i]);
	}
	return (most - least + widened) / (how->codec == BNET_CODEC_U8 ? 255 : 15);
}

static void check_block(const struct rank *rank, const struct reduction *how, const float *result, size_t first,
			size_t count)
{
	const struct division division = division_of(rank);
	const double divisor = how->op == BNET_AVG ? rank->nranks : 1;
	double exact[4096] = {0}, bound = 0;
	float x[4096];

	for (int part = 0; part < division.parts; part++) {
		double wide[4096] = {0};

		part_of(&division, part, rank->nranks, x, first, count, 0);
		for (size_t i = 0; i < count; i++) {
			wide[i] = x[i];
			exact[i] += x[i] / divisor;
		}
		bound += step_of(how, wide, count, 0) / 2 / divisor;
	}
	if (how->encodes_sum)
		bound += step_of(how, exact, count, 2 * bound) / 2;
	for (size_t i = 0; i < count; i++)
		check(fabs(result[i] - exact[i]) <= bound + 100000 * FLT_EPSILON);
}

static void check_bound(const struct rank *rank, const struct reduction *how, const float *result, size_t first,
			size_t count)
{
	for (size_t at = 0; at < count; at += how->block)
		check_block(rank, how, result + at, first + at, count - at < how->block ? count - at : how->block);
}

/* ---- one operation ---- */

static void one_allreduce(struct rank *rank, struct reduction how, size_t count, bool in_place)
{
	float *send = new_floats(count), *recv = in_place ? send : new_floats(count), *expected;

	how.encodes_sum = true;
	fill(send, rank->rank, 0, count, 0);
	check_ok(rank, bnet_coll_allreduce_q(rank->coll, send, recv, count, how.op, how.codec, how.block, NULL));
	expected = expected_of(rank, &how, 0, count);
	check(memcmp(recv, expected, count * sizeof(float)) == 0);
	check(recv[count] == 77);
	check_bound(rank, &how, recv, 0, count);
	if (!in_place) {
		for (size_t i = 0; i < count; i++)
			check(send[i] == input(rank->rank, i, 0));
		free(recv);
	}
	free(expected);
	free(send);
}

static void one_reduce_scatter(struct rank *rank, struct reduction how, size_t count, bool in_place)
{
	const size_t all = count * (size_t)rank->nranks, mine = count * (size_t)rank->rank;
	float *send = new_floats(all), *recv = in_place ? send + mine : new_floats(count), *expected;

	fill(send, rank->rank, 0, all, 0);
	check_ok(rank, bnet_coll_reduce_scatter_q(rank->coll, send, recv, count, how.op, how.codec, how.block, NULL));
	expected = expected_of(rank, &how, mine, count);
	check(memcmp(recv, expected, count * sizeof(float)) == 0);
	check_bound(rank, &how, recv, mine, count);
	for (size_t i = 0; i < all; i++)
		check((in_place && i >= mine && i < mine + count) || send[i] == input(rank->rank, i, 0));
	if (!in_place) {
		check(recv[count] == 77);
		free(recv);
	}
	free(expected);
	free(send);
}

static void both(struct rank *rank, int codec, size_t block, size_t count, int op, bool in_place)
{
	const struct reduction how = {.codec = codec, .block = block, .op = op};

	one_allreduce(rank, how, count, in_place);
	one_reduce_scatter(rank, how, count < 65536 ? count : count / (size_t)rank->nranks, in_place);
}

/* Elements: none, fewer than ranks, around blocks; several segments; between two ranks, more segments than slots. */
static void reductions(struct rank *rank)
{
	static const size_t counts[] = {0, 1, 31, 33, 511, 512, 513, 5 * 512 + 1, 40000};
	static const size_t blocks[] = {32, 96, 512, 4096};

	for (size_t b = 0; b < (is_brief() ? 1 : sizeof(blocks) / sizeof(blocks[0])); b++)
		for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++)
			both(rank, codecs[(b + i) % 2], blocks[b], counts[i], ops[i / 2 % 2], i % 3 == 0);
	for (int i = 0; i < 2; i++)
		both(rank, codecs[i], 512, LARGE, ops[i], i == 0);
	if (rank->nranks == 2)
		both(rank, BNET_CODEC_U8, 96, LARGER, BNET_AVG, true);
}

static uint64_t bytes_sent(void)
{
	bnet_counters_t counters;

	bnet_counters(&counters);
	return counters.bytes_sent;
}

/* Rank 0 begins when the two others have sent each other as much as they may before that: what they have cannot be
 * added yet, and must not be overwritten. */
static void one_is_late(struct rank *rank)
{
	enum { COUNT = 2300003, MAX_SHARD = 256 * 1024, WINDOW = 8 }; /* as in quantized.c */
	const struct reduction how = {.codec = BNET_CODEC_U8, .block = 512, .op = BNET_SUM};
	const uint64_t before = bytes_sent();

	pthread_barrier_wait(&rank->group->barrier);
	while (rank->rank == 0 && bytes_sent() - before < (uint64_t)2 * WINDOW * MAX_SHARD)
		sched_yield();
	one_reduce_scatter(rank, how, COUNT, false);
}

/* The blocks of a reduce-scatter anywhere. */
static void scattered_blocks(struct rank *rank)
{
	enum { COUNT = 70001 };
	const struct reduction how = {.codec = BNET_CODEC_U4, .block = 64, .op = BNET_SUM};
	float *recv = new_floats(COUNT), *expected = expected_of(rank, &how, (size_t)rank->rank * COUNT, COUNT);
	void *sends[MAX_RANKS];
	const bnet_op_t op = {.kind = BNET_COLL_REDUCE_SCATTER_Q,
			      .dtype = BNET_FLOAT32,
			      .op = how.op,
			      .count = COUNT,
			      .sends = sends,
			      .recv = recv,
			      .codec = how.codec,
			      .block = how.block};

	for (int i = 0; i < rank->nranks; i++) {
		float *block = new_floats(COUNT);

		fill(block, rank->rank, (size_t)i * COUNT, COUNT, 0);
		sends[i] = block;
	}
	check_ok(rank, bnet_coll_run(rank->coll, &op));
	check(memcmp(recv, expected, COUNT * sizeof(float)) == 0);
	for (int i = 0; i < rank->nranks; i++)
		free(sends[i]);
	free(recv);
	free(expected);
}

/* ---- residuals: over many calls nothing is lost but what they hold in the end ---- */

struct account {
	double *results; /* of all calls */
	double *exact;
	float *residual;
};

static struct account open_account(size_t results, size_t given)
{
	struct account account = {.results = calloc(results + 1, sizeof(double)),
				  .exact = calloc(results + 1, sizeof(double)),
				  .residual = calloc(given + 1, sizeof(float))};

	check(account.results != NULL && account.exact != NULL && account.residual != NULL);
	return account;
}

static void close_account(struct account *account)
{
	free(account->results);
	free(account->exact);
	free(account->residual);
}

static void enter(struct account *account, const float *result, int nranks, int op, size_t first, size_t count,
		  unsigned call)
{
	for (size_t i = 0; i < count; i++) {
		double sum = 0;

		for (int rank = 0; rank < nranks; rank++)
			sum += (double)input(rank, first + i, call);
		account->exact[i] += op == BNET_AVG ? sum / nranks : sum;
		account->results[i] += (double)result[i];
	}
}

/* Residuals `first` … of all ranks make up the difference. */
static void check_account(struct rank *rank, struct account *account, int op, size_t first, size_t count)
{
	double largest = 0;

	rank->group->shared[rank->rank] = (char *)account->residual;
	pthread_barrier_wait(&rank->group->barrier);
	for (size_t i = 0; i < count; i++) {
		double left = 0;

		for (int other = 0; other < rank->nranks; other++)
			left += (double)((const float *)(void *)rank->group->shared[other])[first + i];
		left /= op == BNET_AVG ? rank->nranks : 1;
		check(fabs(account->results[i] + left - account->exact[i]) <= calls() * 100000 * FLT_EPSILON);
		largest = fmax(largest, fabs(left));
	}
	check(count == 0 || division_of(rank).parts == 1 || largest > 0);
	pthread_barrier_wait(&rank->group->barrier);
}

static void allreduces_keep(struct rank *rank, int codec, size_t block, size_t count, int op)
{
	struct account account = open_account(count, count);
	float *x = new_floats(count);

	for (unsigned call = 0; call < calls(); call++) {
		fill(x, rank->rank, 0, count, call);
		check_ok(rank, bnet_coll_allreduce_q(rank->coll, x, x, count, op, codec, block, account.residual));
		enter(&account, x, rank->nranks, op, 0, count, call);
	}
	check_account(rank, &account, op, 0, count);
	close_account(&account);
	free(x);
}

static void reduce_scatters_keep(struct rank *rank, int codec, size_t block, size_t count, int op)
{
	const size_t all = count * (size_t)rank->nranks, mine = count * (size_t)rank->rank;
	struct account account = open_account(count, all);
	float *x = new_floats(all), *result = new_floats(count);

	for (unsigned call = 0; call < calls(); call++) {
		fill(x, rank->rank, 0, all, call);
		check_ok(rank,
			 bnet_coll_reduce_scatter_q(rank->coll, x, result, count, op, codec, block, account.residual));
		enter(&account, result, rank->nranks, op, mine, count, call);
	}
	check_account(rank, &account, op, mine, count);
	close_account(&account);
	free(x);
	free(result);
}

static void residuals(struct rank *rank)
{
	for (int i = 0; i < 2; i++) {
		allreduces_keep(rank, codecs[i], 512, 5001, ops[i]);
		allreduces_keep(rank, codecs[i], 64, 40001, ops[1 - i]);
		allreduces_keep(rank, codecs[i], 32, 33, BNET_AVG); /* some own nothing */
		reduce_scatters_keep(rank, codecs[i], 512, 1001, ops[i]);
		reduce_scatters_keep(rank, codecs[i], 64, 20001, ops[1 - i]);
	}
}

/* ---- values that are not finite ---- */

/* Rank 0's, in its second block, and the last rank's, in its last block: these are NaN on all ranks, and the first keep
 * their residuals. */
static void not_finite(struct rank *rank)
{
	enum { BLOCK = 64, COUNT = 40 * BLOCK + 5 };
	static const float values[] = {NAN, INFINITY, -INFINITY, FLT_MAX};
	float x[COUNT], residual[COUNT];

	for (size_t v = 0; v < sizeof(values) / sizeof(values[0]); v++) {
		const bool large = values[v] == FLT_MAX; /* finite, but a sum of two is not */

		fill(x, rank->rank, 0, COUNT, 0);
		for (size_t i = 0; i < COUNT; i++)
			residual[i] = 0.25F;
		if (rank->rank == 0 || large)
			x[BLOCK + 7] = values[v];
		if (rank->rank == rank->nranks - 1)
			x[COUNT - 1] = values[0];
		check_ok(rank,
			 bnet_coll_allreduce_q(rank->coll, x, x, COUNT, BNET_SUM, BNET_CODEC_U8, BLOCK, residual));
		for (size_t i = 0; i < COUNT; i++) {
			check((isnan(x[i]) != 0) == (i / BLOCK == 1 || i / BLOCK == 40));
			check(isfinite(residual[i]));
			if (rank->rank == 0 && i / BLOCK == 1 && !large)
				check(residual[i] == 0.25F);
		}
	}
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

/* Two hosts of two ranks: the network carries codes of each host's sums, and nothing else. */
static void crosses_rarely(struct rank *rank)
{
	enum { COUNT = 1 << 20, BLOCK = 512 };
	const uint64_t codes = bnet_codec_bytes(BNET_CODEC_U8, BLOCK, COUNT), frames = 16 * 1024;
	float *x = calloc(COUNT, sizeof(float)), *y = calloc(COUNT, sizeof(float));
	uint64_t before[3];

	check(x != NULL && y != NULL);
	for (int step = 0; step < 3; step++) {
		pthread_barrier_wait(&rank->group->barrier);
		before[step] = bytes_sent();
		pthread_barrier_wait(&rank->group->barrier);
		if (step == 0)
			check_ok(rank,
				 bnet_coll_allreduce_q(rank->coll, x, y, COUNT, BNET_SUM, BNET_CODEC_U8, BLOCK, NULL));
		if (step == 1)
			check_ok(rank, bnet_coll_reduce_scatter_q(rank->coll, x, y, COUNT / 4, BNET_SUM, BNET_CODEC_U8,
								  BLOCK, NULL));
	}
	check(before[1] - before[0] <= 2 * codes + frames);
	check(before[2] - before[1] <= codes + frames);
	free(x);
	free(y);
}

static void run_all(int nranks, bool shares, int (*host_of)(int))
{
	static void (*const bodies[])(struct rank *) = {reductions, scattered_blocks, residuals, not_finite};

	for (size_t i = 0; i < sizeof(bodies) / sizeof(bodies[0]); i++) {
		struct group group = {.prepare = connect_rank,
				      .shares = shares,
				      .host_of = host_of,
				      .checks = nranks % 2 == 0};

		if (nranks > 1 || bodies[i] != not_finite) /* one rank gives what it gets */
			run_group(&group, 12, nranks, bodies[i]);
	}
}

int main(void)
{
	static int (*const layouts[])(int) = {halves, in_turn, one_apart};

	setenv("NCCL_SOCKET_IFNAME", "lo", 1);
	alarm(DEADLINE_S);
	for (int nranks = 1; nranks <= (is_nightly() ? MOST_RANKS : is_brief() ? 2 : 3); nranks++)
		run_all(nranks, false, NULL);
	run_group(&(struct group){.prepare = connect_rank}, 12, 3, one_is_late);
	run_group(&(struct group){.prepare = connect_rank, .shares = true}, 12, 3, reductions);
	for (size_t i = 0; i < (is_nightly() ? sizeof(layouts) / sizeof(layouts[0]) : 1); i++)
		run_all(4, true, layouts[i]);
	for (size_t i = 0; i < 2; i++)
		run_group(&(struct group){.prepare = connect_rank, .shares = true, .host_of = layouts[i]}, 12, 4,
			  crosses_rarely);
	if (is_nightly() && MOST_RANKS > 3)
		run_all(6, true, in_turn); /* two hosts of three */
	return 0;
}
