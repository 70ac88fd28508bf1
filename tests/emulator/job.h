/* SPDX-License-Identifier: MIT
 *
 * One collective on the ranks of a world, for tests of the emulated kernels: its schedule, its buffers, and what it
 * must produce.
 */
#ifndef EMU_JOB_H
#define EMU_JOB_H

#include "values.h"
#include "world.h"

enum { GUARD = 64 }; /* bytes behind a result that must stay as they are */

struct job {
	enum emu_func func;
	enum emu_algo algo;
	enum emu_proto proto;
	enum emu_type type;
	enum emu_op op;
	double scalar;
	size_t count;
	int root;
	int shrink; /* chunks are this many times shorter than the buffers allow */
	bool strided, in_place;
	char *send[WORLD_RANKS], *recv[WORLD_RANKS];
};

/* ---- the schedules ---- */

static inline ssize_t data_step(enum emu_proto proto)
{
	static const ssize_t bytes[EMU_PROTOCOLS] = {LL_STEP / 2, LL128_STEP * 15 / 16, SIMPLE_STEP};

	return bytes[proto];
}

/* Of an algorithm's chunks: those of three collectives are two slices of two steps. */
static inline int slice_count(const struct job *job)
{
	return job->proto == EMU_SIMPLE && job->algo == EMU_RING && job->func != EMU_BROADCAST &&
			       job->func != EMU_REDUCE
		       ? 2
		       : 1;
}

static inline ssize_t chunk_of(const struct job *job)
{
	static const ssize_t grains[EMU_PROTOCOLS] = {16, 1920, 512};
	const ssize_t bytes = data_step(job->proto) * slice_count(job) * slice_count(job) / job->shrink;
	const ssize_t grain = grains[job->proto];

	return (bytes < grain ? grain : bytes / grain * grain) / (ssize_t)emu_type_bytes(job->type);
}

static inline struct emu_schedule contiguous(const struct job *job, int channel, int channels)
{
	const ssize_t per = 16 / (ssize_t)emu_type_bytes(job->type);
	const ssize_t count = (ssize_t)job->count, share = (count / channels + per - 1) / per * per;
	const ssize_t offset = share * channel < count ? share * channel : count;
	const bool last = channel == channels - 1;

	return (struct emu_schedule){
		.kind = EMU_CONTIGUOUS,
		.offset = offset,
		.count = last || share > count - offset ? count - offset : share,
		.chunk = chunk_of(job),
	};
}

static inline struct emu_schedule strided(const struct job *job, int channel, int channels)
{
	const ssize_t element = (ssize_t)emu_type_bytes(job->type), size = (ssize_t)job->count;
	const int threads = job->proto == EMU_SIMPLE ? 160 : 64; /* a warp of Simple only posts */
	const ssize_t loop = channels * (data_step(job->proto) / element);
	ssize_t last = chunk_of(job);

	if (job->proto == EMU_LL) { /* as NCCL: an equal part of the last loop, in whole lines of all threads */
		last = (size % loop + channels - 1) / channels * element;
		last = (last + threads * 8 - 1) / (threads * 8) * (threads * 8) / element;
	}
	return (struct emu_schedule){.kind = EMU_STRIDED,
				     .size = size,
				     .tree_chunk = last,
				     .bid = channel,
				     .channels = channels,
				     .threads = threads};
}

static inline void fill_coll(const struct job *job, const struct world *world, int rank, int channel,
			     struct emu_batch *batch)
{
	batch->func = job->func;
	batch->algo = job->algo;
	batch->proto = job->proto;
	batch->type = job->type;
	batch->op = job->op;
	batch->works = 1;
	batch->coll[0] = (struct emu_coll){
		.sendbuff = job->send[rank],
		.recvbuff = job->recv[rank],
		.count = job->count,
		.root = job->root,
		.schedule = job->strided ? strided(job, channel, world->channels)
					 : contiguous(job, channel, world->channels),
		.arg = job->op == EMU_SUMPOSTDIV ? (uint64_t)job->scalar : value_bits(job->type, job->scalar),
	};
}

