/* SPDX-License-Identifier: MIT
 *
 * The layouts of NCCL's device structures: arguments, communicators and works are written here byte by byte, at offsets
 * that come from NCCL's own headers and not from the emulator's tables, and must be read as what they mean.
 */
#include <stdbool.h>
#include <stdint.h>

#include "check.h"
#include "bytes.h"
#include "layout/layout.h"

enum { ROWS = 2000, CHANNELS = 64 };

/* ---- NCCL's memory ---- */

static _Alignas(16) char comm[128], channels[CHANNELS * 368], args[4096], fifo[4096];
static uint32_t consumed[CHANNELS];
static int row_to_id[ROWS];

static void *symbol(const char *name)
{
	return strcmp(name, "ncclDevFuncRowToId") == 0 ? row_to_id : NULL;
}

static void *no_symbol(const char *name)
{
	(void)name;
	return NULL;
}

/* Finds and binds the layout of a release, whose functions have their rows as numbers. Clears NCCL's memory. */
static const struct emu_layout *use(int version)
{
	const struct emu_layout *layout = emu_layout_find(version);
	const char *missing = NULL;

	check(layout);
	for (int i = 0; i < ROWS; i++)
		row_to_id[i] = i;
	check_int(emu_layout_bind(layout, symbol, &missing), 0);
	memset(comm, 0, sizeof(comm));
	memset(channels, 0, sizeof(channels));
	memset(args, 0, sizeof(args));
	memset(fifo, 0, sizeof(fifo));
	memset(consumed, 0, sizeof(consumed));
	return layout;
}

/* ---- which releases ---- */

static void test_versions(void)
{
	static const int known[] = {21801, 21803, 21903, 22005, 22105, 22203, 22304, 22403,
				    22501, 22605, 22703, 22809, 22902, 23007, 23102, 23203};
	static const int unknown[] = {0, -1, 21706, 21807, 22100, 22106, 22300, 22708, 23002, 23101, 23300, 99999};

	for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
		check(emu_layout_find(known[i]));
	for (size_t i = 0; i < sizeof(unknown) / sizeof(unknown[0]); i++)
		check(!emu_layout_find(unknown[i]));
	check(emu_layout_find(22703) == emu_layout_find(22707));
	check(emu_layout_find(22707) != emu_layout_find(22803));
	check(strncmp(emu_layout_versions(), "2.18.1–2.18.6, 2.19.1–2.19.4, ",
		      strlen("2.18.1–2.18.6, 2.19.1–2.19.4, ")) == 0);
	check(strstr(emu_layout_versions(), ", 2.21.5, "));
	check(strstr(emu_layout_versions(), ", 2.32.3"));
}

static void test_missing_symbol(void)
{
	const char *missing = NULL;

	check_int(emu_layout_bind(emu_layout_find(23007), no_symbol, &missing), -1);
	check_str(missing, "ncclDevFuncRowToId");
	check_int(emu_layout_bind(emu_layout_find(21803), no_symbol, &missing), 0);
}

/* ---- batches (2.22 and later) ---- */

/* What differs between the releases that are tried; offsets in bytes. */
struct release {
	int version;
	size_t abort_flag, channels, consumed;                /* communicator; 0: none */
	size_t coll, recvbuff, sendbuff, counts, grains, arg; /* collective: its size, its fields */
	int row_of_sum;                                       /* ring, LL, allreduce, sum, int8 */
	int types;
};

static const struct release releases[] = {
	{22203, 48, 56, 32, 64, 8, 16, 24, 48, 56, 1 + 9 + 3 + 3, 10},
	{22605, 56, 64, 40, 96, 8, 16, 56, 80, 88, 1 + 12 + 3 + 3, 12},
	{23007, 48, 56, 0, 128, 24, 32, 80, 104, 112, 1 + 12 + 3 + 3 + 3, 12},
	{23203, 48, 56, 0, 96, 8, 16, 56, 80, 88, 1 + 12 + 3 + 3 + 3, 12},
};

