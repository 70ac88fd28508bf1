/* SPDX-License-Identifier: MIT
 *
 * The LL128 protocol: lines of 120 bytes of data and a flag of 8. The GPU may rely on a line arriving as a whole, so
 * the receiver looks at the flag alone and then reads the data: a network that writes the flag first corrupts the
 * data. Lines go in units of a warp's size. Called within a fiber.
 */
#include <string.h>

#include "kernel/prims.h"

enum {
	LINE_BYTES = 128,
	LINE_DATA = 120,
	UNIT_LINES = 16, /* what a warp moves at once: the proxy sends whole units */
	UNIT_BYTES = UNIT_LINES * LINE_BYTES,
	UNIT_DATA = UNIT_LINES * LINE_DATA
};

struct line {
	const uint64_t *flag;
	uint64_t wanted;
};

static bool flagged(const void *condition)
{
	const struct line *line = condition;

	return __atomic_load_n(line->flag, __ATOMIC_ACQUIRE) == line->wanted;
}

static char *unit_at(const struct emu_prims *prims, const struct emu_link *link, size_t unit)
{
	return link->conn.buffs[EMU_LL128] + link->step % EMU_STEPS * prims->step_bytes + unit * UNIT_BYTES;
}

static void receive_unit(const struct emu_prims *prims, const struct emu_link *link, size_t unit, char *data)
{
	const char *at = unit_at(prims, link, unit);

	for (int i = 0; i < UNIT_LINES; i++, at += LINE_BYTES, data += LINE_DATA) {
		const struct line line = {(const uint64_t *)(at + LINE_DATA), link->step + 1};

		emu_fiber_wait(prims->fibers, flagged, &line);
		memcpy(data, at, LINE_DATA);
	}
}

static void send_unit(const struct emu_prims *prims, const struct emu_link *link, size_t unit, const char *data)
{
	char *at = unit_at(prims, link, unit);

	for (int i = 0; i < UNIT_LINES; i++, at += LINE_BYTES, data += LINE_DATA) {
		memcpy(at, data, LINE_DATA);
		__atomic_store_n((uint64_t *)(at + LINE_DATA), link->step + 1, __ATOMIC_RELEASE);
	}
}

/* bytes: how many the unit has of the chunk. */
static void move_unit(struct emu_prims *prims, const struct emu_move *move, size_t unit, size_t bytes)
{
	const size_t offset = unit * UNIT_DATA;
	_Alignas(64) char received[EMU_TREE_ARITY][UNIT_DATA];
	_Alignas(64) char result[UNIT_DATA];
	struct emu_parts parts = {.outputs = {result}, .output_count = 1, .own = move->own, .complete = move->complete};

	if (move->source != NULL)
		parts.sources[parts.source_count++] = (const char *)move->source + offset;
	for (int i = 0; move->receive && i < prims->froms; i++) {
		receive_unit(prims, &prims->from[i], unit, received[i]);
		parts.sources[parts.source_count++] = received[i];
	}
	memset(result + bytes, 0, UNIT_DATA - bytes);
	emu_prims_combine(prims, &parts, bytes / prims->element);
	for (int i = 0; move->send && i < prims->tos; i++)
		send_unit(prims, &prims->to[i], unit, result);
	if (move->destination != NULL)
		memcpy((char *)move->destination + offset, result, bytes);
}

static void finish(struct emu_prims *prims, const struct emu_move *move)
{
	for (int i = 0; move->send && i < prims->tos; i++) {
		struct emu_link *link = &prims->to[i];

		link->step++;
		if (link->conn.fifo_size != NULL) /* only a proxy looks at the tail */
			emu_link_publish(link->conn.tail, link->step);
	}
	for (int i = 0; move->receive && i < prims->froms; i++) {
		prims->from[i].step++;
		emu_link_publish(prims->from[i].conn.head, prims->from[i].step);
	}
}

static void move_ll128(struct emu_prims *prims, const struct emu_move *move)
{
	const size_t bytes = (size_t)move->count * prims->element, units = (bytes + UNIT_DATA - 1) / UNIT_DATA;

	for (int i = 0; move->send && i < prims->tos; i++) {
		emu_link_wait_room(prims, &prims->to[i], 1);
		emu_link_set_size(&prims->to[i], units * UNIT_BYTES);
	}
	for (size_t i = 0; i < units; i++) {
		const size_t left = bytes - i * UNIT_DATA;

		move_unit(prims, move, i, left < UNIT_DATA ? left : UNIT_DATA);
	}
	finish(prims, move);
}

const struct emu_protocol emu_ll128 = {NULL, move_ll128};
