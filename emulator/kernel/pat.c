/* SPDX-License-Identifier: MIT
 *
 * Plays PAT's allgather and reducescatter with the Simple protocol. The steps of a round are done as NCCL's warps do
 * them: all wait, all move data, all post. Called within a channel's fiber.
 */
#include <stdatomic.h>

#include "kernel/kernel.h"
#include "kernel/pat_steps.h"
#include "kernel/prims.h"
#include "kernel/reduce.h"

struct peer {
	struct emu_link link;
	ssize_t filled; /* elements, counted over all slots: what has been written, or copied to the own output */
};

struct pat {
	struct emu_prims prims;
	const struct emu_coll *coll;
	struct peer from[EMU_PAT_DIMENSIONS], to[EMU_PAT_DIMENSIONS];
	ssize_t filled; /* of the own output */
	size_t element;
	bool reduces, compact;
};

/* A step while its round is done. */
struct busy {
	const struct emu_pat_step *step;
	struct peer *from, *to; /* NULL: the own buffer */
	struct emu_parts parts;
	ssize_t filled; /* by this step */
};

static atomic_bool compact_steps;

void emu_kernel_set_release(int version)
{
	atomic_store(&compact_steps, version < 22600);
}

/* ---- where a step's data is ---- */

static ssize_t slot_elements(const struct pat *pat, const struct peer *peer)
{
	return peer->link.conn.step_bytes / (ssize_t)pat->element;
}

static char *in_slot(const struct pat *pat, const struct peer *peer, int ahead, ssize_t at)
{
	const struct emu_conn *conn = &peer->link.conn;
	const uint64_t slot = (peer->link.step + (uint64_t)ahead) % EMU_STEPS;

	return conn->buffs[EMU_SIMPLE] + slot * (uint64_t)conn->step_bytes + (size_t)at * pat->element;
}

static const char *own_input(const struct pat *pat, size_t at)
{
	return (const char *)pat->coll->sendbuff + at * pat->element;
}

static char *own_output(const struct pat *pat, size_t at)
{
	return (char *)pat->coll->recvbuff + at * pat->element;
}

/* The end of the step's data in a peer's slot, on the count of all its slots. */
static ssize_t end_in(const struct pat *pat, const struct peer *peer, int ahead, ssize_t at, ssize_t count)
{
	return at + count + (ssize_t)(peer->link.step + (uint64_t)ahead) * slot_elements(pat, peer);
}

/* ---- waiting ---- */

/* The first to write to a place of the next peer's slot adds the own input, the others what is there. */
static void prepare_reduce(struct pat *pat, struct busy *busy)
{
	const struct emu_pat_step *step = busy->step;
	struct emu_parts *parts = &busy->parts;
	ssize_t *filled = busy->to == NULL ? &pat->filled : &busy->to->filled;
	char *target;

	if (busy->from != NULL) {
		emu_link_wait_data(&pat->prims, &busy->from->link, 1);
		parts->sources[parts->source_count++] = in_slot(pat, busy->from, 0, step->from_at);
	}
	if (busy->to != NULL) {
		emu_link_wait_room(&pat->prims, &busy->to->link, step->ahead + 1);
		target = in_slot(pat, busy->to, step->ahead, step->to_at);
		busy->filled = end_in(pat, busy->to, step->ahead, step->to_at, step->count);
	} else {
		target = own_output(pat, step->output);
		busy->filled = (ssize_t)step->output + step->count;
	}
	parts->outputs[parts->output_count++] = target;
	parts->complete = step->complete;
	if (*filled >= busy->filled) {
		parts->sources[parts->source_count++] = target;
		return;
	}
	parts->own = true; /* that is, the first source */
	parts->sources[1] = parts->sources[0];
	parts->sources[0] = own_input(pat, step->input);
	parts->source_count++;
	if (busy->to != NULL && pat->compact) { /* NCCL tells the size of a slot before its last step */
		const struct emu_link at = {.conn = busy->to->link.conn,
					    .step = busy->to->link.step + (uint64_t)step->ahead};

		emu_link_set_size(&at, (size_t)(step->to_at + step->count) * pat->element);
	}
}

/* What arrives is copied to the own output when it is first read. */
static void prepare_gather(struct pat *pat, struct busy *busy)
{
	const struct emu_pat_step *step = busy->step;
	struct emu_parts *parts = &busy->parts;
	ssize_t *filled = busy->from == NULL ? &pat->filled : &busy->from->filled;
	const char *source;
	char *own;

	if (busy->from != NULL) {
		emu_link_wait_data(&pat->prims, &busy->from->link, step->ahead + 1);
		source = in_slot(pat, busy->from, step->ahead, step->from_at);
		busy->filled = end_in(pat, busy->from, step->ahead, step->from_at, step->count);
	} else {
		source = own_input(pat, step->input);
		busy->filled = (ssize_t)step->input + step->count;
	}
	if (busy->to != NULL) {
		emu_link_wait_room(&pat->prims, &busy->to->link, 1);
		parts->outputs[parts->output_count++] = in_slot(pat, busy->to, 0, step->to_at);
	}
	parts->sources[parts->source_count++] = source;
	own = own_output(pat, step->output);
	if (*filled < busy->filled && own != source)
		parts->outputs[parts->output_count++] = own;
}

