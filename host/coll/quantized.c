/* SPDX-License-Identifier: MIT
 *
 * See quantized.h. The elements are cut into segments, and each segment into shards, one for each place, whose rank
 * owns it. A shard is one message. First its code goes from every rank to its owner: a contribution. The owner adds the
 * contributions in the order of the places, its own among them, so that the result does not depend on who the owner is.
 * The code of the sum then goes to every rank: a result. Shards begin at blocks of the codec, so the same elements have
 * a range in common all the way.
 *
 * All pairs of ranks exchange their messages at the same time. The contributions of LEAD segments are ahead of the
 * results, in this order on every connection: while some messages are on the wire, others are encoded and decoded.
 * Encoded shards wait in slots, of which there are WINDOW for each place. A message depends only on messages before it
 * in that order, so there is no cycle.
 */
#include "coll/quantized.h"

#include <errno.h>
#include <stdint.h>

#include "codec/codec.h"
#include "coll/pipe.h"
#include "coll/reduce.h"
#include "coll/size.h"

/* Elements of a shard, on a short path; on a longer one, as many as a chunk has. */
#define MAX_SHARD ((size_t)256 * 1024)
/* Of a short input, so that its transfer and its codes overlap in some segments, where they cost more than the fixed
 * cost of a message. */
#define SHORT_SHARD ((size_t)64 * 1024)
#define SHORT_SEGMENTS 4
/* Shards of that size in a segment, and the least size of a shard among many ranks: the scratch stays bounded. */
#define SEGMENT 4
#define MIN_SHARD ((size_t)16 * 1024)
#define LEAD 6
#define WINDOW 8

/* What goes to and comes from one place. */
struct line {
	struct bnet_coll_pipe pipe;
	struct exchange *all;
	int place;
};

struct exchange {
	const struct bnet_coll_subgroup *subgroup;
	struct bnet_coll_quantization how;
	int averaged; /* ranks whose values an average is of */
	bool gathers; /* allreduce */
	/* Each place's block. In an allreduce, all are the whole buffer. */
	struct bnet_coll_blocks from;
	struct bnet_coll_blocks to;
	struct bnet_coll_blocks residual; /* or NULL */
	size_t count;                     /* elements of a block */
	size_t shard;                     /* elements; the last ones are shorter, or empty */
	size_t segments;
	size_t lead;
	size_t slot;    /* bytes */
	char *sent;     /* slots of contributions, and … */
	char *received; /* … those of the others, and … */
	char *results;
	size_t *encoded;     /* segments whose shard for that place was encoded */
	size_t *contributed; /* segments for which that place's contribution has arrived */
	size_t summed;       /* segments whose own shard has all contributions, and … */
	int added;           /* … places whose contributions to the next one are added */
	struct line *lines;
	struct bnet_coll_pipe **pipes;
};

/* ---- shards ---- */

static size_t first_of(const struct exchange *all, size_t segment, int place)
{
	const size_t places = (size_t)all->subgroup->count;

	return (all->gathers ? segment * places + (size_t)place : segment) * all->shard;
}

static size_t count_of(const struct exchange *all, size_t segment, int place)
{
	const size_t first = first_of(all, segment, place);

	return first < all->count ? bnet_coll_min(all->shard, all->count - first) : 0;
}

static size_t bytes_of(const struct exchange *all, size_t segment, int place)
{
	return bnet_codec_bytes(all->how.codec, all->how.block, count_of(all, segment, place));
}

static float *floats_of(const struct exchange *all, const struct bnet_coll_blocks *blocks, size_t segment, int place)
{
	char *block = bnet_coll_block_at(blocks, place);

	return (float *)(void *)block + first_of(all, segment, place);
}

static char *slot_of(const struct exchange *all, char *slots, size_t segment, int place)
{
	return slots + (segment % WINDOW * (size_t)all->subgroup->count + (size_t)place) * all->slot;
}

