/* SPDX-License-Identifier: MIT
 *
 * The works of a launch up to 2.21: 512 bytes each, linked. The kernel's arguments say where they begin; the first one
 * of the n-th channel is at place n. A work holds collectives of one function, or transfers: receives at even places,
 * each before the send that runs beside it. A work whose collectives differ in operation or type, which only their
 * scalars tell, is given out in several batches. Thread: a launch's.
 */
#include "layout/decode.h"

enum { WORK_BYTES = 512, HEADER_BYTES = 8 };

/* The header, the same in all these releases. */
enum { AT_NEXT = 0, AT_DONE = 0, AT_FUNCTION = 4, AT_FLAGS = 6, AT_TYPE = 7 };
enum { FLAG_LAST = 1, FLAG_IN_FIFO = 2 };
enum { TYPE_COLL = 1, TYPE_P2P = 2 };

/* A transfer's peer is a signed number of 30 bits. */
enum { NO_PEER = (1 << 30) - 1 };

/* ---- collectives ---- */

/* How many elements the work has: they end with the first unused one. */
static int count_elems(const struct emu_elem_fields *fields, const char *work)
{
	int count = 0;

	while (HEADER_BYTES + (count + 1) * fields->bytes <= WORK_BYTES &&
	       emu_read_bits(work + HEADER_BYTES + count * fields->bytes, fields->used))
		count++;
	return count;
}

static void read_schedule(const struct emu_elem_fields *fields, const char *elem, const struct emu_batch *batch,
			  struct emu_schedule *schedule)
{
	if (fields->has_part) {
		*schedule = (struct emu_schedule){
			.kind = EMU_CONTIGUOUS,
			.offset = (ssize_t)emu_read_bits(elem, fields->offset),
			.count = (ssize_t)emu_read_bits(elem, fields->part),
			.chunk = (ssize_t)emu_read_bits(elem, fields->chunk),
		};
		if (batch->func == EMU_ALL_REDUCE && batch->algo == EMU_RING)
			schedule->last_chunk = (ssize_t)emu_read_bits(elem, fields->last_chunk);
		return;
	}
	*schedule = (struct emu_schedule){
		.kind = EMU_STRIDED,
		.size = (ssize_t)emu_read_u64(elem, fields->count),
		.tree_chunk = (ssize_t)emu_read_u64(elem, fields->tree_chunk),
		.bid = (int)emu_read_bits(elem, fields->bid),
		.channels = (int)emu_read_bits(elem, fields->channels),
		.threads = (int)emu_read_bits(elem, fields->warps) * 32,
	};
}

static int read_elem(const struct emu_elem_fields *fields, const struct emu_function *function, const char *elem,
		     const struct emu_batch *batch, struct emu_coll *coll, const char **what)
{
	if (emu_read_bits(elem, fields->registered)) {
		*what = "registered buffers";
		return -1;
	}
	coll->sendbuff = emu_read_pointer(elem, fields->sendbuff);
	coll->recvbuff = emu_read_pointer(elem, fields->recvbuff);
	coll->count = emu_read_u64(elem, fields->count);
	coll->root = emu_read_int(elem, fields->root);
	coll->arg = emu_function_load(function, emu_read_u64(elem, fields->arg),
				      emu_read_bits(elem, fields->arg_is_pointer));
	read_schedule(fields, elem, batch, &coll->schedule);
	return 0;
}

/* Reads collectives from the first-th on, as long as operation and type stay the same. */
static int read_elems(const struct emu_launch *launch, const struct emu_function *function, const char *work, int first,
		      int count, struct emu_batch *batch, const char **what)
{
	const struct emu_elem_fields *fields = launch->layout->elem;

	for (int i = first; i < count; i++) {
		struct emu_coll *coll = &batch->coll[batch->works];
		enum emu_op op;
		enum emu_type type;

		if (read_elem(fields, function, work + HEADER_BYTES + i * fields->bytes, batch, coll, what))
			return -1;
		emu_function_scalar(launch->layout, function, &coll->arg, &op, &type);
		if (batch->works && (op != batch->op || type != batch->type))
			break;
		batch->op = op;
		batch->type = type;
		batch->works++;
	}
	return 0;
}

/* ---- send and receive ---- */

/* One direction of a transfer. */
struct direction {
	bool exists, ll;
	int rank, chunk;
	void *address;
	size_t bytes;
};

static uint64_t read_halves(const char *base, int high, int low)
{
	return (uint64_t)(uint32_t)emu_read_int(base, high) << 32 | (uint32_t)emu_read_int(base, low);
}

