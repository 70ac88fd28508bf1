/* SPDX-License-Identifier: MIT
 *
 * How large the messages of a group are: that all ranks agree on it, that it follows the longest round trip, which
 * operations use it, and that results do not depend on it. Threads as ranks, real sockets on the loopback interface.
 */
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "bagua_net.h"
#include "bagua_net_host.h"
#include "check.h"
#include "coll/coll.h"
#include "coll/distance.h"
#include "ranks.h"
#include "../sanitize.h"

#define DEADLINE_S 600 /* of the whole program */
#define KIB ((size_t)1024)
#define NEAR_NS 100000
#define FAR_NS 20000000

/* ---- agreed on ---- */

/* Only the last rank is far away. */
static void agrees(struct rank *rank)
{
	static const struct {
		int64_t ns;
		size_t chunk;
	} rows[] = {{NEAR_NS, 512 * KIB},  {1999999, 512 * KIB}, {2000000, 1024 * KIB},   {4000000, 2048 * KIB},
		    {8000000, 4096 * KIB}, {FAR_NS, 4096 * KIB}, {INT64_MAX, 4096 * KIB}, {0, 512 * KIB}};

	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		const bool is_last = rank->rank == rank->nranks - 1;

		check_ok(rank, bnet_coll_agree_on_chunk(rank->coll, is_last ? rows[i].ns : 0));
		check_int(rank->coll->chunk, rows[i].chunk);
	}
}

/* ---- measured when the group connects, over a network whose first answers take 10 ms each ---- */

static ncclNet_v8_t slow_table;
static _Thread_local int slow_answers;

static ncclResult_t slow_test(void *request, int *done, int *size)
{
	const struct timespec answer = {.tv_nsec = 10000000};

	if (slow_answers > 0 && slow_answers-- > 0)
		nanosleep(&answer, NULL);
	return ((const ncclNet_v8_t *)bnet_net_table(8))->test(request, done, size);
}

static void connect_slowly(struct rank *rank)
{
	slow_answers = 1 << 30;
	connect_rank(rank);
	slow_answers = 0;
}

static void is_far(struct rank *rank)
{
	check_int(rank->coll->chunk, 4096 * KIB);
}

/* Of the round trips, only the first is slow. */
static void connect_after_a_delay(struct rank *rank)
{
	slow_answers = 1;
	connect_rank(rank);
	check_int(slow_answers, 0);
}

static void may_be_near(struct rank *rank)
{
	if (rank->coll->chunk == 512 * KIB)
		atomic_store(&rank->group->flag, true);
}

/* A busy machine may make any group look far, but not all of them. */
static bool is_near_at_least_once(struct group group)
{
	for (int i = 0; i < 20 && !atomic_load(&group.flag); i++)
		run_group(&group, 8, 2, may_be_near);
	return atomic_load(&group.flag);
}

/* ---- used ---- */

enum { COUNT = 8 * 1024 * 1024 }; /* elements of a whole buffer */

struct result {
	float *recv;
	uint64_t messages; /* of all ranks */
};

static struct result run_at(struct rank *rank, int64_t round_trip_ns, bnet_op_t op)
{
	struct result result = {.recv = calloc(COUNT, sizeof(float))};

	check(result.recv != NULL);
	if (op.kind == BNET_COLL_BROADCAST && rank->rank == op.root)
		memcpy(result.recv, op.send, COUNT * sizeof(float));
	op.recv = result.recv;
	check_ok(rank, bnet_coll_agree_on_chunk(rank->coll, round_trip_ns));
	result.messages = count_run(rank, &op).messages_sent;
	return result;
}

/* Far ranks send at most half as many messages, for the same bits. */
static void differs_in_messages_only(struct rank *rank, bnet_op_t op)
{
	const struct result near = run_at(rank, NEAR_NS, op), far = run_at(rank, FAR_NS, op);

	if (far.messages * 2 > near.messages)
		fprintf(stderr, "kind %d: %ju messages, and %ju from far away\n", op.kind, (uintmax_t)near.messages,
			(uintmax_t)far.messages);
	check(far.messages > 0 && far.messages * 2 <= near.messages);
	check(memcmp(near.recv, far.recv, COUNT * sizeof(float)) == 0);
	free(near.recv);
	free(far.recv);
}

static float *new_input(int rank)
{
	float *x = malloc(COUNT * sizeof(float));

	check(x != NULL);
	for (size_t i = 0; i < COUNT; i++)
		x[i] = (float)((i * 7 + (size_t)rank * 31) % 251);
	return x;
}

static void uses_it(struct rank *rank)
{
	const int *kind, crossing[] = {BNET_COLL_ALLREDUCE,   BNET_COLL_REDUCE_SCATTER,   BNET_COLL_ALL_GATHER,
				       BNET_COLL_ALLREDUCE_Q, BNET_COLL_REDUCE_SCATTER_Q, -1};
	const int others[] = {BNET_COLL_BROADCAST, BNET_COLL_REDUCE,     BNET_COLL_GATHER,
			      BNET_COLL_SCATTER,   BNET_COLL_ALL_TO_ALL, -1};
	float *send = new_input(rank->rank);

	for (int i = 0; i < (rank->group->shares ? 1 : 2); i++) {
		for (kind = i == 0 ? crossing : others; *kind >= 0; kind++) {
			const bool whole = *kind == BNET_COLL_ALLREDUCE || *kind == BNET_COLL_ALLREDUCE_Q ||
					   *kind == BNET_COLL_BROADCAST || *kind == BNET_COLL_REDUCE;

			differs_in_messages_only(rank, (bnet_op_t){.kind = *kind,
								   .dtype = BNET_FLOAT32,
								   .op = BNET_SUM,
								   .count = COUNT / (whole ? 1 : (size_t)rank->nranks),
								   .send = send,
								   .codec = BNET_CODEC_U8,
								   .block = 512});
		}
	}
	free(send);
}

static int halves(int rank)
{
	return rank / 2;
}

int main(void)
{
	setenv("NCCL_SOCKET_IFNAME", "lo", 1);
	alarm(DEADLINE_S);
	slow_table = *(const ncclNet_v8_t *)bnet_net_table(8);
	slow_table.test = slow_test;
	for (int nranks = 2; nranks <= (is_nightly() ? 5 : 2); nranks++)
		run_group(&(struct group){.prepare = connect_rank}, 12, nranks, agrees);
	for (int nranks = 2; nranks <= (is_nightly() ? 3 : 2); nranks++)
		run_group(&(struct group){.prepare = connect_slowly, .table = &slow_table}, 8, nranks, is_far);
	check(is_near_at_least_once((struct group){.prepare = connect_rank}));
	check(is_near_at_least_once((struct group){.prepare = connect_after_a_delay, .table = &slow_table}));
	if (is_brief())
		return 0;
	run_group(&(struct group){.prepare = connect_rank}, 12, 2, uses_it);
	run_group(&(struct group){.prepare = connect_rank, .shares = true, .host_of = halves}, 12, 4, uses_it);
	return 0;
}