static bool keeps_residual(const struct exchange *all)
{
	return all->residual.base != NULL || all->residual.each != NULL;
}

/* ---- a shard's way: encoded, added up, encoded again, decoded ---- */

static void encode(struct exchange *all, size_t segment, int place)
{
	const float *x = floats_of(all, &all->from, segment, place);
	char *slot = slot_of(all, all->sent, segment, place);

	if (all->encoded[place] > segment)
		return;
	all->encoded[place] = segment + 1;
	if (keeps_residual(all))
		bnet_codec_encode_keeping(all->how.codec, all->how.block, x,
					  floats_of(all, &all->residual, segment, place), count_of(all, segment, place),
					  slot);
	else
		bnet_codec_encode(all->how.codec, all->how.block, x, count_of(all, segment, place), slot);
}

static void decode(const struct exchange *all, const char *slot, size_t segment, int place)
{
	bnet_codec_decode(all->how.codec, all->how.block, slot, bytes_of(all, segment, place),
			  floats_of(all, &all->to, segment, place), count_of(all, segment, place));
}

/* The sum is complete: the owner, too, goes on with what the others will decode. */
static void finish(struct exchange *all, size_t segment)
{
	const int own = all->subgroup->index;
	const size_t count = count_of(all, segment, own);
	const float factor = all->how.op == BNET_AVG ? (float)all->averaged : 1;
	float *sum = floats_of(all, &all->to, segment, own);
	char *slot = slot_of(all, all->results, segment, own);

	bnet_coll_average(sum, count, BNET_FLOAT32, all->how.op, all->averaged);
	if (!all->gathers)
		return;
	bnet_codec_encode(all->how.codec, all->how.block, sum, count, slot);
	if (keeps_residual(all))
		bnet_codec_add_loss(all->how.codec, all->how.block, slot, sum, count, factor,
				    floats_of(all, &all->residual, segment, own));
	decode(all, slot, segment, own);
}

static void add(struct exchange *all, size_t segment, int place)
{
	const int own = all->subgroup->index;
	char *slot = slot_of(all, place == own ? all->sent : all->received, segment, place);

	if (place == 0)
		decode(all, slot, segment, own);
	else
		bnet_codec_decode_add(all->how.codec, all->how.block, slot, bytes_of(all, segment, own),
				      floats_of(all, &all->to, segment, own), count_of(all, segment, own));
}

/* Adds what has come, in the order of the places. The sum may overwrite the input, which is encoded before. */
static void add_up(struct exchange *all)
{
	const int own = all->subgroup->index;

	while (all->summed < all->segments && count_of(all, all->summed, own) > 0) {
		encode(all, all->summed, own);
		while (all->added < all->subgroup->count &&
		       (all->added == own || all->contributed[all->added] > all->summed))
			add(all, all->summed, all->added++);
		if (all->added < all->subgroup->count)
			return;
		finish(all, all->summed++);
		all->added = 0;
	}
}

/* ---- the order of the messages with a place ---- */

struct step {
	bool gathers; /* a result */
	size_t segment;
};

static struct step step_of(const struct exchange *all, size_t i)
{
	const size_t ahead = i - all->lead;

	if (i < all->lead)
		return (struct step){false, i};
	if (ahead >= 2 * (all->segments - all->lead))
		return (struct step){true, i - all->segments};
	return (struct step){ahead % 2 == 0, ahead % 2 == 0 ? ahead / 2 : all->lead + ahead / 2};
}

static size_t contribution_number(const struct exchange *all, size_t segment)
{
	return segment < all->lead ? segment : 2 * segment - all->lead + 1;
}

static size_t result_number(const struct exchange *all, size_t segment)
{
	return segment + all->lead < all->segments ? 2 * segment + all->lead : all->segments + segment;
}

/* ---- messages ---- */

