/* SPDX-License-Identifier: MIT
 *
 * The steps that NCCL's proxies count on: the sizes of a ring allreduce's slices against NCCL's own rule for proxies,
 * and PAT, whose steps all ranks and proxies must count alike.
 */
#include "job.h"
#include "kernel/schedule.h"

/* ---- a ring's slices ---- */

static int64_t wire_bytes(enum emu_proto proto, int64_t bytes)
{
	if (proto == EMU_LL)
		return (bytes + 7) / 8 * 16;
	return proto == EMU_LL128 ? (bytes + 1919) / 1920 * 2048 : bytes;
}

/* A rank's allreduce on the ring, as NCCL's proxies of registered buffers compute it. */
static void check_slices(const struct world *world, const struct job *job, int rank, int channel)
{
	const struct wire *wire = world->wires[rank][(rank + 1) % world->ranks][channel][0];
	const struct emu_schedule schedule = contiguous(job, channel, world->channels);
	const int64_t element = (int64_t)emu_type_bytes(job->type), ranks = world->ranks;
	const int slices = slice_count(job);
	int n = 0;

	for (int64_t at = 0; at < schedule.count; at += ranks * schedule.chunk) {
		const int64_t left = schedule.count - at;
		const int64_t grain = 16 / element;
		const int64_t chunk = left < ranks * schedule.chunk
					      ? ((left + ranks - 1) / ranks + grain - 1) / grain * grain
					      : schedule.chunk;

		for (int stage = 0; stage < 2 * (ranks - 1); stage++) {
			const int64_t start = (rank + 2 * ranks - 1 - stage) % ranks * chunk;
			const int64_t most = left - start < chunk ? left - start : chunk;
			const int64_t count = most < 0 ? 0 : most;
			const int64_t least = SIMPLE_STEP / element * slices / 32;
			const int64_t even = (count + 16 * slices - 1) / (16 * slices) * 16;
			const int64_t slice = job->proto != EMU_SIMPLE ? count : even > least ? even : least;

			for (int i = 0; i < slices; i++) {
				const int64_t rest = count - i * slice;
				const int64_t size = rest < 0 ? 0 : rest < slice ? rest : slice;

				check(n < wire->logged);
				check_int(wire->log[n++], wire_bytes(job->proto, size * element));
			}
		}
	}
	check_int(wire->logged, n);
}

static void test_slices(enum emu_proto proto, enum world_link link)
{
	static const size_t counts[] = {1, 5, 64, 700, 2500, 9001, 30000};
	const enum emu_type types[] = {EMU_FLOAT32, EMU_INT8, EMU_FLOAT64};
	struct world world;

	world_open(&world, 3, 2, link);
	for (size_t i = 0; i < (is_brief() ? 4 : is_nightly() ? 21 : 7); i++) {
		struct job job = {.func = EMU_ALL_REDUCE,
				  .algo = EMU_RING,
				  .proto = proto,
				  .type = types[i / 7],
				  .count = counts[i % 7],
				  .shrink = 1};

		make_buffers(&job, &world);
		world_play(&world, proto, slice_count(&job), slice_count(&job), fill_job, &job);
		check_results(&job, &world);
		for (int rank = 0; rank < world.ranks; rank++)
			for (int channel = 0; channel < world.channels; channel++)
				if (contiguous(&job, channel, 2).count > 0)
					check_slices(&world, &job, rank, channel);
		free_buffers(&job, &world);
	}
	world_close(&world);
}

/* ---- schedules before 2.20 ---- */

