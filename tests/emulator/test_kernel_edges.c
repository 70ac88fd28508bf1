/* SPDX-License-Identifier: MIT
 *
 * The edges of a launch: aborts, kernels that are not emulated, works that follow each other with other protocols,
 * flags that wrap, and lines that a network has written in part.
 */
#include "job.h"

/* ---- a launch that ends early ---- */

static void end_launches(const struct world *world)
{
	__atomic_store_n((volatile uint32_t *)&world->abort, 1, __ATOMIC_RELAXED);
}

/* Rank 0 waits for rank 1, which does not come but ends rank 0's launch. */
static int fill_abort(const struct world *world, int rank, int channel, int64_t n, struct emu_batch *batch)
{
	if (rank == 1) {
		end_launches(world);
		return 0;
	}
	return fill_job(world, rank, channel, n, batch);
}

static int fill_abort_p2p(const struct world *world, int rank, int channel, int64_t n, struct emu_batch *batch)
{
	static char buffer[100];

	(void)channel;
	if (rank == 1) {
		end_launches(world);
		return 0;
	}
	memset(batch, 0, sizeof(*batch));
	batch->func = EMU_SEND_RECV;
	batch->works = 1;
	batch->p2p[0] = (struct emu_p2p){.recv_addr = buffer, .recv_bytes = 100, .recv_rank = 1, .recv_chunk = 64};
	batch->p2p[0].has_recv = true;
	return n == 0;
}

static void check_aborted(struct world *world)
{
	check_int(world->abort, 1);
	check_int(world->result[0], 0);
	check_int(world->result[1], 0);
	world_close(world);
}

static void test_abort(enum emu_func func, enum emu_algo algo, enum emu_proto proto)
{
	struct job job = {.func = func, .algo = algo, .proto = proto, .type = EMU_FLOAT32, .count = 100000, .shrink = 1};
	struct world world;

	world_open(&world, 2, 2, WORLD_DIRECT);
	make_buffers(&job, &world);
	world_play(&world, proto, 1, 1, fill_abort, &job);
	free_buffers(&job, &world);
	check_aborted(&world);
}

static void test_aborts(void)
{
	struct world world;

	for (int proto = 0; proto < EMU_PROTOCOLS; proto++) {
		test_abort(EMU_ALL_REDUCE, EMU_RING, (enum emu_proto)proto);
		test_abort(EMU_ALL_REDUCE, EMU_TREE, (enum emu_proto)proto);
	}
	test_abort(EMU_REDUCE_SCATTER, EMU_PAT, EMU_SIMPLE);
	test_abort(EMU_ALL_GATHER, EMU_PAT, EMU_SIMPLE);
	world_open(&world, 2, 2, WORLD_PROXY);
	world_play(&world, EMU_SIMPLE, 1, 1, fill_abort_p2p, NULL);
	check_aborted(&world);
}

/* One channel has an unknown kernel while the other one waits. */
static int fill_unknown(const struct world *world, int rank, int channel, int64_t n, struct emu_batch *batch)
{
	if (channel == 1 || rank == 1)
		return -1;
	return fill_job(world, rank, channel, n, batch);
}

static void test_unknown(void)
{
	struct job job = {.func = EMU_ALL_REDUCE, .algo = EMU_TREE, .type = EMU_INT8, .count = 50000, .shrink = 1};
	struct world world;

	world_open(&world, 2, 2, WORLD_DIRECT);
	make_buffers(&job, &world);
	world_play(&world, EMU_LL, 1, 1, fill_unknown, &job);
	for (int rank = 0; rank < 2; rank++) {
		check_int(world.result[rank], -1);
		check_str(world.what[rank], "a kernel of the test");
	}
	free_buffers(&job, &world);
	world_close(&world);
}

/* ---- works that follow each other ---- */