/* To the other's place: its own contribution, or this rank's result. */
static struct bnet_coll_piece piece_to_send(const struct bnet_coll_pipe *pipe, size_t i)
{
	const struct line *line = pipe->op;
	struct exchange *all = line->all;
	const struct step step = step_of(all, i);
	const int owner = step.gathers ? all->subgroup->index : line->place;
	const size_t bytes = bytes_of(all, step.segment, owner);

	if (!step.gathers && bytes > 0)
		encode(all, step.segment, owner);
	return (struct bnet_coll_piece){slot_of(all, step.gathers ? all->results : all->sent, step.segment, owner),
					bytes};
}

static bool may_send(const struct bnet_coll_pipe *pipe, size_t i)
{
	const struct line *line = pipe->op;
	const struct exchange *all = line->all;
	const struct step step = step_of(all, i);

	if (step.gathers)
		return all->summed > step.segment || count_of(all, step.segment, all->subgroup->index) == 0;
	return step.segment < WINDOW || pipe->send.done > contribution_number(all, step.segment - WINDOW);
}

static struct bnet_coll_piece piece_to_receive(const struct bnet_coll_pipe *pipe, size_t i)
{
	const struct line *line = pipe->op;
	const struct exchange *all = line->all;
	const struct step step = step_of(all, i);
	const int owner = step.gathers ? line->place : all->subgroup->index;

	return (struct bnet_coll_piece){slot_of(all, step.gathers ? all->results : all->received, step.segment,
						line->place),
					bytes_of(all, step.segment, owner)};
}

/* A contribution may come when the one in its slot has been added, and the result that will be made of it has a slot:
 * the one there before has been sent to all, of whom each sends a contribution. */
static bool may_receive(const struct bnet_coll_pipe *pipe, size_t i)
{
	const struct line *line = pipe->op;
	const struct exchange *all = line->all;
	const struct step step = step_of(all, i);
	const size_t before = step.segment - WINDOW;

	if (step.segment < WINDOW)
		return true;
	if (step.gathers)
		return pipe->recv.done > result_number(all, before);
	return all->summed > before && (!all->gathers || pipe->send.done > result_number(all, before));
}

static void received(const struct bnet_coll_pipe *pipe, size_t i)
{
	const struct line *line = pipe->op;
	struct exchange *all = line->all;
	const struct step step = step_of(all, i);

	if (step.gathers) {
		decode(all, slot_of(all, all->results, step.segment, line->place), step.segment, line->place);
		return;
	}
	all->contributed[line->place] = step.segment + 1;
	add_up(all);
}

/* ---- an operation ---- */

static size_t max_shard(const struct bnet_coll *coll, int places, size_t block)
{
	const size_t most = bnet_coll_max(MAX_SHARD, coll->chunk / sizeof(float));
	const size_t shard = bnet_coll_max(bnet_coll_min(SEGMENT * most / (size_t)places, most), MIN_SHARD);

	return bnet_coll_round_up(shard, block);
}

static size_t slot_bytes(const struct bnet_coll_quantization *how, size_t shard)
{
	return bnet_coll_round_up(bnet_codec_bytes(how->codec, how->block, shard), BNET_COLL_LINE);
}

/* Contributions that leave, those that arrive, and results. */
static size_t slots_bytes(int places, size_t slot)
{
	return 3 * WINDOW * (size_t)places * slot;
}

static size_t state_bytes(int places)
{
	return (size_t)places * (2 * sizeof(size_t) + sizeof(struct line) + sizeof(struct bnet_coll_pipe *));
}

size_t bnet_coll_quantized_scratch(const struct bnet_coll *coll, int places, const struct bnet_coll_quantization *how)
{
	return slots_bytes(places, slot_bytes(how, max_shard(coll, places, how->block))) + state_bytes(places);
}

