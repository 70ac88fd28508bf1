/* SPDX-License-Identifier: MIT
 *
 * Ranks for tests of the emulated kernels, without NCCL: a layout of the test's own, a thread for each rank, and what
 * stands between two ranks. That is either nothing (the sender writes into the receiver's memory, as between two GPUs)
 * or a proxy, which copies slots as NCCL's proxies do and checks what they check.
 */
#ifndef EMU_WORLD_H
#define EMU_WORLD_H

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

#include "check.h"
#include "kernel/kernel.h"

enum {
	WORLD_RANKS = 20,
	WORLD_CHANNELS = 2,
	WORLD_LOG = 4096,
	SIMPLE_STEP = 2048,
	LL_STEP = 1024,
	LL128_STEP = 4096,
	SHARED_STEP = 4096 /* slots of send and receive */
};

enum world_link {
	WORLD_DIRECT,    /* no proxy, no FIFO */
	WORLD_PROXY,     /* 2.20 and later: sizes of 8 bytes, offsets count where the mode says so */
	WORLD_PROXY_OLD, /* before: sizes of 4 bytes, offsets always count */
	WORLD_LINKS
};

struct slot {
	int mode;
	int64_t offset, size;
	void *pointer;
};

/* One side's memory of a connection. */
struct side {
	char *buffs[EMU_PROTOCOLS];
	uint64_t tail, head, step;
	struct slot slots[EMU_STEPS];
	int32_t sizes[EMU_STEPS], offsets[EMU_STEPS];
};

struct wire {
	_Atomic(int) opened; /* the latest operation that uses it */
	int operation;       /* the proxy's */
	struct side send, recv;
	uint64_t moved, posted;
	int64_t log[WORLD_LOG]; /* bytes of each slice */
	int logged;
};

struct world;
/* As emu_launch_next: fills the channel's batch n. */
typedef int world_fill(const struct world *world, int rank, int channel, int64_t n, struct emu_batch *batch);

struct world {
	int ranks, channels;
	enum world_link link;
	enum emu_proto proto; /* of the operation, and its steps; what the proxy knows */
	int slice_steps, chunk_steps, operation;
	world_fill *fill;
	void *job;
	int order[WORLD_RANKS][WORLD_RANKS]; /* each rank's ring, from itself */
	int up[WORLD_RANKS], down[WORLD_RANKS][EMU_TREE_ARITY];
	struct wire *_Atomic wires[WORLD_RANKS][WORLD_RANKS][WORLD_CHANNELS][2];
	pthread_mutex_t lock;
	_Atomic(int) playing;
	volatile uint32_t abort;
	int result[WORLD_RANKS];
	const char *what[WORLD_RANKS];
};

struct world_rank {
	struct world *world;
	int rank;
};

static const int world_buffer[EMU_PROTOCOLS] = {LL_STEP * EMU_STEPS, LL128_STEP *EMU_STEPS, SIMPLE_STEP *EMU_STEPS};

/* ---- memory ---- */

static inline void side_make(struct side *side)
{
	const int bytes[EMU_PROTOCOLS] = {LL_STEP * EMU_STEPS, LL128_STEP * EMU_STEPS, SHARED_STEP * EMU_STEPS};

	for (int i = 0; i < EMU_PROTOCOLS; i++) {
		side->buffs[i] = aligned_alloc(128, (size_t)bytes[i]);
		check(side->buffs[i] != NULL);
		memset(side->buffs[i], 0, (size_t)bytes[i]);
	}
	for (int i = 0; i < EMU_STEPS; i++)
		side->slots[i].size = side->sizes[i] = -1;
}

static inline bool world_shares(const struct world *world, int index)
{
	return index == 1 && world->link != WORLD_DIRECT;
}

static inline struct wire *wire_make(bool shares)
{
	struct wire *wire = calloc(1, sizeof(*wire));

	check(wire != NULL);
	side_make(&wire->send);
	side_make(&wire->recv);
	wire->send.head = shares ? (uint64_t)-EMU_STEPS : 0;
	for (int i = 0; shares && i < EMU_STEPS; i++)
		wire->send.slots[i].mode = wire->recv.slots[i].mode = 1;
	return wire;
}

