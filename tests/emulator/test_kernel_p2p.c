/* SPDX-License-Identifier: MIT
 *
 * The emulated kernels' send and receive, and broadcasts in a batch: everyone to everyone, in all sizes and protocols,
 * with the sizes that the proxies are told.
 */
#include "values.h"
#include "world.h"

enum { LL_CHUNK = LL_STEP / 2, SIMPLE_CHUNK = SHARED_STEP };

/* ---- everyone to everyone ---- */

struct exchange {
	int shift;    /* which sizes */
	bool one_way; /* sends and receives in works of their own */
	int ll;       /* 0: Simple, 1: LL, 2: both (without proxies) */
	char *sent[WORLD_RANKS][WORLD_RANKS], *received[WORLD_RANKS][WORLD_RANKS];
};

static size_t bytes_between(const struct exchange *exchange, int from, int to)
{
	static const size_t bytes[] = {0,    1, 100, LL_CHUNK, SIMPLE_CHUNK, SIMPLE_CHUNK + 1, 7 * SIMPLE_CHUNK + 11,
				       30000};

	return bytes[(from * 3 + to + exchange->shift) % 8];
}

static bool uses_ll(const struct exchange *exchange, int from, int to)
{
	return exchange->ll == 2 ? (from + to) % 2 == 1 : exchange->ll == 1;
}

static int chunk_between(const struct exchange *exchange, int from, int to)
{
	return uses_ll(exchange, from, to) ? LL_CHUNK : SIMPLE_CHUNK;
}

/* The channel has every n-th part. */
static size_t part_start(const struct world *world, size_t bytes, int channel)
{
	return bytes / (size_t)world->channels * (size_t)channel;
}

static size_t part_bytes(const struct world *world, size_t bytes, int channel)
{
	return channel == world->channels - 1 ? bytes - part_start(world, bytes, channel)
					      : bytes / (size_t)world->channels;
}

static void set_send(struct emu_p2p *work, const struct world *world, int rank, int peer, int channel)
{
	const struct exchange *exchange = world->job;
	const size_t bytes = bytes_between(exchange, rank, peer);

	work->has_send = true;
	work->send_rank = peer;
	work->send_addr = exchange->sent[rank][peer] + part_start(world, bytes, channel);
	work->send_bytes = part_bytes(world, bytes, channel);
	work->send_chunk = chunk_between(exchange, rank, peer);
	work->send_ll = uses_ll(exchange, rank, peer);
}

static void set_recv(struct emu_p2p *work, const struct world *world, int rank, int peer, int channel)
{
	const struct exchange *exchange = world->job;
	const size_t bytes = bytes_between(exchange, peer, rank);

	work->has_recv = true;
	work->recv_rank = peer;
	work->recv_addr = exchange->received[rank][peer] + part_start(world, bytes, channel);
	work->recv_bytes = part_bytes(world, bytes, channel);
	work->recv_chunk = chunk_between(exchange, peer, rank);
	work->recv_ll = uses_ll(exchange, peer, rank);
}

static int fill_exchange(const struct world *world, int rank, int channel, int64_t n, struct emu_batch *batch)
{
	const struct exchange *exchange = world->job;

	if (n > 0)
		return 0;
	memset(batch, 0, sizeof(*batch));
	batch->func = EMU_SEND_RECV;
	for (int i = 0; i < world->ranks; i++) {
		const int to = (rank + i) % world->ranks, from = (rank + world->ranks - i) % world->ranks;

		set_send(&batch->p2p[batch->works], world, rank, to, channel);
		if (exchange->one_way && i > 0)
			batch->works++;
		set_recv(&batch->p2p[batch->works++], world, rank, from, channel);
	}
	return 1;
}

static void make_exchange(struct exchange *exchange, const struct world *world)
{
	for (int from = 0; from < world->ranks; from++) {
		for (int to = 0; to < world->ranks; to++) {
			const size_t bytes = bytes_between(exchange, from, to);

			exchange->sent[from][to] = malloc(bytes + 1);
			exchange->received[to][from] = malloc(bytes + 1);
			check(exchange->sent[from][to] != NULL && exchange->received[to][from] != NULL);
			for (size_t i = 0; i < bytes; i++)
				exchange->sent[from][to][i] = (char)value_hash((uint64_t)(from * 8 + to), i);
			memset(exchange->received[to][from], 0x5a, bytes + 1);
		}
	}
}

/* One step for each chunk, also for none. */
static void check_log(const struct exchange *exchange, const struct world *world, int from, int to)
{
	for (int channel = 0; channel < world->channels; channel++) {
		const struct wire *wire = world->wires[from][to][channel][1];
		size_t left = part_bytes(world, bytes_between(exchange, from, to), channel);

		for (int i = 0; i < wire->logged; i++) {
			const size_t most = (size_t)chunk_between(exchange, from, to), data = left < most ? left : most;

			check_int(wire->log[i], exchange->ll ? (data + 7) / 8 * 16 : data);
			check(data > 0 || wire->logged == 1);
			left -= data;
		}
		check(wire->logged > 0 && left == 0);
	}
}

