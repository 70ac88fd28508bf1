/* SPDX-License-Identifier: MIT
 *
 * The Simple protocol: a chunk goes in slices, each in slots of its own; counters say which slots are full and free.
 * Called within a fiber.
 */
#include "kernel/prims.h"

static ssize_t max(ssize_t a, ssize_t b)
{
	return a > b ? a : b;
}

static ssize_t min(ssize_t a, ssize_t b)
{
	return a < b ? a : b;
}

static int chunk_steps(const struct emu_prims *prims)
{
	return prims->kind.slices * prims->kind.slice_steps;
}

static uint64_t round_up(uint64_t step, int multiple)
{
	return (step + (uint64_t)multiple - 1) / (uint64_t)multiple * (uint64_t)multiple;
}

/* An operation with shorter chunks may have left the steps within a chunk. The proxies skip the rest as well. */
static void open_simple(struct emu_prims *prims)
{
	for (int i = 0; i < prims->froms; i++) {
		struct emu_link *link = &prims->from[i];

		link->step = round_up(link->step, chunk_steps(prims));
		emu_link_publish(link->conn.head, link->step);
	}
	for (int i = 0; i < prims->tos; i++)
		prims->to[i].step = round_up(prims->to[i].step, chunk_steps(prims));
}

static int64_t load(const char *at, int bytes)
{
	return bytes == sizeof(int64_t) ? __atomic_load_n((const int64_t *)at, __ATOMIC_RELAXED)
					: __atomic_load_n((const int32_t *)at, __ATOMIC_RELAXED);
}

/* Where the data of the link's current step is. The proxy has written that before the counter that was waited for. */
static char *slot(const struct emu_link *link)
{
	const struct emu_conn *conn = &link->conn;
	const size_t n = link->step % EMU_STEPS, at = n * conn->fifo_stride;
	const bool has_mode = conn->fifo_mode != NULL;

	if (conn->fifo_offset != NULL && (!has_mode || load(conn->fifo_mode + at, sizeof(int32_t)) == 1))
		return conn->buffs[EMU_SIMPLE] + load(conn->fifo_offset + at, conn->fifo_offset_bytes);
	return conn->buffs[EMU_SIMPLE] + n * (size_t)conn->step_bytes;
}

static const void *forward(const void *buffer, size_t bytes)
{
	return (const char *)buffer + bytes;
}

static void gather_parts(const struct emu_prims *prims, const struct emu_move *move, size_t offset,
			 struct emu_parts *parts)
{
	*parts = (struct emu_parts){.own = move->own, .complete = move->complete};
	if (move->source != NULL)
		parts->sources[parts->source_count++] = forward(move->source, offset);
	if (move->destination != NULL)
		parts->outputs[parts->output_count++] = (char *)move->destination + offset;
	for (int i = 0; move->receive && i < prims->froms; i++)
		parts->sources[parts->source_count++] = slot(&prims->from[i]);
	for (int i = 0; move->send && i < prims->tos; i++)
		parts->outputs[parts->output_count++] = slot(&prims->to[i]);
}

static void move_slice(struct emu_prims *prims, const struct emu_move *move, size_t at, size_t count)
{
	const int steps = prims->kind.slice_steps;
	struct emu_parts parts;

	for (int i = 0; move->receive && i < prims->froms; i++)
		emu_link_wait_data(prims, &prims->from[i], steps);
	for (int i = 0; move->send && i < prims->tos; i++) {
		emu_link_wait_room(prims, &prims->to[i], steps);
		emu_link_set_size(&prims->to[i], count * prims->element);
	}
	gather_parts(prims, move, at * prims->element, &parts);
	emu_prims_combine(prims, &parts, count);
	for (int i = 0; move->receive && i < prims->froms; i++) {
		prims->from[i].step += (uint64_t)steps;
		emu_link_publish(prims->from[i].conn.head, prims->from[i].step);
	}
	for (int i = 0; move->send && i < prims->tos; i++) {
		prims->to[i].step += (uint64_t)steps;
		emu_link_publish(prims->to[i].conn.tail, prims->to[i].step);
	}
}

/* All slices take their steps, also those that are empty. */
static void move_simple(struct emu_prims *prims, const struct emu_move *move)
{
	const struct emu_kind *kind = &prims->kind;
	const size_t step_bytes = kind->step_bytes > 0 ? (size_t)kind->step_bytes : prims->step_bytes;
	const ssize_t full = (ssize_t)(step_bytes / prims->element) * kind->slice_steps;
	const ssize_t share = (move->count + 16 * kind->slices - 1) / (16 * kind->slices) * 16;
	const ssize_t length = max(share, full / 32);
	ssize_t at = 0;

	for (int i = 0; i < kind->slices; i++) {
		const ssize_t count = min(length, move->count - at);

		move_slice(prims, move, (size_t)at, (size_t)count);
		at += count;
	}
}

const struct emu_protocol emu_simple = {open_simple, move_simple};
