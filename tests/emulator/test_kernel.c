/* SPDX-License-Identifier: MIT
 *
 * The emulated kernels' collectives on two to eight ranks: every algorithm, protocol, type and operation, over memory
 * that the ranks share and over proxies. Each result is compared element by element.
 */
#include "job.h"

static const size_t sizes[] = {0, 1, 17, 333, 2048, 9011};
enum { SIZES = sizeof(sizes) / sizeof(sizes[0]) };

static void test_sizes(struct world *world, enum emu_proto proto, bool strided)
{
	const enum emu_func funcs[] = {EMU_BROADCAST, EMU_REDUCE, EMU_ALL_GATHER, EMU_REDUCE_SCATTER, EMU_ALL_REDUCE};

	for (int i = 0; i < SIZES * 5; i++) {
		struct job job = {
			.func = funcs[i % 5],
			.algo = EMU_RING,
			.proto = proto,
			.type = i % 2 == 0 ? EMU_FLOAT32 : EMU_INT8,
			.op = EMU_SUM,
			.count = sizes[i / 5],
			.root = i % world->ranks,
			.shrink = i % 3 == 0 ? 2 : 1,
			.strided = strided,
		};

		job.in_place = (i + world->ranks + world->link) % 2 == 0;
		play(world, job);
		job.algo = EMU_TREE;
		if (job.func == EMU_ALL_REDUCE)
			play(world, job);
	}
}

static void test_types(struct world *world, enum emu_proto proto)
{
	const enum emu_op ops[] = {EMU_SUM, EMU_PROD, EMU_MIN, EMU_MAX, EMU_PREMULSUM, EMU_SUMPOSTDIV};
	const enum emu_func funcs[] = {EMU_REDUCE, EMU_REDUCE_SCATTER, EMU_ALL_REDUCE, EMU_ALL_REDUCE};

	for (int i = 0; i < EMU_TYPES * 6 * 4; i++) {
		const struct job job = {
			.func = funcs[i % 4],
			.algo = i % 4 == 3 ? EMU_TREE : EMU_RING,
			.proto = proto,
			.type = (enum emu_type)(i / 24),
			.op = ops[i / 4 % 6],
			.scalar = i / 4 % 6 == 5 ? 3 : 2,
			.count = 1234,
			.root = i % world->ranks,
			.shrink = 1,
		};

		if (job.op != EMU_SUMPOSTDIV || !value_is_float(job.type))
			play(world, job);
	}
}

/* What a release has: strided schedules came with FIFOs of the old form. */
static void test_link(enum emu_proto proto, enum world_link link)
{
	const int ranks[] = {2, 3, 4, 5, 8};

	for (int i = 0; i < (is_nightly() ? 5 : is_brief() ? 2 : 3); i++) {
		struct world world;

		world_open(&world, ranks[i], 1 + i % 2, link);
		if (link != WORLD_PROXY_OLD)
			test_sizes(&world, proto, false);
		if (link != WORLD_PROXY)
			test_sizes(&world, proto, true);
		if (link == WORLD_DIRECT ? ranks[i] == 4 : link == WORLD_PROXY && ranks[i] == 3)
			test_types(&world, proto);
		world_close(&world);
	}
}

int main(void)
{
	for (int link = 0; link < WORLD_LINKS; link++)
		for (int proto = 0; proto < EMU_PROTOCOLS; proto++)
			if (link == WORLD_PROXY || is_nightly())
				test_link((enum emu_proto)proto, (enum world_link)link);
	return 0;
}
