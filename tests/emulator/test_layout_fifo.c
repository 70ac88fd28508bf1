/* SPDX-License-Identifier: MIT
 *
 * The layouts of NCCL's device structures up to 2.21, whose works are linked, and what all releases have: channels and
 * connections. Everything is written here byte by byte, at offsets that come from NCCL's own headers and not from the
 * emulator's tables.
 */
#include <stdbool.h>
#include <stdint.h>

#include "check.h"
#include "bytes.h"
#include "layout/layout.h"

enum { ROWS = 2000, CHANNELS = 4, WORKS = 8 };

/* ---- NCCL's memory ---- */

static _Alignas(16) char comm[128], channels[CHANNELS * 368], works[WORKS][512];
static int row_to_id[ROWS];
static uint32_t done[CHANNELS];

static void *symbol(const char *name)
{
	return strcmp(name, "ncclDevFuncRowToId") == 0 ? row_to_id : NULL;
}

/* Where things are in a release. */
struct release {
	int version;
	size_t buffers, p2p_chunk /* 0: none */, abort_flag, channels;   /* communicator */
	size_t channel, ring_index, tree, done;                          /* channel: its size, its fields */
	size_t conn, tail, step, step_bytes /* 0: none */, sizes, slots; /* connection */
	size_t slot, slot_offset, slot_size, slot_bytes;                 /* 0: two arrays of int */
	size_t elem_warps, root, arg;                                    /* collective */
};

static const struct release releases[] = {
	{21803, 8, 0, 32, 40, 240, 24, 36, 224, 96, 24, 80, 0, 64, 72, 0, 0, 0, 0, 1, 40, 48},
	{21903, 8, 20, 40, 48, 240, 24, 36, 224, 152, 48, 104, 0, 88, 96, 0, 0, 0, 0, 1, 40, 48},
	{22005, 16, 28, 56, 64, 272, 24, 36, 256, 144, 48, 96, 0, 0, 88, 24, 4, 8, 4, 1, 4, 32},
	{22105, 16, 28, 56, 64, 368, 24, 36, 352, 152, 48, 104, 72, 0, 96, 24, 4, 8, 4, 2, 4, 32},
	{22501, 16, 28, 56, 64, 352, 24, 36, 0, 152, 48, 104, 72, 0, 96, 24, 4, 8, 4, 0, 0, 0},
	{23007, 16, 28, 48, 56, 368, 32, 44, 0, 152, 48, 104, 72, 0, 96, 24, 4, 8, 4, 0, 0, 0},
	{23102, 16, 28, 48, 56, 368, 32, 44, 0, 152, 48, 104, 72, 0, 96, 32, 8, 16, 8, 0, 0, 0},
};

/* A launch on the channels 1 and 3 of a communicator with rank 2 of 4. */
static struct emu_launch open_launch(const struct release *release)
{
	const struct emu_layout *layout = emu_layout_find(release->version);
	const char *missing;
	void *comm_value = comm, *head = works;
	uint64_t mask = 0xa;
	void *pointers[] = {&comm_value, &mask, &head};
	struct emu_launch launch;
	char buffer[64];

	for (int i = 0; i < ROWS; i++)
		row_to_id[i] = i;
	check_int(emu_layout_bind(layout, symbol, &missing), 0);
	put(comm, 0, 2, 4);
	put(comm, 4, 4, 4);
	for (size_t i = 0; i < 3; i++)
		put(comm, release->buffers + 4 * i, 8000 * (i + 1), 4);
	if (release->p2p_chunk)
		put(comm, release->p2p_chunk, 555, 4);
	put_pointer(comm, release->abort_flag, done);
	put_pointer(comm, release->channels, channels);
	for (size_t i = 0; i < CHANNELS && release->done; i++)
		put_pointer(channels, i * release->channel + release->done, &done[i]);
	if (release->version < 22203) {
		check_int(emu_launch_open(&launch, layout, pointers, NULL, 0), 0);
		return launch;
	}
	put_pointer(buffer, 0, comm);
	put(buffer, 8, mask, 8);
	check_int(emu_launch_open(&launch, layout, pointers, NULL, 0), -1);
	check_int(emu_launch_open(&launch, layout, NULL, buffer, sizeof(buffer)), 0);
	return launch;
}