static inline int fill_job(const struct world *world, int rank, int channel, int64_t n, struct emu_batch *batch)
{
	if (n > 0)
		return 0;
	fill_coll(world->job, world, rank, channel, batch);
	return 1;
}

/* ---- buffers ---- */

static inline size_t parts_in(const struct job *job, int ranks)
{
	return job->func == EMU_REDUCE_SCATTER ? (size_t)ranks : 1;
}

static inline size_t parts_out(const struct job *job, int ranks)
{
	return job->func == EMU_ALL_GATHER ? (size_t)ranks : 1;
}

static inline void make_buffers(struct job *job, const struct world *world)
{
	const size_t element = emu_type_bytes(job->type);
	const size_t in = job->count * parts_in(job, world->ranks), out = job->count * parts_out(job, world->ranks);

	for (int rank = 0; rank < world->ranks; rank++) {
		char *own = malloc((in > out ? in : out) * element + GUARD);

		check(own != NULL);
		memset(own, 0xa5, (in > out ? in : out) * element + GUARD);
		job->send[rank] = job->recv[rank] = own;
		if (job->in_place && out > in)
			job->send[rank] = own + (size_t)rank * in * element;
		if (job->in_place && in > out)
			job->recv[rank] = own + (size_t)rank * out * element;
		if (!job->in_place) {
			job->send[rank] = malloc(in * element + 1);
			check(job->send[rank] != NULL);
		}
		for (size_t i = 0; i < in; i++)
			value_put(job->send[rank], i, job->type,
				  value_bits(job->type, value_of(job->type, job->op, rank, i)));
	}
}

static inline void free_buffers(struct job *job, const struct world *world)
{
	for (int rank = 0; rank < world->ranks; rank++) {
		char *recv = job->recv[rank], *send = job->send[rank];

		free(!job->in_place || recv < send ? recv : send);
		if (!job->in_place)
			free(send);
	}
}

/* Element i of the rank's result. */
static inline double expected(const struct job *job, const struct world *world, int rank, size_t i)
{
	switch (job->func) {
	case EMU_BROADCAST:
		return value_of(job->type, job->op, job->root, i);
	case EMU_ALL_GATHER:
		return value_of(job->type, job->op, (int)(i / job->count), i % job->count);
	case EMU_REDUCE_SCATTER:
		return value_reduced(job->type, job->op, job->scalar, world->ranks, (size_t)rank * job->count + i);
	default:
		return value_reduced(job->type, job->op, job->scalar, world->ranks, i);
	}
}

static inline void describe(const struct job *job, const struct world *world)
{
	fprintf(stderr,
		"func %d algo %d proto %d type %d op %d count %zu ranks %d link %d shrink %d strided %d place %d\n",
		job->func, job->algo, job->proto, job->type, job->op, job->count, world->ranks, world->link,
		job->shrink, job->strided, job->in_place);
}

static inline void check_results(const struct job *job, const struct world *world)
{
	const size_t element = emu_type_bytes(job->type), count = job->count * parts_out(job, world->ranks);
	const uint64_t mask = UINT64_MAX >> (64 - 8 * element);

	for (int rank = 0; rank < world->ranks; rank++) {
		const char *end = job->recv[rank] + count * element;

		check_int(world->result[rank], 0);
		if (job->func == EMU_REDUCE && rank != job->root)
			continue;
		for (size_t i = 0; i < count; i++) {
			const uint64_t want = value_bits(job->type, expected(job, world, rank, i)) & mask;

			if (value_get(job->recv[rank], i, job->type) != want) {
				describe(job, world);
				fprintf(stderr, "rank %d element %zu\n", rank, i);
				check_int(value_get(job->recv[rank], i, job->type), want);
			}
		}
		for (int i = 0; !job->in_place && i < GUARD; i++)
			check_int((unsigned char)end[i], 0xa5);
	}
}

static inline void play(struct world *world, struct job job)
{
	const int slices = slice_count(&job);

	make_buffers(&job, world);
	world_play(world, job.proto, slices, slices, fill_job, &job);
	check_results(&job, world);
	free_buffers(&job, world);
}

#endif