enum { OP_SUM, OP_PROD, OP_MINMAX, OP_PREMULSUM, OP_SUMPOSTDIV };
enum { STORAGE_ARGS, STORAGE_FIFO, STORAGE_PERSISTENT };
enum { WORK_P2P, WORK_COLL, WORK_REGISTERED, WORK_BCAST };

static int allreduce_row(const struct release *release, int op, int type, int algo, int proto)
{
	return release->row_of_sum - 3 + ((op * release->types + type) * 6 + algo) * 3 + proto;
}

static const struct emu_layout *use_release(const struct release *release, uint64_t mask, int storage)
{
	const struct emu_layout *layout = use(release->version);

	put(comm, 0, 3, 4);
	put(comm, 4, 8, 4);
	for (size_t i = 0; i < 3; i++)
		put(comm, 16 + 4 * i, 1000 * (i + 1), 4);
	put(comm, 28, 131072, 4);
	put_pointer(comm, release->abort_flag, &row_to_id[0]);
	put_pointer(comm, release->channels, channels);
	if (release->consumed)
		put_pointer(comm, release->consumed, consumed);
	put_pointer(args, 0, comm);
	put(args, 8, mask, 8);
	put(args, 16, (uint64_t)storage, 1);
	put(args, 20, sizeof(fifo) - 1, 4);
	put_pointer(args, 24, fifo);
	return layout;
}

static void put_batch(int place, int jump, bool extends, int type, int function, uint32_t base, uint64_t set)
{
	char *batch = args + 32 + 16 * place;

	put(batch, 0, (uint64_t)jump | (uint64_t)extends << 14 | (uint64_t)type << 15 | (uint64_t)function << 17, 4);
	put(batch, 4, base, 4);
	put(batch, 8, set, 8);
}

/* A collective on channels [low, high] with lows, mids and highs elements on the first, each middle and the last one,
 * in chunks of 1, 2 and 3 grains. */
static void put_coll(const struct release *release, char *work, int low, int high, const uint64_t counts[3],
		     uint64_t arg, bool is_pointer)
{
	memset(work, 0, release->coll);
	put(work, 0, (uint64_t)low | (uint64_t)high << 8 | 4 << 16 | (uint64_t)is_pointer << 24, 4);
	put(work, 4, 5, 4);
	put(work, release->recvbuff, 0x1000, 8);
	put(work, release->sendbuff, 0x2000, 8);
	for (size_t i = 0; i < 3; i++)
		put(work, release->counts + 8 * i, counts[i], 8);
	put(work, release->grains, UINT64_C(1) | UINT64_C(2) << 21 | UINT64_C(3) << 42, 8);
	put(work, release->arg, arg, 8);
}

static struct emu_launch open_buffer(const struct emu_layout *layout, size_t bytes)
{
	struct emu_launch launch;

	check_int(emu_launch_open(&launch, layout, NULL, args, bytes), 0);
	return launch;
}

static void test_launch(const struct release *release)
{
	const struct emu_layout *layout = use_release(release, 0x8000000000000016, STORAGE_ARGS);
	struct emu_launch launch = open_buffer(layout, sizeof(args));
	struct emu_launch other;

	memset(args, 0xff, sizeof(args)); /* the launch has a copy */
	check_int(launch.rank, 3);
	check_int(launch.ranks, 8);
	check_int(launch.buffer_bytes[EMU_SIMPLE], 3000);
	check_int(launch.p2p_chunk_bytes, 131072);
	check(launch.abort_flag == (const volatile uint32_t *)row_to_id);
	check_int(launch.channels, 4);
	check_int(launch.channel_ids[2], 4);
	check_int(launch.channel_ids[3], 63);
	emu_launch_close(&launch);
	check_int(emu_launch_open(&other, layout, NULL, args, 31), -1);
}