static void clear(void)
{
	memset(comm, 0, sizeof(comm));
	memset(channels, 0, sizeof(channels));
	memset(works, 0, sizeof(works));
	memset(done, 0, sizeof(done));
}

/* ---- communicator, channel, connection ---- */

static void test_launch(const struct release *release)
{
	struct emu_launch launch;

	clear();
	launch = open_launch(release);
	check_int(launch.rank, 2);
	check_int(launch.ranks, 4);
	check_int(launch.buffer_bytes[EMU_LL], 8000);
	check_int(launch.buffer_bytes[EMU_SIMPLE], 24000);
	check_int(launch.p2p_chunk_bytes, release->p2p_chunk ? 555 : 0);
	check(launch.abort_flag == done);
	check_int(launch.channels, 2);
	check_int(launch.channel_ids[0], 1);
	check_int(launch.channel_ids[1], 3);
	emu_launch_close(&launch);
}

static void test_channel(const struct release *release)
{
	static const int ranks[] = {2, 3, 0, 1};
	char *channel = channels + 3 * release->channel;
	struct emu_channel read;
	struct emu_launch launch;

	clear();
	launch = open_launch(release);
	put(channel, 8, 1, 4);
	put(channel, 12, 3, 4);
	put_pointer(channel, 16, ranks);
	put(channel, release->ring_index, 9, 4);
	put(channel, release->tree, (uint64_t)-1, 4);
	for (size_t i = 0; i < 3; i++)
		put(channel, release->tree + 4 + 4 * i, 20 + i, 4);
	emu_launch_channel(&launch, 3, &read);
	check_int(read.id, 3);
	check_int(read.ring_prev, 1);
	check_int(read.ring_next, 3);
	check(read.ring_ranks == ranks);
	check_int(read.ring_index, 9);
	check_int(read.tree_up, -1);
	check_int(read.tree_down[0], 20);
	check_int(read.tree_down[2], 22);
	emu_launch_close(&launch);
}

static void check_slots(const struct release *release, const struct emu_conn *conn, const char *base)
{
	if (!release->slot) {
		check(conn->fifo_size == base && conn->fifo_offset == base + 64 && !conn->fifo_mode);
		check_int(conn->fifo_stride, 4);
		check_int(conn->fifo_size_bytes, 4);
		check_int(conn->fifo_offset_bytes, 4);
		return;
	}
	check(conn->fifo_mode == base);
	check(conn->fifo_offset == base + release->slot_offset);
	check(conn->fifo_size == base + release->slot_size);
	check_int(conn->fifo_stride, release->slot);
	check_int(conn->fifo_size_bytes, 8);
	check_int(conn->fifo_offset_bytes, release->slot_bytes);
}

/* Before 2.21 the distance of slots depends on the use of the connection; afterwards the connection tells. */
static int expected_step(const struct release *release, int index)
{
	if (release->step_bytes)
		return 4321;
	return index == 1 && release->p2p_chunk ? 555 : 3000;
}

static void test_conn(const struct release *release)
{
	static _Alignas(16) char peer[4 * 160], slots[256];
	const void *const peers[] = {NULL, NULL, peer, NULL};
	struct emu_conn conn;
	struct emu_launch launch;

	clear();
	launch = open_launch(release);
	put_pointer(channels, release->channel, peers);
	for (size_t i = 0; i < 4; i++) { /* two to send, two to receive */
		char *base = peer + i * release->conn;

		memset(peer, 0, sizeof(peer));
		for (size_t j = 0; j < 3; j++)
			put(base, 8 * j, 0x100 * (j + 1), 8);
		put(base, release->tail, 0x1000, 8);
		put(base, release->tail + 8, 0x2000, 8);
		put(base, release->step, 33, 8);
		if (release->step_bytes)
			put(base, release->step_bytes, 4321, 4);
		emu_launch_conn(&launch, 1, 2, i < 2, (int)(i % 2), &conn);
		check(conn.buffs[EMU_LL] == (char *)0x100 && conn.buffs[EMU_SIMPLE] == (char *)0x300);
		check(conn.tail == (uint64_t *)0x1000 && conn.head == (uint64_t *)0x2000);
		check_int(*conn.step, 33);
		check_int(conn.step_bytes, expected_step(release, (int)(i % 2)));
		check(!conn.fifo_size && !conn.fifo_offset && !conn.fifo_mode);

		put_pointer(base, release->slot ? release->slots : release->sizes, slots);
		if (!release->slot)
			put_pointer(base, release->slots, slots + 64);
		emu_launch_conn(&launch, 1, 2, i < 2, (int)(i % 2), &conn);
		check_slots(release, &conn, slots);
	}
	emu_launch_close(&launch);
}