static const struct strided_case {
	enum emu_func func;
	enum emu_algo algo;
	enum emu_proto proto;
	enum emu_type type;
	int threads, channels, bid;
	ssize_t size, last;                             /* elements */
	ssize_t base[2], distance[2], chunk[2], rounds; /* of the first and the last round */
} strided_cases[] = {
	/* Four ranks; a step has 524288 bytes of Simple, 16384 of LL, 115200 of LL128. */
	{EMU_ALL_REDUCE,
	 EMU_RING,
	 EMU_SIMPLE,
	 EMU_FLOAT32,
	 544,
	 2,
	 1,
	 5000000,
	 0,
	 {2097152, 4599808},
	 {524288, 101376},
	 {524288, 101376},
	 2},
	{EMU_ALL_REDUCE, EMU_RING, EMU_LL, EMU_FLOAT32, 512, 2, 1, 40000, 0, {4096, 33792}, {8192, 2048}, {4096, 1024}, 2},
	{EMU_ALL_REDUCE,
	 EMU_RING,
	 EMU_LL128,
	 EMU_FLOAT32,
	 640,
	 2,
	 1,
	 100000,
	 0,
	 {14400, 14400},
	 {28800, 28800},
	 {14400, 14400},
	 1},
	{EMU_ALL_GATHER,
	 EMU_RING,
	 EMU_SIMPLE,
	 EMU_INT8,
	 544,
	 2,
	 1,
	 4500000,
	 0,
	 {2097152, 4349952},
	 {0},
	 {2097152, 155648},
	 2},
	{EMU_REDUCE_SCATTER, EMU_RING, EMU_LL, EMU_INT8, 512, 2, 1, 40000, 4096, {16384, 36864}, {0}, {16384, 4096}, 2},
	{EMU_ALL_GATHER, EMU_RING, EMU_LL128, EMU_FLOAT64, 320, 2, 1, 20000, 0, {10080, 10080}, {0}, {10080, 10080}, 1},
	{EMU_BROADCAST, EMU_RING, EMU_SIMPLE, EMU_FLOAT16, 288, 1, 0, 300000, 0, {0, 262144}, {0}, {262144, 37888}, 2},
	{EMU_REDUCE, EMU_RING, EMU_LL128, EMU_FLOAT64, 320, 2, 1, 10000, 0, {6720, 6720}, {0}, {6720, 6720}, 1},
	{EMU_ALL_REDUCE,
	 EMU_TREE,
	 EMU_SIMPLE,
	 EMU_FLOAT32,
	 576,
	 2,
	 1,
	 100000,
	 131072,
	 {57344, 57344},
	 {0},
	 {57344, 57344},
	 1},
	{EMU_ALL_REDUCE, EMU_TREE, EMU_LL, EMU_FLOAT32, 512, 2, 1, 20000, 0, {4096, 20480}, {0}, {4096, 4096}, 3},
	{EMU_ALL_REDUCE,
	 EMU_TREE,
	 EMU_LL128,
	 EMU_FLOAT32,
	 640,
	 2,
	 1,
	 20000,
	 28800,
	 {10800, 10800},
	 {0},
	 {10800, 10800},
	 1},
};

static void test_strided(const struct strided_case *it)
{
	const struct emu_launch launch = {.ranks = 4, .buffer_bytes = {262144, 983040, 4194304}};
	const struct emu_batch batch = {.func = it->func, .algo = it->algo, .proto = it->proto, .type = it->type};
	const struct emu_schedule schedule = {.kind = EMU_STRIDED,
					      .size = it->size,
					      .tree_chunk = it->last,
					      .bid = it->bid,
					      .channels = it->channels,
					      .threads = it->threads};
	struct emu_rounds rounds;
	struct emu_round round;
	ssize_t n = 0;

	emu_rounds_open(&rounds, &launch, &batch, &schedule);
	for (; emu_rounds_next(&rounds, &round); n++) {
		const int which = n == 0 ? 0 : 1;

		if (n > 0 && n < it->rounds - 1)
			continue;
		check_int(round.base, it->base[which]);
		check_int(round.chunk, it->chunk[which]);
		check_int(round.end, it->size);
		if (it->distance[0] > 0)
			check_int(round.distance, it->distance[which]);
	}
	check_int(n, it->rounds);
}

/* ---- PAT ---- */

/* The operations that NCCL gives to PAT. release: its steps changed in 2.26. */
static void test_pat(struct world *world, int release)
{
	static const size_t counts[] = {1, 3, 17, 100, 255, 512, 777, 4099};
	const enum emu_type types[] = {EMU_FLOAT32, EMU_INT8, EMU_FLOAT16, EMU_FLOAT64};

	emu_kernel_set_release(release);
	for (int i = 0; i < 8 * 4; i++) {
		struct job job = {
			.func = EMU_REDUCE_SCATTER,
			.algo = EMU_PAT,
			.proto = EMU_SIMPLE,
			.type = types[i % 4],
			.op = i % 3 == 0 ? EMU_MAX : EMU_SUM,
			.count = counts[i / 4],
			.shrink = i % 5 == 0 ? 2 : 1,
		};

		play(world, job);
		job.func = EMU_ALL_GATHER;
		play(world, job);
		job.in_place = true;
		play(world, job);
	}
}

static void test_pat_ranks(enum world_link link)
{
	static const int counts[] = {2, 3, 4, 5, 6, 7, 8, 13, 16, 20};

	const int most = link == WORLD_DIRECT ? 10 : 7;

	for (int i = 0; i < (is_nightly() ? most : is_brief() ? 2 : 5); i++) {
		const int ranks = counts[i];
		struct world world;

		world_open(&world, ranks, ranks % 2 + 1, link);
		test_pat(&world, 22500);
		test_pat(&world, 22600);
		world_close(&world);
	}
}

int main(void)
{
	for (size_t i = 0; i < sizeof(strided_cases) / sizeof(strided_cases[0]); i++)
		test_strided(&strided_cases[i]);
	for (int proto = 0; proto < EMU_PROTOCOLS; proto++) {
		test_slices((enum emu_proto)proto, WORLD_PROXY);
		test_slices((enum emu_proto)proto, WORLD_PROXY_OLD);
	}
	test_pat_ranks(WORLD_DIRECT);
	test_pat_ranks(WORLD_PROXY);
	return 0;
}
