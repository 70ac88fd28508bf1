/* SPDX-License-Identifier: MIT
 *
 * The LL protocol: lines of 16 bytes, {data, flag, data, flag} of 4 bytes each. A flag tells that the data before it is
 * there, so the receiver polls the buffer that the network is writing; it reads 8 bytes at once, a flag together with
 * its data, as the GPU does. Called within a fiber.
 */
#include <string.h>

#include "kernel/prims.h"

enum {
	LINE_BYTES = 16,
	LINE_DATA = 8,
	BLOCK_LINES = 256,
	BLOCK_BYTES = BLOCK_LINES * LINE_DATA,
};

/* In these steps the sender rewrites all flags of the slot, so that one of 2^32 steps ago is never taken for new. */
static const uint64_t clean_mask = 0x7ffffff8;

struct half_line {
	const uint64_t *at;
	uint32_t flag;
};

static uint64_t load(const uint64_t *at)
{
	return __atomic_load_n(at, __ATOMIC_ACQUIRE);
}

static bool flagged(const void *condition)
{
	const struct half_line *half = condition;

	return (uint32_t)(load(half->at) >> 32) == half->flag;
}

static uint32_t flag_of(const struct emu_link *link)
{
	return (uint32_t)(link->step + 1);
}

static uint64_t *lines_of(const struct emu_prims *prims, const struct emu_link *link)
{
	return (uint64_t *)(link->conn.buffs[EMU_LL] + link->step % EMU_STEPS * prims->step_bytes);
}

static uint32_t receive_half(const struct emu_prims *prims, const uint64_t *at, uint32_t flag)
{
	uint64_t half = load(at);

	if ((uint32_t)(half >> 32) != flag) {
		const struct half_line condition = {at, flag};

		emu_fiber_wait(prims->fibers, flagged, &condition);
		half = load(at);
	}
	return (uint32_t)half;
}

static void receive_lines(const struct emu_prims *prims, const struct emu_link *link, size_t first, size_t count,
			  uint32_t *data)
{
	const uint64_t *line = lines_of(prims, link) + 2 * first;
	const uint32_t flag = flag_of(link);

	for (size_t i = 0; i < 2 * count; i++)
		data[i] = receive_half(prims, line + i, flag);
}

static void store_half(uint64_t *at, uint32_t data, uint32_t flag)
{
	__atomic_store_n(at, (uint64_t)flag << 32 | data, __ATOMIC_RELEASE);
}

static void send_lines(const struct emu_prims *prims, const struct emu_link *link, size_t first, size_t count,
		       const uint32_t *data)
{
	uint64_t *line = lines_of(prims, link) + 2 * first;
	const uint32_t flag = flag_of(link);

	for (size_t i = 0; i < 2 * count; i++)
		store_half(line + i, data[i], flag);
}

static bool cleans(const struct emu_link *link)
{
	return (link->step & clean_mask) == clean_mask;
}

static void clean_rest(const struct emu_prims *prims, const struct emu_link *link, size_t from)
{
	uint64_t *line = lines_of(prims, link);

	for (size_t i = 2 * from; i < 2 * (prims->step_bytes / LINE_BYTES); i++)
		store_half(line + i, 0, flag_of(link));
}

/* count elements from the at-th on; they begin a line. */
static void move_block(const struct emu_prims *prims, const struct emu_move *move, size_t at, size_t count)
{
	const size_t offset = at * prims->element, bytes = count * prims->element;
	const size_t first = offset / LINE_DATA, lines = (bytes + LINE_DATA - 1) / LINE_DATA;
	_Alignas(64) uint32_t received[EMU_TREE_ARITY][BLOCK_BYTES / sizeof(uint32_t)];
	_Alignas(64) uint32_t result[BLOCK_BYTES / sizeof(uint32_t)];
	struct emu_parts parts = {.outputs = {result}, .output_count = 1, .own = move->own, .complete = move->complete};

	if (move->source != NULL)
		parts.sources[parts.source_count++] = (const char *)move->source + offset;
	for (int i = 0; move->receive && i < prims->froms; i++) {
		receive_lines(prims, &prims->from[i], first, lines, received[i]);
		parts.sources[parts.source_count++] = received[i];
	}
	memset((char *)result + bytes, 0, lines * LINE_DATA - bytes);
	emu_prims_combine(prims, &parts, count);
	for (int i = 0; move->send && i < prims->tos; i++)
		send_lines(prims, &prims->to[i], first, lines, result);
	if (move->destination != NULL)
		memcpy((char *)move->destination + offset, result, bytes);
}

static void finish(struct emu_prims *prims, const struct emu_move *move, size_t lines)
{
	for (int i = 0; move->receive && i < prims->froms; i++) {
		prims->from[i].step++;
		emu_link_publish(prims->from[i].conn.head, prims->from[i].step);
	}
	for (int i = 0; move->send && i < prims->tos; i++) {
		if (cleans(&prims->to[i]))
			clean_rest(prims, &prims->to[i], lines);
		prims->to[i].step++;
	}
}

/* There is no tail: the proxy polls the flags as well. */
static void move_ll(struct emu_prims *prims, const struct emu_move *move)
{
	const size_t count = (size_t)move->count, block = BLOCK_BYTES / prims->element;
	const size_t lines = (count * prims->element + LINE_DATA - 1) / LINE_DATA;

	for (int i = 0; move->send && i < prims->tos; i++) {
		emu_link_wait_room(prims, &prims->to[i], 1);
		emu_link_set_size(&prims->to[i], cleans(&prims->to[i]) ? prims->step_bytes : lines * LINE_BYTES);
	}
	for (size_t at = 0; at < count; at += block)
		move_block(prims, move, at, count - at < block ? count - at : block);
	finish(prims, move, lines);
}

const struct emu_protocol emu_ll = {NULL, move_ll};