static void check_exchange(struct exchange *exchange, const struct world *world)
{
	for (int from = 0; from < world->ranks; from++) {
		check_int(world->result[from], 0);
		for (int to = 0; to < world->ranks; to++) {
			const size_t bytes = bytes_between(exchange, from, to);

			check(memcmp(exchange->sent[from][to], exchange->received[to][from], bytes) == 0);
			check_int(exchange->received[to][from][bytes], 0x5a);
			if (world->link != WORLD_DIRECT && from != to)
				check_log(exchange, world, from, to);
			free(exchange->sent[from][to]);
			free(exchange->received[to][from]);
		}
	}
}

static void test_exchange(struct world *world, int ll)
{
	for (int shift = 0; shift < 4; shift++) {
		struct exchange exchange = {.shift = shift, .one_way = shift % 2 == 1, .ll = ll};

		make_exchange(&exchange, world);
		world_play(world, ll == 1 ? EMU_LL : EMU_SIMPLE, 1, 1, fill_exchange, &exchange);
		check_exchange(&exchange, world);
	}
}

/* ---- broadcasts in a batch ---- */

struct broadcasts {
	enum emu_proto proto;
	bool in_place;
	int shift;
	char *source[WORLD_RANKS], *received[WORLD_RANKS][WORLD_RANKS]; /* by rank, then root */
};

static size_t bytes_of(const struct broadcasts *job, int root)
{
	static const size_t bytes[] = {1, 0, 333, 5000, 20000, 2048, 64, 9999};

	return bytes[(root + job->shift) % 8];
}

static int bcast_chunk(enum emu_proto proto)
{
	static const int bytes[EMU_PROTOCOLS] = {LL_STEP / 2, LL128_STEP * 15 / 16, SIMPLE_STEP};

	return bytes[proto];
}

static int fill_broadcasts(const struct world *world, int rank, int channel, int64_t n, struct emu_batch *batch)
{
	const struct broadcasts *job = world->job;

	if (n > 0)
		return 0;
	batch->func = EMU_ALL_GATHER_V;
	batch->proto = job->proto;
	batch->works = world->ranks;
	for (int depth = 0; depth < world->ranks; depth++) { /* NCCL's order */
		const int root = (rank + world->ranks - depth) % world->ranks;
		const size_t start = part_start(world, bytes_of(job, root), channel);

		batch->bcast[depth] = (struct emu_bcast){
			.ring_depth = depth,
			.chunk = bcast_chunk(job->proto),
			.sendbuff = job->source[root] + start,
			.recvbuff = job->received[rank][root] + start,
			.bytes = part_bytes(world, bytes_of(job, root), channel),
		};
	}
	return 1;
}

static void play_broadcasts(struct world *world, enum emu_proto proto, int shift, bool in_place)
{
	struct broadcasts job = {.proto = proto, .shift = shift, .in_place = in_place};

	for (int root = 0; root < world->ranks; root++) {
		const size_t bytes = bytes_of(&job, root);

		for (int rank = 0; rank < world->ranks; rank++) {
			job.received[rank][root] = calloc(1, bytes + 1);
			check(job.received[rank][root] != NULL);
		}
		job.source[root] = in_place ? job.received[root][root] : malloc(bytes + 1);
		check(job.source[root] != NULL);
		for (size_t i = 0; i < bytes; i++)
			job.source[root][i] = (char)value_hash((uint64_t)root, i);
	}
	world_play(world, proto, 1, 1, fill_broadcasts, &job);
	for (int root = 0; root < world->ranks; root++) {
		for (int rank = 0; rank < world->ranks; rank++) {
			check_int(world->result[rank], 0);
			for (size_t i = 0; i < bytes_of(&job, root); i++)
				check_int(job.received[rank][root][i], (char)value_hash((uint64_t)root, i));
			check_int(job.received[rank][root][bytes_of(&job, root)], 0);
			free(job.received[rank][root]);
		}
		if (!in_place)
			free(job.source[root]);
	}
}

int main(void)
{
	const int ranks[] = {2, 3, 5, 8};

	for (int i = 0; i < (is_nightly() ? 4 : 2) * WORLD_LINKS; i++) {
		struct world world;

		world_open(&world, ranks[i / WORLD_LINKS], 1 + i % 2, (enum world_link)(i % WORLD_LINKS));
		test_exchange(&world, 0);
		test_exchange(&world, 1);
		if (world.link == WORLD_DIRECT)
			test_exchange(&world, 2);
		for (int n = 0; n < 3 * 4; n++)
			play_broadcasts(&world, (enum emu_proto)(n / 4), n, n % 2 == 1);
		world_close(&world);
	}
	return 0;
}