static const struct work {
	enum emu_func func;
	enum emu_algo algo;
	enum emu_proto proto;
} works[] = {
	{EMU_BROADCAST, EMU_RING, EMU_SIMPLE},  {EMU_ALL_REDUCE, EMU_RING, EMU_SIMPLE},
	{EMU_ALL_REDUCE, EMU_TREE, EMU_LL},     {EMU_REDUCE_SCATTER, EMU_RING, EMU_SIMPLE},
	{EMU_ALL_REDUCE, EMU_RING, EMU_LL128},  {EMU_REDUCE_SCATTER, EMU_PAT, EMU_SIMPLE},
	{EMU_ALL_GATHER, EMU_RING, EMU_SIMPLE}, {EMU_REDUCE, EMU_RING, EMU_LL},
	{EMU_ALL_GATHER, EMU_PAT, EMU_SIMPLE},  {EMU_ALL_REDUCE, EMU_TREE, EMU_SIMPLE},
};
enum { WORKS = sizeof(works) / sizeof(works[0]) };

/* All of them in one launch; each twice in its batch, the second time in place of the first. */
static int fill_works(const struct world *world, int rank, int channel, int64_t n, struct emu_batch *batch)
{
	if (n == WORKS)
		return 0;
	fill_coll((const struct job *)world->job + n, world, rank, channel, batch);
	batch->works = 2;
	batch->coll[1] = batch->coll[0];
	return 1;
}

static void test_works(int ranks)
{
	struct job jobs[WORKS];
	struct world world;

	world_open(&world, ranks, 2, WORLD_DIRECT);
	emu_kernel_set_release(23000);
	for (int i = 0; i < WORKS; i++) {
		jobs[i] = (struct job){.func = works[i].func,
				       .algo = works[i].algo,
				       .proto = works[i].proto,
				       .type = EMU_INT32,
				       .count = 700 + 13 * (size_t)i,
				       .shrink = 1};
		make_buffers(&jobs[i], &world);
	}
	world_play(&world, EMU_SIMPLE, 1, 1, fill_works, jobs);
	for (int i = 0; i < WORKS; i++) {
		check_results(&jobs[i], &world);
		free_buffers(&jobs[i], &world);
	}
	world_close(&world);
}

/* ---- LL's flags ---- */

static void set_steps(struct wire *wire, uint64_t step)
{
	wire->send.step = wire->recv.step = wire->moved = step;
	wire->send.head = wire->recv.head = wire->send.tail = wire->recv.tail = step;
}

/* An operation of whole chunks skips the steps that are left of one, and gives back what it skipped. */
static void test_rounding(void)
{
	struct job job = {.func = EMU_ALL_GATHER, .algo = EMU_RING, .proto = EMU_SIMPLE, .shrink = 1};
	struct world world;
	struct wire *wire;

	world_open(&world, 2, 1, WORLD_PROXY);
	wire = world_wire(&world, 0, 1, 0, 0);
	set_steps(wire, 5);
	set_steps(world_wire(&world, 1, 0, 0, 0), 5);
	play(&world, job);
	check_int(wire->send.step, 8);
	check_int(wire->recv.step, 8);
	check_int(wire->recv.head, 8);
	world_close(&world);
}

/* In eight steps of 2^31 the sender rewrites the whole slot. */
static void test_cleaning(uint64_t first)
{
	struct job job = {.func = EMU_ALL_REDUCE, .algo = EMU_RING, .proto = EMU_LL, .type = EMU_INT64, .shrink = 1};
	struct world world;
	struct wire *wire;
	uint64_t *lines;

	world_open(&world, 2, 1, WORLD_PROXY);
	wire = world_wire(&world, 0, 1, 0, 0);
	set_steps(wire, first - 4);
	set_steps(world_wire(&world, 1, 0, 0, 0), first - 4);
	job.count = 16 * (LL_STEP / 16) - 30; /* eight rounds, the last one shorter: sixteen steps */
	play(&world, job);
	check_int(wire->logged, 16);
	for (int i = 0; i < 14; i++)
		check_int(wire->log[i], LL_STEP);
	job.count = 4; /* two lines for each rank */
	set_steps(wire, first - 1);
	set_steps(world_wire(&world, 1, 0, 0, 0), first - 1);
	play(&world, job);
	check_int(wire->log[0], 32);
	check_int(wire->log[1], LL_STEP);
	lines = (uint64_t *)(wire->recv.buffs[EMU_LL] + first % EMU_STEPS * LL_STEP);
	for (int i = 0; i < LL_STEP / 8; i++)
		check_int(lines[i] >> 32, (uint32_t)(first + 1));
	world_close(&world);
}