/* The parts of a collective's channels follow each other and cover it. */
static void test_parts(const struct release *release)
{
	static const uint64_t counts[] = {300, 1000, 77};
	const struct emu_layout *layout = use_release(release, 0x3c, STORAGE_ARGS);
	struct emu_launch launch;
	ssize_t end = 0;

	for (int i = 0; i < 4; i++)
		put_batch(i, 0, false, WORK_COLL, allreduce_row(release, OP_SUM, EMU_FLOAT32, 1, EMU_SIMPLE), 1024, 1);
	put_coll(release, args + 1024, 2, 5, counts, 0, false);
	launch = open_buffer(layout, sizeof(args));
	for (int i = 0; i < 4; i++) {
		static const ssize_t chunks[] = {128, 256, 256, 384}; /* grains of 512 bytes */
		struct emu_cursor cursor = {0};
		struct emu_batch batch;
		const char *what;

		check_int(emu_launch_next(&launch, i, &cursor, &batch, &what), 1);
		check_int(batch.func, EMU_ALL_REDUCE);
		check_int(batch.algo, EMU_RING);
		check_int(batch.proto, EMU_SIMPLE);
		check_int(batch.type, EMU_FLOAT32);
		check_int(batch.op, EMU_SUM);
		check_int(batch.works, 1);
		check(batch.coll[0].recvbuff == (void *)0x1000 && batch.coll[0].sendbuff == (void *)0x2000);
		check_int(batch.coll[0].root, 5);
		check_int(batch.coll[0].count, 300 + 2 * 1000 + 77);
		check_int(batch.coll[0].schedule.kind, EMU_CONTIGUOUS);
		check_int(batch.coll[0].schedule.offset, end);
		check_int(batch.coll[0].schedule.chunk, chunks[i]);
		check_int(batch.coll[0].schedule.last_chunk, 0);
		end += batch.coll[0].schedule.count;
		check_int(emu_launch_next(&launch, i, &cursor, &batch, &what), 0);
		check_int(emu_launch_next(&launch, i, &cursor, &batch, &what), 0);
	}
	check_int(end, 300 + 2 * 1000 + 77);
	emu_launch_close(&launch);
}

static void test_one_channel(const struct release *release)
{
	static const uint64_t counts[] = {9, 0, 0};
	const struct emu_layout *layout = use_release(release, 1, STORAGE_ARGS);
	struct emu_cursor cursor = {0};
	struct emu_launch launch;
	struct emu_batch batch;
	const char *what;

	put_batch(0, 0, false, WORK_COLL, allreduce_row(release, OP_SUM, EMU_FLOAT64, 0, EMU_LL128), 1024, 1);
	put_coll(release, args + 1024, 0, 0, counts, 0, false);
	launch = open_buffer(layout, sizeof(args));
	check_int(emu_launch_next(&launch, 0, &cursor, &batch, &what), 1);
	check_int(batch.algo, EMU_TREE);
	check_int(batch.coll[0].count, 9);
	check_int(batch.coll[0].schedule.count, 9);
	check_int(batch.coll[0].schedule.chunk, 240); /* 1920 bytes */
	emu_launch_close(&launch);
}

/* A collective of channel 1 in the buffer, which is a ring: a work may begin at its end and go on at its start. */
static void put_in_buffer(const struct release *release, uint32_t offset, uint64_t arg)
{
	static const uint64_t counts[] = {1, 0, 0};
	char work[128];

	put_coll(release, work, 1, 1, counts, arg, false);
	for (size_t i = 0; i < release->coll; i++)
		fifo[(offset + i) % sizeof(fifo)] = work[i];
}