/* In segments of so many shards. */
static void cut(const struct bnet_coll *coll, struct exchange *all, size_t shards)
{
	const size_t block = all->how.block;
	const size_t few = bnet_coll_max(bnet_coll_chunks(all->count, shards * SHORT_SEGMENTS), SHORT_SHARD);
	const size_t most = bnet_coll_min(bnet_coll_round_up(few, block), max_shard(coll, all->subgroup->count, block));
	const size_t segments = bnet_coll_chunks(all->count, shards * most);

	all->shard = bnet_coll_round_up(bnet_coll_chunks(all->count, shards * segments), block);
	all->segments = bnet_coll_chunks(all->count, shards * all->shard);
	all->slot = slot_bytes(&all->how, all->shard);
	all->lead = all->gathers ? bnet_coll_min(LEAD, all->segments) : all->segments;
}

/* The scratch: slots, counters, lines. */
static bool divide_scratch(struct bnet_coll *coll, struct exchange *all)
{
	const size_t places = (size_t)all->subgroup->count, slots = slots_bytes(all->subgroup->count, all->slot);
	char *at = bnet_coll_scratch(coll, slots + state_bytes(all->subgroup->count));

	if (at == NULL)
		return false;
	all->sent = at;
	all->received = at + slots / 3;
	all->results = at + slots / 3 * 2;
	all->lines = (struct line *)(void *)(at + slots);
	all->pipes = (struct bnet_coll_pipe **)(void *)(all->lines + places);
	all->encoded = (size_t *)(void *)(all->pipes + places);
	all->contributed = all->encoded + places;
	for (size_t place = 0; place < places; place++)
		all->encoded[place] = all->contributed[place] = 0;
	return true;
}

/* Every rank begins with another one. */
static void draw_lines(struct exchange *all)
{
	const size_t messages = all->segments * (all->gathers ? 2 : 1);
	const int count = all->subgroup->count;

	for (int i = 0; i < count - 1; i++) {
		const int place = (all->subgroup->index + 1 + i) % count,
			  peer = bnet_coll_subgroup_rank(all->subgroup, place);

		all->lines[i] = (struct line){.all = all,
					      .place = place,
					      .pipe = {.op = &all->lines[i],
						       .received = received,
						       .send = {.peer = peer,
								.count = messages,
								.piece = piece_to_send,
								.may_post = may_send},
						       .recv = {.peer = peer,
								.count = messages,
								.piece = piece_to_receive,
								.may_post = may_receive}}};
		all->pipes[i] = &all->lines[i].pipe;
	}
}

static int run(struct bnet_coll *coll, struct exchange *all, size_t shards)
{
	cut(coll, all, shards);
	if (!divide_scratch(coll, all))
		return -ENOMEM;
	draw_lines(all);
	return bnet_coll_pipes_run(coll, all->pipes, all->subgroup->count - 1);
}

int bnet_coll_quantized_allreduce(struct bnet_coll *coll, const struct bnet_coll_subgroup *subgroup, const char *send,
				  char *recv, size_t count, const struct bnet_coll_quantization *how, char *residual)
{
	struct exchange all = {.subgroup = subgroup,
			       .how = *how,
			       .averaged = coll->nranks,
			       .gathers = true,
			       .from = {.base = (char *)(uintptr_t)send},
			       .to = {.base = recv},
			       .residual = {.base = residual},
			       .count = count};

	return run(coll, &all, (size_t)subgroup->count);
}

int bnet_coll_quantized_reduce_scatter(struct bnet_coll *coll, const struct bnet_coll_subgroup *subgroup,
				       const struct bnet_coll_blocks *from, char *recv,
				       const struct bnet_coll_quantization *how,
				       const struct bnet_coll_blocks *residual)
{
	struct exchange all = {.subgroup = subgroup,
			       .how = *how,
			       .averaged = coll->nranks,
			       .from = *from,
			       .to = {.base = recv},
			       .count = from->bytes / sizeof(float)};

	if (residual != NULL)
		all.residual = *residual;
	return run(coll, &all, 1);
}