/* ---- the round ---- */

static void note_filled(struct pat *pat, const struct busy *busy)
{
	const struct peer *peer = pat->reduces ? busy->to : busy->from;
	ssize_t *filled = peer == NULL ? &pat->filled : pat->reduces ? &busy->to->filled : &busy->from->filled;

	if (*filled < busy->filled)
		*filled = busy->filled;
}

static void post(struct pat *pat, const struct busy *busy)
{
	const struct emu_pat_step *step = busy->step;

	if (busy->to != NULL && step->post_to) {
		struct emu_link *link = &busy->to->link;

		if (!pat->reduces || !pat->compact)
			emu_link_set_size(link, (size_t)(step->to_at + step->count) * pat->element);
		emu_link_publish(link->conn.tail, ++link->step);
	}
	if (busy->from != NULL && step->post_from) {
		struct emu_link *link = &busy->from->link;

		emu_link_publish(link->conn.head, ++link->step);
	}
}

static void play_round(struct pat *pat, const struct emu_pat_step *steps, int count)
{
	struct busy round[EMU_PAT_PARALLEL];
	int n = 0;

	for (int i = 0; i < count; i++) {
		struct busy *busy = &round[n];

		if (steps[i].skip)
			continue;
		*busy = (struct busy){.step = &steps[i]};
		busy->from = steps[i].from < 0 ? NULL : &pat->from[steps[i].from];
		busy->to = steps[i].to < 0 ? NULL : &pat->to[steps[i].to];
		if (pat->reduces)
			prepare_reduce(pat, busy);
		else
			prepare_gather(pat, busy);
		n++;
	}
	for (int i = 0; i < n; i++)
		emu_prims_combine(&pat->prims, &round[i].parts, (size_t)round[i].step->count);
	for (int i = 0; i < n; i++)
		note_filled(pat, &round[i]);
	for (int i = 0; i < n; i++)
		post(pat, &round[i]);
}

/* ---- all rounds ---- */

/* Reducescatter sends upwards, allgather downwards. */
static void open_peers(struct pat *pat, struct emu_lane *lane)
{
	const int rank = lane->play->launch->rank, ranks = lane->play->launch->ranks;

	for (int i = 0; 1 << i < ranks; i++) {
		const int above = (rank + (1 << i)) % ranks, below = (rank - (1 << i) + ranks) % ranks;

		pat->from[i].filled = pat->to[i].filled = 0;
		emu_link_open(&pat->from[i].link, lane, pat->reduces ? below : above, false, 0);
		emu_link_open(&pat->to[i].link, lane, pat->reduces ? above : below, true, 0);
	}
}

static void close_peers(struct pat *pat, int ranks)
{
	for (int i = 0; 1 << i < ranks; i++) {
		*pat->from[i].link.conn.step = pat->from[i].link.step;
		*pat->to[i].link.conn.step = pat->to[i].link.step;
	}
}

void emu_play_pat(struct emu_lane *lane, const struct emu_batch *batch, const struct emu_coll *coll)
{
	const struct emu_launch *launch = lane->play->launch;
	const struct emu_schedule *schedule = &coll->schedule;
	const struct emu_kind kind = {.proto = EMU_SIMPLE, .type = batch->type, .op = batch->op, .scalar = coll->arg};
	const struct emu_peers nobody = {0};
	struct pat pat = {.coll = coll, .reduces = batch->func == EMU_REDUCE_SCATTER};
	struct emu_pat_step steps[EMU_PAT_PARALLEL];
	struct emu_pat order;
	int count;

	if (schedule->count <= 0)
		return;
	pat.compact = atomic_load(&compact_steps);
	pat.element = emu_type_bytes(batch->type);
	emu_pat_open(&order, &(struct emu_pat_config){
				     .rank = launch->rank,
				     .ranks = launch->ranks,
				     .offset = (size_t)schedule->offset,
				     .end = (size_t)(schedule->offset + schedule->count),
				     .stride = coll->count,
				     .chunk = schedule->chunk,
				     .element = pat.element,
				     .reduces = pat.reduces,
				     .compact = pat.compact,
			     });
	emu_prims_open(&pat.prims, lane, &kind, &nobody);
	open_peers(&pat, lane);
	do {
		count = emu_pat_next(&order, steps);
		play_round(&pat, steps, count);
	} while (!steps[count - 1].last);
	close_peers(&pat, launch->ranks);
}