/* ---- linked works ---- */

enum { OP_SUM, OP_PROD };
enum { WORK_COLL = 1, WORK_P2P, WORK_REGISTERED };

/* The row of allreduce by ring with LL, of an operation (by NCCL's number) and a type. */
static int allreduce_row(const struct release *release, int op, int type)
{
	if (release->version < 21900)
		return 1 + 10 + (((4 * 6 + op) * 10 + type) * 6 + 1) * 3;
	return 1 + (release->version < 22000 ? 2 : 3) * 3 + 3 + ((op * 10 + type) * 6 + 1) * 3;
}

static void put_header(int place, int next, int function, bool last, bool in_fifo, int type)
{
	put(works[place], 0, (uint64_t)(uint32_t)next, 4);
	put(works[place], 4, (uint64_t)function, 2);
	put(works[place], 6, (uint64_t)last | (uint64_t)in_fifo << 1, 1);
	put(works[place], 7, (uint64_t)type, 1);
}

static void put_elem(const struct release *release, int place, int n, uint64_t arg, bool is_pointer)
{
	char *elem = works[place] + 8 + 56 * n;

	put(elem, 0, 1 | (uint64_t)is_pointer << 1, 1);
	put(elem, release->elem_warps, 16, 1);
	put(elem, release->root, 3, 4);
	put(elem, 8, 0x2000, 8);
	put(elem, 16, 0x1000, 8);
	put(elem, 24, UINT64_C(5000000000), 8);
	put(elem, release->arg, arg, 8);
	if (release->version < 22000) {
		put(elem, 32, 6000000000, 8);
		put(elem, 44, 7, 1);
		put(elem, 45, 12, 1);
		return;
	}
	put(elem, 40, UINT64_C(0x1fffffe) | UINT64_C(0x7ffffffffe) << 25, 8);
	put(elem, 48, UINT64_C(0x0abcdef) | UINT64_C(0x123456789a) << 25, 8);
}

static void check_schedule(const struct release *release, const struct emu_coll *coll)
{
	const struct emu_schedule *schedule = &coll->schedule;

	check_int(coll->count, 5000000000);
	if (release->version < 22000) {
		check_int(schedule->kind, EMU_STRIDED);
		check_int(schedule->size, 5000000000);
		check_int(schedule->tree_chunk, 6000000000);
		check_int(schedule->bid, 7);
		check_int(schedule->channels, 12);
		check_int(schedule->threads, 512);
		return;
	}
	check_int(schedule->kind, EMU_CONTIGUOUS);
	check_int(schedule->offset, 0x123456789a);
	check_int(schedule->count, 0x7ffffffffe);
	check_int(schedule->chunk, 0x1fffffe);
	check_int(schedule->last_chunk, 0x0abcdef);
}

/* The second channel of the launch has two works; the second one is its last. */
static void test_walk(const struct release *release, bool in_fifo)
{
	const int row = allreduce_row(release, OP_PROD, EMU_INT32);
	struct emu_cursor cursor = {0};
	struct emu_launch launch;
	struct emu_batch batch;
	const char *what;

	clear();
	launch = open_launch(release);
	put_header(1, 5, row, false, in_fifo, WORK_COLL);
	for (int i = 0; i < 9; i++)
		put_elem(release, 1, i, 0, false);
	put_header(5, 1234, row, true, in_fifo, WORK_COLL);
	put_elem(release, 5, 0, 0, false);
	check_int(emu_launch_next(&launch, 1, &cursor, &batch, &what), 1);
	check_int(batch.func, EMU_ALL_REDUCE);
	check_int(batch.algo, EMU_RING);
	check_int(batch.proto, EMU_LL);
	check_int(batch.op, EMU_PROD);
	check_int(batch.type, EMU_INT32);
	check_int(batch.works, 9);
	check_int(batch.coll[8].root, 3);
	check(batch.coll[8].sendbuff == (void *)0x2000 && batch.coll[8].recvbuff == (void *)0x1000);
	check_schedule(release, &batch.coll[8]);
	check_int(done[3], 0);
	check_int(emu_launch_next(&launch, 1, &cursor, &batch, &what), 1);
	check_int(batch.works, 1);
	check_int(done[3], in_fifo ? 1234 : 0);
	check_int(emu_launch_next(&launch, 1, &cursor, &batch, &what), 0);
	check_int(emu_launch_next(&launch, 1, &cursor, &batch, &what), 0);
	emu_launch_close(&launch);
}