/* Two batches. The second one has an extension, and the end of the buffer divides its second work. */
static void test_walk(const struct release *release, int storage)
{
	const struct emu_layout *layout = use_release(release, 2, storage);
	const uint32_t size = (uint32_t)release->coll, base = sizeof(fifo) - size - 32;
	const int row = allreduce_row(release, OP_SUM, EMU_INT8, 1, EMU_LL);
	const bool tells = release->consumed && storage == STORAGE_FIFO;
	struct emu_cursor cursor = {0};
	struct emu_launch launch;
	struct emu_batch batch;
	const char *what;

	put_batch(0, 2, false, WORK_COLL, row, 1024, 5);
	put_batch(2, 1, true, WORK_COLL, row, base, 3);
	put_batch(3, 0, false, WORK_COLL, row, base + 2 * size, 1);
	for (uint32_t i = 0; i < 3; i++) {
		put_in_buffer(release, 1024 + i * size, 10 + i);
		put_in_buffer(release, base + i * size, 20 + i);
	}
	launch = open_buffer(layout, 32 + 4 * 16);
	check_int(emu_launch_next(&launch, 0, &cursor, &batch, &what), 1);
	check_int(batch.works, 2);
	check_int(batch.coll[1].arg, 12);
	check_int(consumed[1], tells ? 1024 + 3 * size : 0);
	check_int(emu_launch_next(&launch, 0, &cursor, &batch, &what), 1);
	check_int(batch.works, 3);
	for (int i = 0; i < 3; i++) {
		check_int(batch.coll[i].arg, 20 + i);
		check_int(batch.coll[i].count, 1);
		check(batch.coll[i].recvbuff == (void *)0x1000);
	}
	check_int(consumed[1], tells ? base + 3 * size : 0);
	check_int(emu_launch_next(&launch, 0, &cursor, &batch, &what), 0);
	emu_launch_close(&launch);
}

/* Works of one function may differ in what their scalars say. */
static void test_mixed_batch(const struct release *release)
{
	static const uint64_t counts[] = {1, 0, 0};
	static const uint64_t scalars[] = {0, 0, 0x80000000, 0x7fffffff, 0xffffffff};
	static const enum emu_op ops[] = {EMU_MIN, EMU_MIN, EMU_MIN, EMU_MAX, EMU_MAX};
	static const enum emu_type types[] = {EMU_UINT32, EMU_UINT32, EMU_INT32, EMU_INT32, EMU_UINT32};
	const struct emu_layout *layout = use_release(release, 1, STORAGE_FIFO);
	struct emu_cursor cursor = {0};
	struct emu_launch launch;
	struct emu_batch batch;
	const char *what;

	put_batch(0, 0, false, WORK_COLL, allreduce_row(release, OP_MINMAX, EMU_UINT32, 1, EMU_LL), 0, 31);
	for (size_t i = 0; i < 5; i++)
		put_coll(release, fifo + i * release->coll, 0, 0, counts, scalars[i], false);
	launch = open_buffer(layout, 48);
	for (int i = 0; i < 5; i += batch.works) {
		check_int(consumed[0], 0);
		check_int(emu_launch_next(&launch, 0, &cursor, &batch, &what), 1);
		check_int(batch.works, i == 0 ? 2 : 1);
		check_int(batch.op, ops[i]);
		check_int(batch.type, types[i]);
	}
	check_int(consumed[0], release->consumed ? 5 * release->coll : 0);
	check_int(emu_launch_next(&launch, 0, &cursor, &batch, &what), 0);
	emu_launch_close(&launch);
}

/* The one batch of a launch with one collective of an operation and a type. Its result: 1, or -1 with what. */
static int one_coll(const struct release *release, int row, uint64_t arg, bool is_pointer, struct emu_batch *batch,
		    const char **what)
{
	static const uint64_t counts[] = {1, 0, 0};
	const struct emu_layout *layout = use_release(release, 1, STORAGE_ARGS);
	struct emu_cursor cursor = {0};
	struct emu_launch launch;
	int result;

	put_batch(0, 0, false, WORK_COLL, row, 64, 1);
	put_coll(release, args + 64, 0, 0, counts, arg, is_pointer);
	launch = open_buffer(layout, sizeof(args));
	result = emu_launch_next(&launch, 0, &cursor, batch, what);
	emu_launch_close(&launch);
	return result;
}