static struct direction read_direction(const struct emu_elem_p2p_fields *fields, const char *elem)
{
	const int peer = (int)emu_read_bits(elem, fields->peer);
	struct direction direction = {.rank = -1};

	if (!emu_read_bits(elem, fields->type) || peer == NO_PEER)
		return direction;
	direction = (struct direction){
		.exists = true,
		.ll = emu_read_bits(elem, fields->proto) == EMU_LL,
		.rank = peer,
		.chunk = emu_read_int(elem, fields->chunk),
		.address = (void *)(uintptr_t)read_halves(elem, fields->buff_high, fields->buff_low),
		.bytes = read_halves(elem, fields->count_high, fields->count_low),
	};
	/* The chunk counts LL's flags. */
	if (direction.ll)
		direction.chunk /= 2;
	return direction;
}

static int read_transfers(const struct emu_elem_p2p_fields *fields, const char *work, struct emu_batch *batch,
			  const char **what)
{
	const int groups = (int)emu_read_bits(work + HEADER_BYTES, fields->groups);

	for (int i = 0; i < groups && HEADER_BYTES + (i + 2) * fields->bytes <= WORK_BYTES; i += 2) {
		const char *elem = work + HEADER_BYTES + i * fields->bytes;
		const struct direction recv = read_direction(fields, elem);
		const struct direction send = read_direction(fields, elem + fields->bytes);

		if ((recv.exists && emu_read_bits(elem, fields->registered)) ||
		    (send.exists && emu_read_bits(elem + fields->bytes, fields->registered))) {
			*what = "registered buffers";
			return -1;
		}
		if (!recv.exists && !send.exists)
			continue;
		batch->p2p[batch->works++] = (struct emu_p2p){
			.send_addr = send.address,
			.recv_addr = recv.address,
			.send_bytes = send.bytes,
			.recv_bytes = recv.bytes,
			.send_rank = send.rank,
			.recv_rank = recv.rank,
			.send_chunk = send.chunk,
			.recv_chunk = recv.chunk,
			.has_send = send.exists,
			.has_recv = recv.exists,
			.send_ll = send.ll,
			.recv_ll = recv.ll,
		};
	}
	return 0;
}

/* ---- works ---- */

/* NCCL reuses its works when the last one of each channel has been read. */
static void tell_done(const struct emu_launch *launch, int id, const char *work)
{
	uint32_t *done = emu_read_pointer(emu_launch_channel_at(launch, id), launch->layout->channel->work_done);

	if ((uint8_t)work[AT_FLAGS] & FLAG_IN_FIFO)
		__atomic_store_n(done, (uint32_t)emu_read_int(work, AT_DONE), __ATOMIC_RELEASE);
}

/* Reads what the work holds from the first-th collective on; *count: how many it holds. */
static int read_work(const struct emu_launch *launch, const char *work, int first, int *count, struct emu_batch *batch,
		     const char **what)
{
	uint16_t id;
	const struct emu_function *function;

	memcpy(&id, work + AT_FUNCTION, sizeof(id));
	function = emu_function_find(id, what);
	if (!function)
		return -1;
	emu_function_describe(function, batch);
	batch->works = 0;
	switch (work[AT_TYPE]) {
	case TYPE_COLL:
		*count = count_elems(launch->layout->elem, work);
		return read_elems(launch, function, work, first, *count, batch, what);
	case TYPE_P2P:
		*count = 0;
		return read_transfers(launch->layout->elem_p2p, work, batch, what);
	default:
		*what = "registered buffers";
		return -1;
	}
}

/* cursor->at: place of the work, and above 32 bits how many of its collectives have been given out. */
int emu_work_fifo_next(const struct emu_launch *launch, int index, struct emu_cursor *cursor, struct emu_batch *batch,
		       const char **what)
{
	const char *head = emu_read_pointer(launch->args, launch->layout->args->work_head);
	const char *work;
	int first, count;

	if (!cursor->started)
		*cursor = (struct emu_cursor){.started = true, .at = index};
	if (cursor->done)
		return 0;
	first = (int)(cursor->at >> 32);
	work = head + (int32_t)(cursor->at & UINT32_MAX) * (ptrdiff_t)WORK_BYTES;
	if (read_work(launch, work, first, &count, batch, what))
		return -1;
	if (first + batch->works < count) {
		cursor->at += (int64_t)batch->works << 32;
		return 1;
	}
	if ((uint8_t)work[AT_FLAGS] & FLAG_LAST) {
		tell_done(launch, launch->channel_ids[index], work);
		cursor->done = true;
	} else {
		cursor->at = (int64_t)(uint32_t)emu_read_int(work, AT_NEXT);
	}
	return 1;
}