/* The only work of the launch's first channel. */
static int next_of(struct emu_launch *launch, struct emu_batch *batch, const char **what)
{
	struct emu_cursor cursor = {0};
	int result = emu_launch_next(launch, 0, &cursor, batch, what);

	emu_launch_close(launch);
	return result;
}

static void test_scalars(const struct release *release)
{
	const bool separate = release->version < 21900;
	const double factor = 0.125;
	struct emu_launch launch;
	struct emu_batch batch;
	const char *what;
	uint64_t bits;

	memcpy(&bits, &factor, sizeof(bits));
	clear();
	put_header(0, 0, allreduce_row(release, separate ? 4 : 3, EMU_FLOAT64), true, true, WORK_COLL);
	put_elem(release, 0, 0, (uint64_t)(uintptr_t)&factor, true);
	launch = open_launch(release);
	check_int(next_of(&launch, &batch, &what), 1);
	check_int(batch.op, EMU_PREMULSUM);
	check(batch.coll[0].arg == bits);

	clear();
	put_header(0, 0, allreduce_row(release, separate ? 5 : 4, EMU_INT64), true, true, WORK_COLL);
	put_elem(release, 0, 0, 7, false);
	launch = open_launch(release);
	check_int(next_of(&launch, &batch, &what), 1);
	check_int(batch.op, EMU_SUMPOSTDIV);
	check_int(batch.type, EMU_INT64);
	check_int(batch.coll[0].arg, 7);
}

/* Minimum and maximum: two functions in 2.18; then one, so that a work may have both. */
static void test_minmax(const struct release *release)
{
	struct emu_cursor cursor = {0};
	struct emu_launch launch;
	struct emu_batch batch;
	const char *what;

	clear();
	launch = open_launch(release);
	put_header(0, 77, allreduce_row(release, 2, EMU_INT8), true, true, WORK_COLL);
	put_elem(release, 0, 0, 0x80, false);
	put_elem(release, 0, 1, 0x7f, false);
	check_int(emu_launch_next(&launch, 0, &cursor, &batch, &what), 1);
	check_int(batch.type, EMU_INT8);
	if (release->version < 21900) {
		check_int(batch.op, EMU_MAX);
		check_int(batch.works, 2);
	} else {
		check_int(batch.op, EMU_MIN);
		check_int(batch.works, 1);
		check_int(done[1], 0);
		check_int(emu_launch_next(&launch, 0, &cursor, &batch, &what), 1);
		check_int(batch.op, EMU_MAX);
		check_int(batch.type, EMU_INT8);
		check_int(batch.works, 1);
	}
	check_int(done[1], 77);
	check_int(emu_launch_next(&launch, 0, &cursor, &batch, &what), 0);
	emu_launch_close(&launch);
}

static void put_p2p(int n, int peer, int proto, int type, uint64_t address, uint64_t bytes)
{
	char *elem = works[0] + 8 + 28 * n;

	put(elem, 0, ((uint64_t)peer & 0x3fffffff) | (uint64_t)proto << 30, 4);
	put(elem, 4, (uint64_t)type, 1);
	put(elem, 7, 8, 1); /* groups */
	put(elem, 8, address >> 32, 4);
	put(elem, 12, address, 4);
	put(elem, 16, bytes >> 32, 4);
	put(elem, 20, bytes, 4);
	put(elem, 24, 131072, 4);
}