static void test_scalars(const struct release *release)
{
	const float factor = 0.25F;
	const bool has_sign = release->version >= 22403;
	struct emu_batch batch;
	const char *what;
	uint32_t bits;

	memcpy(&bits, &factor, sizeof(bits));
	check_int(one_coll(release, allreduce_row(release, OP_PREMULSUM, EMU_FLOAT32, 1, EMU_LL),
			   (uint64_t)(uintptr_t)&factor, true, &batch, &what),
		  1);
	check_int(batch.op, EMU_PREMULSUM);
	check_int(batch.coll[0].arg, bits);
	check_int(one_coll(release, allreduce_row(release, OP_SUMPOSTDIV, EMU_UINT64, 1, EMU_LL), has_sign ? 13 : 6,
			   false, &batch, &what),
		  1);
	check_int(batch.op, EMU_SUMPOSTDIV);
	check_int(batch.type, has_sign ? EMU_INT64 : EMU_UINT64);
	check_int(batch.coll[0].arg, 6);
	check_int(one_coll(release, allreduce_row(release, OP_MINMAX, EMU_BFLOAT16, 1, EMU_LL), 0xffff, false, &batch,
			   &what),
		  1);
	check_int(batch.op, EMU_MAX);
	check_int(batch.type, EMU_BFLOAT16);
}

static void test_not_emulated(const struct release *release)
{
	const struct emu_layout *layout;
	struct emu_cursor cursor = {0};
	struct emu_launch launch;
	struct emu_batch batch;
	const char *what;

	check_int(one_coll(release, allreduce_row(release, OP_SUM, EMU_INT8, 5, EMU_SIMPLE), 0, false, &batch, &what),
		  -1);
	check_str(what, "allreduce with NVLS_TREE");
	check_int(one_coll(release, 2001, 0, false, &batch, &what), -1);
	layout = use_release(release, 1, STORAGE_ARGS);
	put_batch(0, 0, false, WORK_REGISTERED, 0, 64, 1);
	launch = open_buffer(layout, sizeof(args));
	check_int(emu_launch_next(&launch, 0, &cursor, &batch, &what), -1);
	check_str(what, "registered buffers");
	emu_launch_close(&launch);

	put_batch(0, 0, false, WORK_COLL, allreduce_row(release, OP_SUM, EMU_INT8, 1, EMU_LL), 64, 1);
	put(args + 64, 3, 2, 1);
	launch = open_buffer(layout, sizeof(args));
	cursor = (struct emu_cursor){0};
	check_int(emu_launch_next(&launch, 0, &cursor, &batch, &what), -1);
	check_str(what, "registered buffers");
	emu_launch_close(&launch);

	launch = open_buffer(layout, 64 + release->coll - 1);
	cursor = (struct emu_cursor){0};
	check_int(emu_launch_next(&launch, 0, &cursor, &batch, &what), -1);
	check_str(what, "arguments that end before their works");
	emu_launch_close(&launch);
}

/* ---- send and receive ---- */

static void put_p2p(char *work, uint64_t bytes, int base, int send_parts, int recv_parts)
{
	put(work, 0, 0x100000, 8);
	put(work, 8, 0x900000, 8);
	put(work, 16, bytes, 8);
	put(work, 24, bytes, 8);
	put(work, 32, 6, 4);
	put(work, 36, 7, 4);
	put(work, 40, 8 | (uint64_t)base << 8 | (uint64_t)send_parts << 16 | (uint64_t)recv_parts << 24, 4);
	put(work, 44, 0x79, 1); /* (8 + 1) << 14 */
	put(work, 45, 0x05, 1);
	put(work, 46, 2, 1); /* receives by LL */
}