static inline struct wire *world_wire(struct world *world, int from, int to, int channel, int index)
{
	struct wire *_Atomic *at = &world->wires[from][to][channel][index];
	struct wire *found;

	pthread_mutex_lock(&world->lock);
	found = atomic_load(at);
	if (found == NULL) {
		found = wire_make(world_shares(world, index));
		atomic_store(at, found);
	}
	atomic_store(&found->opened, world->operation);
	pthread_mutex_unlock(&world->lock);
	return found;
}

static inline void world_open(struct world *world, int ranks, int channels, enum world_link link)
{
	memset(world, 0, sizeof(*world));
	world->ranks = ranks;
	world->channels = channels;
	world->link = link;
	pthread_mutex_init(&world->lock, NULL);
	for (int i = 0; i < ranks; i++)
		for (int j = 0; j < ranks; j++)
			world->order[i][j] = (i + j) % ranks;
	for (int i = 0; i < ranks; i++) { /* the root has one child, rank 1; below, rank n has 2n and 2n + 1 */
		const int below[EMU_TREE_ARITY] = {i == 0 ? 1 : 2 * i, i == 0 ? ranks : 2 * i + 1, ranks};

		world->up[i] = i == 0 ? -1 : i / 2;
		for (int j = 0; j < EMU_TREE_ARITY; j++)
			world->down[i][j] = below[j] < ranks ? below[j] : -1;
	}
}

static inline void world_close(struct world *world)
{
	struct wire *_Atomic *wires = &world->wires[0][0][0][0];

	for (size_t i = 0; i < sizeof(world->wires) / sizeof(*wires); i++) {
		for (int j = 0; wires[i] != NULL && j < EMU_PROTOCOLS; j++) {
			free(wires[i]->send.buffs[j]);
			free(wires[i]->recv.buffs[j]);
		}
		free(wires[i]);
	}
	pthread_mutex_destroy(&world->lock);
}

/* ---- the layout ---- */

void emu_launch_channel(const struct emu_launch *launch, int id, struct emu_channel *channel)
{
	const struct world_rank *self = (const struct world_rank *)launch->comm;
	const struct world *world = self->world;

	*channel = (struct emu_channel){
		.id = id,
		.ring_prev = world->order[self->rank][world->ranks - 1],
		.ring_next = world->order[self->rank][1],
		.ring_index = self->rank,
		.ring_ranks = world->order[self->rank],
		.tree_up = world->up[self->rank],
	};
	memcpy(channel->tree_down, world->down[self->rank], sizeof(channel->tree_down));
}

void emu_launch_conn(const struct emu_launch *launch, int channel, int peer, bool send, int index,
		     struct emu_conn *conn)
{
	const struct world_rank *self = (const struct world_rank *)launch->comm;
	struct world *world = self->world;
	struct wire *wire = world_wire(world, send ? self->rank : peer, send ? peer : self->rank, channel, index);
	struct side *own = send ? &wire->send : &wire->recv;
	struct side *memory = world->link == WORLD_DIRECT ? &wire->recv : own;

	*conn = (struct emu_conn){
		.tail = &memory->tail,
		.head = &memory->head,
		.step = &own->step,
		.step_bytes = index == 0 ? SIMPLE_STEP : SHARED_STEP,
	};
	memcpy(conn->buffs, memory->buffs, sizeof(conn->buffs));
	if (world->link == WORLD_PROXY) {
		conn->fifo_size = (char *)&own->slots[0].size;
		conn->fifo_offset = (char *)&own->slots[0].offset;
		conn->fifo_mode = (char *)&own->slots[0].mode;
		conn->fifo_stride = sizeof(struct slot);
		conn->fifo_size_bytes = 8;
		conn->fifo_offset_bytes = world->ranks % 2 == 0 ? 8 : 4;
	} else if (world->link == WORLD_PROXY_OLD) {
		conn->fifo_size = send ? (char *)own->sizes : NULL;
		conn->fifo_offset = world_shares(world, index) ? (char *)own->offsets : NULL;
		conn->fifo_stride = sizeof(int32_t);
		conn->fifo_size_bytes = conn->fifo_offset_bytes = 4;
	}
}

int emu_launch_next(const struct emu_launch *launch, int index, struct emu_cursor *cursor, struct emu_batch *batch,
		    const char **what)
{
	const struct world_rank *self = (const struct world_rank *)launch->comm;

	*what = "a kernel of the test";
	memset(batch, 0x5a, sizeof(*batch));
	return self->world->fill(self->world, self->rank, launch->channel_ids[index], cursor->at++, batch);
}