static void test_p2p(const struct release *release)
{
	enum { UNUSED, SEND, RECV };
	struct emu_launch launch;
	struct emu_batch batch;
	const char *what;

	clear();
	launch = open_launch(release);
	put_header(0, 0, 0, true, true, WORK_P2P);
	put_p2p(0, 0, EMU_SIMPLE, UNUSED, 0, 0);
	put_p2p(1, 3, EMU_LL, SEND, 0x123456789abc, 0); /* a message of no bytes */
	put_p2p(2, 1, EMU_SIMPLE, RECV, 0x222200000000, 5000000000);
	put_p2p(3, -1, EMU_SIMPLE, SEND, 0, 0);
	put_p2p(6, 2, EMU_SIMPLE, RECV, 0x3000, 10); /* to itself */
	put_p2p(7, 2, EMU_SIMPLE, SEND, 0x4000, 10);
	put_p2p(8, 1, EMU_SIMPLE, RECV, 0x5000, 10); /* beyond the last group */
	check_int(next_of(&launch, &batch, &what), 1);
	check_int(batch.func, EMU_SEND_RECV);
	check_int(batch.works, 3);
	check(batch.p2p[0].has_send && !batch.p2p[0].has_recv);
	check_int(batch.p2p[0].send_rank, 3);
	check(batch.p2p[0].send_ll && batch.p2p[0].send_addr == (void *)0x123456789abc);
	check_int(batch.p2p[0].send_bytes, 0);
	check_int(batch.p2p[0].send_chunk, 65536);
	check(!batch.p2p[1].has_send && batch.p2p[1].has_recv && !batch.p2p[1].recv_ll);
	check_int(batch.p2p[1].recv_rank, 1);
	check_int(batch.p2p[1].recv_bytes, 5000000000);
	check_int(batch.p2p[1].recv_chunk, 131072);
	check(batch.p2p[2].has_send && batch.p2p[2].has_recv);
	check_int(batch.p2p[2].send_rank, 2);
	check(batch.p2p[2].recv_addr == (void *)0x3000 && batch.p2p[2].send_addr == (void *)0x4000);
}

static void test_not_emulated(const struct release *release)
{
	const bool marks_transfers = release->version >= 22000;
	struct emu_launch launch;
	struct emu_batch batch;
	const char *what;

	clear();
	put_header(0, 0, allreduce_row(release, OP_SUM, EMU_INT8) + 3 * 3, true, true, WORK_COLL);
	put_elem(release, 0, 0, 0, false);
	launch = open_launch(release);
	check_int(next_of(&launch, &batch, &what), -1);
	check_str(what, "allreduce with NVLS");

	put_header(0, 0, allreduce_row(release, OP_SUM, EMU_INT8), true, true, WORK_REGISTERED);
	launch = open_launch(release);
	check_int(next_of(&launch, &batch, &what), -1);
	check_str(what, "registered buffers");

	put_header(0, 0, allreduce_row(release, OP_SUM, EMU_INT8), true, true, WORK_COLL);
	put(works[0] + 8, release->version < 22100 ? 0 : 1, release->version < 22100 ? 5 : 1, 1);
	launch = open_launch(release);
	check_int(next_of(&launch, &batch, &what), -1);
	check_str(what, "registered buffers");

	clear();
	put_header(0, 0, 0, true, true, WORK_P2P);
	put_p2p(0, 1, EMU_SIMPLE, 2, 0, 0);
	put(works[0] + 8, 5, 1, 1);
	launch = open_launch(release);
	check_int(next_of(&launch, &batch, &what), marks_transfers ? -1 : 1);
}

/* 2.18 numbers functions that it never launches; broadcast by tree is not emulated. */
static void test_broadcast_by_tree(void)
{
	struct emu_launch launch;
	struct emu_batch batch;
	const char *what;

	clear();
	put_header(0, 0, 1 + 10 + EMU_SIMPLE, true, true, WORK_COLL);
	launch = open_launch(&releases[0]);
	check_int(next_of(&launch, &batch, &what), -1);
	check_str(what, "broadcast with TREE");
	put_header(0, 0, 1 + EMU_FLOAT32, true, true, WORK_COLL); /* the reduction of one rank */
	launch = open_launch(&releases[0]);
	check_int(next_of(&launch, &batch, &what), -1);
}

int main(void)
{
	for (size_t i = 0; i < sizeof(releases) / sizeof(releases[0]); i++) {
		const struct release *release = &releases[i];

		test_launch(release);
		test_channel(release);
		test_conn(release);
		if (!release->done)
			continue;
		test_walk(release, true);
		test_walk(release, false);
		test_scalars(release);
		test_minmax(release);
		test_p2p(release);
		test_not_emulated(release);
	}
	test_broadcast_by_tree();
	return 0;
}