/* The parts of a message on eight channels, by channel: begin and bytes; -1: the channel has none. */
static void read_parts(const struct release *release, uint64_t bytes, int parts, ssize_t begins[8], ssize_t sizes[8])
{
	const struct emu_layout *layout = use_release(release, 0xff, STORAGE_ARGS);
	struct emu_launch launch;

	for (int i = 0; i < 8; i++)
		put_batch(i, 0, false, WORK_P2P, 0, 512, 1);
	put_p2p(args + 512, bytes, 5, parts, 0);
	launch = open_buffer(layout, sizeof(args));
	for (int i = 0; i < 8; i++) {
		struct emu_cursor cursor = {0};
		struct emu_batch batch;
		const char *what;

		check_int(emu_launch_next(&launch, i, &cursor, &batch, &what), 1);
		check_int(batch.func, EMU_SEND_RECV);
		check_int(batch.works, 1);
		check(!batch.p2p[0].has_recv);
		check_int(batch.p2p[0].send_rank, 6);
		check_int(batch.p2p[0].recv_rank, 7);
		check_int(batch.p2p[0].send_chunk, 9 << 14);
		check_int(batch.p2p[0].recv_chunk, 5);
		check(!batch.p2p[0].send_ll && batch.p2p[0].recv_ll);
		sizes[i] = batch.p2p[0].has_send ? (ssize_t)batch.p2p[0].send_bytes : -1;
		begins[i] = (char *)batch.p2p[0].send_addr - (char *)0x100000;
	}
	emu_launch_close(&launch);
}

static void test_p2p(const struct release *release)
{
	/* The channels of parts 0, 1, 2 and 3 from the base 5: before 2.28 with reversed bits. */
	static const int reversed[] = {5, 1, 7, 3}, straight[] = {5, 6, 7, 0};
	const int *order = release->version < 22800 ? reversed : straight;
	ssize_t begins[8], sizes[8], end = 0;

	read_parts(release, 10000, 4, begins, sizes);
	for (int i = 0; i < 4; i++) {
		if (sizes[order[i]] > 0)
			check_int(begins[order[i]], end);
		check_int(sizes[order[i]], i < 2 ? 4096 : i == 2 ? 10000 - 8192 : 0);
		end += sizes[order[i]];
	}
	check_int(end, 10000);
	for (int i = 0, none = 0; i < 8; i++) {
		none += sizes[i] < 0;
		check(i < 7 || none == 4);
	}
	read_parts(release, 0, 1, begins, sizes);
	check_int(sizes[5], 0);
	check_int(sizes[6], -1);
}

static void test_p2p_registered(const struct release *release)
{
	const struct emu_layout *layout = use_release(release, 1, STORAGE_ARGS);
	struct emu_cursor cursor = {0};
	struct emu_launch launch;
	struct emu_batch batch;
	const char *what;

	put_batch(0, 0, false, WORK_P2P, 0, 512, 1);
	put_p2p(args + 512, 1, 0, 1, 1);
	put(args, 512 + 46, 8, 1);
	launch = open_buffer(layout, sizeof(args));
	check_int(emu_launch_next(&launch, 0, &cursor, &batch, &what), -1);
	check_str(what, "registered buffers");
	emu_launch_close(&launch);
}

/* ---- batched broadcasts ---- */

static void test_bcast(const struct release *release)
{
	const struct emu_layout *layout = use_release(release, 1, STORAGE_ARGS);
	const bool exists = release->version >= 22902;
	struct emu_cursor cursor = {0};
	struct emu_launch launch;
	struct emu_batch batch;
	const char *what;

	put_batch(0, 0, false, WORK_BCAST, 1 + 12 + 3 + EMU_LL128, 512, 1);
	put(args, 512, 2, 4);
	put(args, 516, 4096, 4);
	put(args, 520, 0x2000, 8);
	put(args, 528, 0x3000, 8);
	put(args, 536, 77777, 8);
	launch = open_buffer(layout, sizeof(args));
	check_int(emu_launch_next(&launch, 0, &cursor, &batch, &what), exists ? 1 : -1);
	if (exists) {
		check_int(batch.func, EMU_ALL_GATHER_V);
		check_int(batch.proto, EMU_LL128);
		check_int(batch.bcast[0].ring_depth, 2);
		check_int(batch.bcast[0].chunk, 4096);
		check(batch.bcast[0].sendbuff == (void *)0x2000 && batch.bcast[0].recvbuff == (void *)0x3000);
		check_int(batch.bcast[0].bytes, 77777);
	}
	emu_launch_close(&launch);
}