/* ---- lines that have arrived in part ---- */

static int fill_recv(const struct world *world, int rank, int channel, int64_t n, struct emu_batch *batch)
{
	(void)rank, (void)channel;
	memset(batch, 0, sizeof(*batch));
	batch->func = EMU_BROADCAST;
	batch->algo = EMU_RING;
	batch->proto = world->proto;
	batch->type = EMU_INT8;
	batch->works = 1;
	batch->coll[0].recvbuff = world->job;
	batch->coll[0].schedule.count = batch->coll[0].schedule.chunk = 240;
	return n == 0;
}

/* Rank 1 receives alone, from what is in the buffer; an abort ends it where it would wait. Has it got everything? */
static bool receive_alone(struct world *world, enum emu_proto proto, char *result)
{
	struct world_rank self = {world, 1};
	const struct emu_launch launch = world_launch(world, &self);
	const struct wire *wire = world_wire(world, 0, 1, 0, 0);
	const uint64_t before = wire->recv.step;
	const char *what;

	world->proto = proto;
	world->fill = fill_recv;
	world->job = result;
	world->abort = 1;
	check_int(emu_kernel_play(&launch, &what), 0);
	return wire->recv.head == before + 1;
}

static void test_partial_ll(void)
{
	struct world world;
	uint32_t *words;
	char result[240];

	world_open(&world, 2, 1, WORLD_PROXY);
	words = (uint32_t *)world_wire(&world, 0, 1, 0, 0)->recv.buffs[EMU_LL];
	for (int i = 0; i < 120; i++)
		words[i] = i % 2 == 1 ? 1 : 0x01010101 * (uint32_t)(i / 2);
	for (int i = 1; i < 120; i += 2) { /* every flag counts */
		words[i] = 0;
		check(!receive_alone(&world, EMU_LL, result));
		words[i] = 1;
	}
	check(receive_alone(&world, EMU_LL, result));
	for (int i = 0; i < 240; i++)
		check_int(result[i], i / 4);
	world_close(&world);
}

/* A line whose flag has arrived is taken for complete, as on a GPU. */
static void test_partial_ll128(void)
{
	struct world world;
	uint64_t *words;
	char result[240];

	world_open(&world, 2, 1, WORLD_PROXY);
	words = (uint64_t *)world_wire(&world, 0, 1, 0, 0)->recv.buffs[EMU_LL128];
	for (int i = 0; i < 256; i++)
		words[i] = i % 16 == 15 ? 1 : UINT64_C(0x0101010101010101) * (uint64_t)i;
	for (int i = 15; i < 256; i += 16) {
		words[i] = 0;
		check(!receive_alone(&world, EMU_LL128, result));
		words[i] = 1;
	}
	check(receive_alone(&world, EMU_LL128, result));
	for (int i = 0; i < 240; i++)
		check_int(result[i], i / 8 + (i >= 120));
	world_close(&world);
}

int main(void)
{
	test_aborts();
	test_unknown();
	test_works(2);
	test_works(5);
	test_rounding();
	test_cleaning(0x7ffffff8);
	test_cleaning(0xfffffff8);
	test_partial_ll();
	test_partial_ll128();
	return 0;
}
