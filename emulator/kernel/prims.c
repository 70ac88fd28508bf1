/* SPDX-License-Identifier: MIT
 *
 * What the three protocols have in common: connections, waiting, and the arithmetic between buffers. Called within a
 * fiber.
 */
#include "kernel/prims.h"

#include <string.h>

#include "kernel/reduce.h"

enum { BLOCK_BYTES = 8 * 1024 }; /* several passes over a block find it in the first-level cache */

static int count_peers(const int *peers, int most)
{
	int count = 0;

	while (peers != NULL && count < most && peers[count] >= 0)
		count++;
	return count;
}

void emu_link_open(struct emu_link *link, struct emu_lane *lane, int peer, bool send, int connection)
{
	emu_launch_conn(lane->play->launch, lane->channel.id, peer, send, connection, &link->conn);
	link->step = *link->conn.step;
	link->seen = __atomic_load_n(send ? link->conn.head : link->conn.tail, __ATOMIC_ACQUIRE);
}

void emu_prims_open(struct emu_prims *prims, struct emu_lane *lane, const struct emu_kind *kind,
		    const struct emu_peers *peers)
{
	static const struct emu_protocol *const protocols[EMU_PROTOCOLS] =
		{[EMU_LL] = &emu_ll, [EMU_LL128] = &emu_ll128, [EMU_SIMPLE] = &emu_simple};

	prims->fibers = lane->play->fibers;
	prims->protocol = protocols[kind->proto];
	prims->kind = *kind;
	prims->element = emu_type_bytes(kind->type);
	prims->step_bytes = (size_t)lane->play->launch->buffer_bytes[kind->proto] / EMU_STEPS;
	prims->froms = count_peers(peers->from, peers->froms);
	prims->tos = count_peers(peers->to, peers->tos);
	for (int i = 0; i < prims->froms; i++)
		emu_link_open(&prims->from[i], lane, peers->from[i], false, kind->connection);
	for (int i = 0; i < prims->tos; i++)
		emu_link_open(&prims->to[i], lane, peers->to[i], true, kind->connection);
	if (prims->protocol->open != NULL)
		prims->protocol->open(prims);
}

void emu_prims_move(struct emu_prims *prims, const struct emu_move *move)
{
	struct emu_move checked = *move;

	if (checked.count < 0)
		checked.count = 0;
	prims->protocol->move(prims, &checked);
}

void emu_prims_close(struct emu_prims *prims)
{
	for (int i = 0; i < prims->froms; i++)
		*prims->from[i].conn.step = prims->from[i].step;
	for (int i = 0; i < prims->tos; i++)
		*prims->to[i].conn.step = prims->to[i].step;
}

/* ---- waiting ---- */

struct counter {
	const uint64_t *at;
	uint64_t ahead, wanted;
};

static bool reached(const void *condition)
{
	const struct counter *counter = condition;

	return __atomic_load_n(counter->at, __ATOMIC_ACQUIRE) + counter->ahead >= counter->wanted;
}

static void wait_counter(const struct emu_prims *prims, struct emu_link *link, const struct counter *counter)
{
	if (link->seen + counter->ahead >= counter->wanted)
		return;
	emu_fiber_wait(prims->fibers, reached, counter);
	link->seen = __atomic_load_n(counter->at, __ATOMIC_ACQUIRE);
}

void emu_link_wait_data(const struct emu_prims *prims, struct emu_link *link, int steps)
{
	const struct counter counter = {link->conn.tail, 0, link->step + (uint64_t)steps};

	wait_counter(prims, link, &counter);
}

/* The head of a connection that shares its buffers starts at -EMU_STEPS, which wraps. */
void emu_link_wait_room(const struct emu_prims *prims, struct emu_link *link, int steps)
{
	const struct counter counter = {link->conn.head, EMU_STEPS, link->step + (uint64_t)steps};

	wait_counter(prims, link, &counter);
}

void emu_link_publish(uint64_t *counter, uint64_t value)
{
	__atomic_store_n(counter, value, __ATOMIC_RELEASE);
}

void emu_link_set_size(const struct emu_link *link, size_t bytes)
{
	char *slot = link->conn.fifo_size;

	if (slot == NULL)
		return;
	slot += link->step % EMU_STEPS * link->conn.fifo_stride;
	if (link->conn.fifo_size_bytes == sizeof(int64_t))
		__atomic_store_n((int64_t *)slot, (int64_t)bytes, __ATOMIC_RELEASE);
	else
		__atomic_store_n((int32_t *)slot, (int32_t)bytes, __ATOMIC_RELEASE);
}

/* ---- arithmetic ---- */

static void copy(void *to, const void *from, size_t bytes)
{
	if (to != from && bytes > 0)
		memmove(to, from, bytes);
}

static void combine_block(const struct emu_prims *prims, const struct emu_parts *parts, size_t at, size_t count)
{
	const struct emu_kind *kind = &prims->kind;
	const size_t offset = at * prims->element, bytes = count * prims->element;
	const char *first = (const char *)parts->sources[0] + offset;
	char *sum = (char *)parts->outputs[0] + offset;

	if (parts->own && kind->op == EMU_PREMULSUM) {
		emu_scale(sum, first, count, kind->type, kind->scalar);
		first = sum;
	}
	for (int i = 1; i < parts->source_count; i++) {
		emu_reduce(sum, first, (const char *)parts->sources[i] + offset, count, kind->type, kind->op);
		first = sum;
	}
	copy(sum, first, bytes);
	if (parts->complete && kind->op == EMU_SUMPOSTDIV)
		emu_divide(sum, count, kind->type, kind->scalar);
	for (int i = 1; i < parts->output_count; i++)
		copy((char *)parts->outputs[i] + offset, sum, bytes);
}

void emu_prims_combine(const struct emu_prims *prims, const struct emu_parts *parts, size_t count)
{
	const size_t block = BLOCK_BYTES / prims->element;

	if (parts->output_count == 0 || parts->source_count == 0)
		return;
	for (size_t at = 0; at < count; at += block)
		combine_block(prims, parts, at, count - at < block ? count - at : block);
}