/* ---- the profiler's counters ---- */

static uint64_t started[CHANNELS * 128], completed[CHANNELS * 128];

static void test_counters(const struct release *release)
{
	static const uint64_t counts[] = {1, 0, 0};
	const bool has_slots = release->version >= 22703;
	const size_t at = has_slots ? 72 : 80, counter = release->version >= 22902 ? 360 : 352;
	/* Channel 1's counter: its slot for work 9, or the only one. */
	const size_t cell = has_slots ? 128 + 9 * 2 : 1;
	const struct emu_layout *layout = use_release(release, 2, STORAGE_ARGS);
	struct emu_cursor cursor = {0};
	struct emu_launch launch;
	struct emu_batch batch;
	const char *what;

	memset(started, 0, sizeof(started));
	memset(completed, 0, sizeof(completed));
	put_pointer(comm, at, started);
	put_pointer(comm, at + 8, completed);
	put(channels, 368 + counter, 7, 8);
	put_batch(0, 0, false, WORK_COLL, allreduce_row(release, OP_MINMAX, EMU_UINT8, 1, EMU_LL), 512, 3);
	put_coll(release, args + 512, 1, 1, counts, 0, false);
	put_coll(release, args + 512 + release->coll, 1, 1, counts, 0xff, false);
	launch = open_buffer(layout, sizeof(args));
	for (int i = 0; i < 2; i++) {
		check_int(emu_launch_next(&launch, 0, &cursor, &batch, &what), 1);
		check_int(started[cell], 9);
		check_int(completed[cell], 0);
	}
	check_int(emu_launch_next(&launch, 0, &cursor, &batch, &what), 0);
	check_int(emu_launch_next(&launch, 0, &cursor, &batch, &what), 0);
	check_int(completed[cell], 9);
	check_int(channels[368 + counter], 9);
	emu_launch_close(&launch);
}

/* The rows of signed integers lead to the functions of unsigned ones, as in NCCL. */
static void test_shared_functions(const struct release *release)
{
	const struct emu_layout *layout = use_release(release, 1, STORAGE_ARGS);
	const int own = allreduce_row(release, OP_SUM, EMU_UINT32, 1, EMU_LL);
	struct emu_cursor cursor = {0};
	struct emu_launch launch;
	struct emu_batch batch;
	const char *what;

	row_to_id[allreduce_row(release, OP_SUM, EMU_INT32, 1, EMU_LL)] = own;
	row_to_id[allreduce_row(release, OP_SUM, EMU_INT8, 1, EMU_LL)] = -1;
	check_int(emu_layout_bind(layout, symbol, &what), 0);
	put_batch(0, 0, false, WORK_COLL, own, 512, 1);
	launch = open_buffer(layout, sizeof(args));
	check_int(emu_launch_next(&launch, 0, &cursor, &batch, &what), 1);
	check(batch.type == EMU_UINT32 || batch.type == EMU_INT32);
	check_int(batch.op, EMU_SUM);
	emu_launch_close(&launch);
}

int main(void)
{
	test_versions();
	test_missing_symbol();
	for (size_t i = 0; i < sizeof(releases) / sizeof(releases[0]); i++) {
		const struct release *release = &releases[i];

		test_launch(release);
		test_parts(release);
		test_one_channel(release);
		test_walk(release, STORAGE_FIFO);
		test_walk(release, STORAGE_PERSISTENT);
		test_mixed_batch(release);
		test_scalars(release);
		test_not_emulated(release);
		test_p2p(release);
		test_p2p_registered(release);
		test_bcast(release);
		test_shared_functions(release);
		if (release->version >= 22602)
			test_counters(release);
	}
	return 0;
}