/* ---- the proxy ---- */

static inline uint64_t load_counter(const uint64_t *at)
{
	return __atomic_load_n(at, __ATOMIC_ACQUIRE);
}

static inline void store_counter(uint64_t *at, uint64_t value)
{
	__atomic_store_n(at, value, __ATOMIC_RELEASE);
}

static inline int64_t slot_size(const struct world *world, struct side *side, uint64_t n)
{
	return world->link == WORLD_PROXY_OLD ? __atomic_load_n(&side->sizes[n], __ATOMIC_ACQUIRE)
					      : __atomic_load_n(&side->slots[n].size, __ATOMIC_ACQUIRE);
}

static inline void set_offset(const struct world *world, struct side *side, uint64_t n, int offset)
{
	if (world->link == WORLD_PROXY_OLD)
		side->offsets[n] = offset;
	else
		__atomic_store_n(&side->slots[n].offset, offset, __ATOMIC_RELAXED);
}

/* Another order than the slots', so that a kernel that ignores the offset reads something else. */
static inline int shared_offset(uint64_t step)
{
	return (int)((EMU_STEPS - 1 - step % EMU_STEPS) * SHARED_STEP);
}

static inline char *side_slot(const struct world *world, struct side *side, int index, uint64_t step)
{
	const int steps[EMU_PROTOCOLS] = {LL_STEP, LL128_STEP, index == 0 ? SIMPLE_STEP : SHARED_STEP};

	if (world->proto == EMU_SIMPLE && world_shares(world, index))
		return side->buffs[EMU_SIMPLE] + shared_offset(step);
	return side->buffs[world->proto] + step % EMU_STEPS * (uint64_t)steps[world->proto];
}

/* Are all flags of what NCCL would send there? */
static inline bool slot_complete(const struct world *world, const char *slot, int64_t size, uint64_t step)
{
	const uint64_t *words = (const uint64_t *)slot;

	if (world->proto == EMU_LL) {
		check_int(size % 16, 0);
		for (int64_t i = 0; i < size / 8; i++)
			if (load_counter(&words[i]) >> 32 != (uint32_t)(step + 1))
				return false;
	} else if (world->proto == EMU_LL128) {
		check_int(size % 2048, 0);
		for (int64_t i = 15; i < size / 8; i += 16)
			check_int(load_counter(&words[i]), step + 1); /* written before the tail */
	}
	return true;
}

static inline void copy_slot(const struct world *world, char *to, const char *from, int64_t size)
{
	uint64_t *out = (uint64_t *)to;
	const uint64_t *in = (const uint64_t *)from;

	if (world->proto == EMU_SIMPLE) {
		memcpy(to, from, (size_t)size);
		return;
	}
	if (world->proto == EMU_LL) {
		for (int64_t i = 0; i < size / 8; i++)
			store_counter(&out[i], in[i]);
		return;
	}
	for (int64_t i = 0; i < size / 8; i += 16) {
		memcpy(out + i, in + i, 120);
		store_counter(&out[i + 15], in[i + 15]);
	}
}

static inline void post_credits(const struct world *world, struct wire *wire)
{
	while (wire->posted < wire->moved + EMU_STEPS) {
		set_offset(world, &wire->send, wire->posted % EMU_STEPS, shared_offset(wire->posted));
		wire->posted++;
		store_counter(&wire->send.head, wire->posted - EMU_STEPS);
	}
}

/* As the kernel does it, for the connections that the operation uses. */
static inline void start_operation(const struct world *world, struct wire *wire)
{
	const uint64_t steps = (uint64_t)world->chunk_steps;

	wire->operation = world->operation;
	wire->moved = (wire->moved + steps - 1) / steps * steps;
	wire->logged = 0;
}

/* Moves one slice, if one is ready and the receiver has room. */
static inline void progress_wire(const struct world *world, struct wire *wire, int index)
{
	uint64_t step, n;
	const char *slot;
	int64_t size;

	if (atomic_load(&wire->opened) != world->operation)
		return;
	if (wire->operation != world->operation)
		start_operation(world, wire);
	step = wire->moved;
	n = step % EMU_STEPS;
	slot = side_slot(world, &wire->send, index, step);
	if (world_shares(world, index))
		post_credits(world, wire);
	if (world->proto != EMU_LL && load_counter(&wire->send.tail) <= step)
		return;
	size = slot_size(world, &wire->send, n); /* may have changed until the tail moved */
	if (size == -1 || load_counter(&wire->recv.head) + EMU_STEPS < step + (uint64_t)world->slice_steps ||
	    !slot_complete(world, slot, size, step))
		return;
	check(wire->logged < WORLD_LOG);
	wire->log[wire->logged++] = size;
	set_offset(world, &wire->recv, n, shared_offset(step));
	copy_slot(world, side_slot(world, &wire->recv, index, step), slot, size);
	wire->send.sizes[n] = -1;
	__atomic_store_n(&wire->send.slots[n].size, -1, __ATOMIC_RELAXED);
	wire->moved += (uint64_t)world->slice_steps;
	if (!world_shares(world, index))
		store_counter(&wire->send.head, wire->moved);
	store_counter(&wire->recv.tail, wire->moved);
}

static inline void *proxy_thread(void *arg)
{
	struct world *world = arg;
	struct wire *_Atomic *wires = &world->wires[0][0][0][0];

	while (atomic_load(&world->playing) > 0) {
		for (size_t i = 0; i < sizeof(world->wires) / sizeof(*wires); i++) {
			struct wire *wire = atomic_load(&wires[i]);

			if (wire != NULL)
				progress_wire(world, wire, (int)(i % 2));
		}
		sched_yield();
	}
	return NULL;
}

/* Both sides and the proxy must have counted the same steps. What a receiver did not wait for, such as empty slices of
 * LL, is moved now. */
static inline void finish_wire(const struct world *world, struct wire *wire, int index)
{
	if (wire->operation != world->operation)
		start_operation(world, wire);
	check_int(wire->send.step, wire->recv.step);
	while (world->link != WORLD_DIRECT && wire->moved < wire->send.step) {
		const uint64_t before = wire->moved;

		progress_wire(world, wire, index);
		check(wire->moved > before);
	}
	if (world->link != WORLD_DIRECT)
		check_int(wire->moved, wire->send.step);
}

static inline void finish_operation(const struct world *world)
{
	struct wire *_Atomic const *wires = &world->wires[0][0][0][0];

	for (size_t i = 0; i < sizeof(world->wires) / sizeof(*wires); i++)
		if (wires[i] != NULL && atomic_load(&wires[i]->opened) == world->operation)
			finish_wire(world, wires[i], (int)(i % 2));
}

/* ---- a launch on every rank ---- */

static inline struct emu_launch world_launch(struct world *world, struct world_rank *self)
{
	struct emu_launch launch = {
		.rank = self->rank,
		.ranks = world->ranks,
		.p2p_chunk_bytes = SHARED_STEP,
		.abort_flag = &world->abort,
		.channels = world->channels,
		.comm = (char *)self,
	};

	for (int i = 0; i < world->channels; i++)
		launch.channel_ids[i] = i;
	memcpy(launch.buffer_bytes, world_buffer, sizeof(world_buffer));
	return launch;
}

static inline void *rank_thread(void *arg)
{
	struct world_rank *self = arg;
	struct world *world = self->world;
	const struct emu_launch launch = world_launch(world, self);

	world->result[self->rank] = emu_kernel_play(&launch, &world->what[self->rank]);
	atomic_fetch_sub(&world->playing, 1);
	return NULL;
}

/* Plays fill's batches on every rank. */
static inline void world_play(struct world *world, enum emu_proto proto, int slice_steps, int slices, world_fill *fill,
			      void *job)
{
	pthread_t threads[WORLD_RANKS], proxy;
	struct world_rank ranks[WORLD_RANKS];

	world->proto = proto;
	world->slice_steps = slice_steps;
	world->chunk_steps = slice_steps * slices;
	world->fill = fill;
	world->job = job;
	world->operation++;
	atomic_store(&world->playing, world->ranks);
	if (world->link != WORLD_DIRECT)
		check_int(pthread_create(&proxy, NULL, proxy_thread, world), 0);
	for (int i = 0; i < world->ranks; i++) {
		ranks[i] = (struct world_rank){world, i};
		check_int(pthread_create(&threads[i], NULL, rank_thread, &ranks[i]), 0);
	}
	for (int i = 0; i < world->ranks; i++)
		pthread_join(threads[i], NULL);
	if (world->link != WORLD_DIRECT)
		pthread_join(proxy, NULL);
	if (world->abort == 0)
		finish_operation(world);
}

#endif
