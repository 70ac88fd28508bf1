/* SPDX-License-Identifier: MIT
 *
 * The works of a launch since 2.22. The kernel's arguments carry batches, the first one of the n-th channel at place n;
 * a batch names its works, which are in the arguments or in a buffer, and the channel's next batch. A batch whose works
 * differ in operation or type, which only their scalars tell, is given out in several. Thread: a launch's.
 */
#include "layout/decode.h"

enum { TYPE_P2P, TYPE_COLL, TYPE_COLL_REGISTERED, TYPE_BCAST };
enum { STORAGE_ARGS, STORAGE_FIFO, STORAGE_PERSISTENT };
enum { LONGEST_WORK = 128 };

/* The works of a batch and of those that extend it. */
struct works {
	const char *work[EMU_BATCH_WORKS];
	int count;
	unsigned type, function;
	int64_t next;      /* place of the channel's next batch; -1: this is the last one */
	uint32_t consumed; /* where the works end in the buffer */
	/* The work that the end of the buffer divides. There is one at most, as the buffer holds all works at once. */
	char divided[LONGEST_WORK];
};

/* ---- finding works ---- */

/* 0 for a type that is not emulated. */
static int work_bytes(const struct emu_layout *layout, unsigned type)
{
	switch (type) {
	case TYPE_P2P:
		return layout->p2p->bytes;
	case TYPE_COLL:
		return layout->coll->bytes;
	case TYPE_BCAST:
		return layout->bcast ? layout->bcast->bytes : 0;
	default:
		return 0;
	}
}

static int storage(const struct emu_launch *launch)
{
	return (uint8_t)launch->args[launch->layout->args->storage];
}

/* The buffer is a ring of a power of two bytes, no multiple of a work's. */
static const char *work_in_buffer(const struct emu_launch *launch, uint32_t offset, int bytes, struct works *works)
{
	const struct emu_args_fields *fields = launch->layout->args;
	const char *buffer = emu_read_pointer(launch->args, fields->work_buffer);
	const uint32_t mask = (uint32_t)emu_read_int(launch->args, fields->work_mask);
	const size_t start = offset & mask, whole = (size_t)bytes, till_end = (size_t)mask + 1 - start;

	if (till_end >= whole)
		return buffer + start;
	memcpy(works->divided, buffer + start, till_end);
	memcpy(works->divided + till_end, buffer, whole - till_end);
	return works->divided;
}

/* NULL if the arguments end before. */
static const char *work_at(const struct emu_launch *launch, uint32_t offset, int bytes, struct works *works)
{
	if (storage(launch) != STORAGE_ARGS)
		return work_in_buffer(launch, offset, bytes, works);
	return (size_t)offset + (size_t)bytes <= launch->args_bytes ? launch->args + offset : NULL;
}

static int add_works(const struct emu_launch *launch, const char *batch, struct works *works, const char **what)
{
	const struct emu_batch_fields *fields = launch->layout->batch;
	const uint32_t base = (uint32_t)emu_read_int(batch, fields->offset_base);
	const int bytes = work_bytes(launch->layout, works->type);
	uint64_t set = emu_read_u64(batch, fields->offset_set);

	if (set)
		works->consumed = base + (uint32_t)((64 - __builtin_clzll(set)) * bytes);
	for (; set; set &= set - 1) {
		const char *work = work_at(launch, base + (uint32_t)(__builtin_ctzll(set) * bytes), bytes, works);

		if (!work || works->count == EMU_BATCH_WORKS) {
			*what = work ? "a batch of more works than a device of this kind gets"
				     : "arguments that end before their works";
			return -1;
		}
		works->work[works->count++] = work;
	}
	return 0;
}

/* Collects from the batch at place at on. */
static int collect(const struct emu_launch *launch, int64_t at, struct works *works, const char **what)
{
	const struct emu_layout *layout = launch->layout;
	const struct emu_batch_fields *fields = layout->batch;
	bool extends = true;

	works->count = 0;
	works->consumed = 0;
	works->next = at;
	while (extends && works->next >= 0) {
		const size_t offset = (size_t)layout->args->bytes + (size_t)works->next * (size_t)fields->bytes;
		const char *batch = launch->args + offset;
		unsigned jump;

		if (offset + (size_t)fields->bytes > launch->args_bytes) {
			*what = "arguments that end before their batches";
			return -1;
		}
		works->type = (unsigned)emu_read_bits(batch, fields->type);
		works->function = (unsigned)emu_read_bits(batch, fields->function);
		if (!work_bytes(layout, works->type)) {
			*what = "registered buffers";
			return -1;
		}
		if (add_works(launch, batch, works, what))
			return -1;
		extends = emu_read_bits(batch, fields->extends);
		jump = (unsigned)emu_read_bits(batch, fields->next);
		works->next = jump ? works->next + jump : -1;
	}
	return 0;
}

/* ---- collectives ---- */

static int grain_bytes(enum emu_proto proto)
{
	static const int bytes[EMU_PROTOCOLS] = {[EMU_LL] = 16, [EMU_LL128] = 1920, [EMU_SIMPLE] = 512};

	return bytes[proto];
}

/* Channel id's part: the first and the last channel have sizes of their own, those between them the same one. */
static void read_part(const struct emu_coll_fields *fields, const char *work, int id, int grain, struct emu_coll *coll)
{
	const int low = (int)emu_read_bits(work, fields->channel_low);
	const int high = (int)emu_read_bits(work, fields->channel_high);
	const ssize_t first = (ssize_t)emu_read_u64(work, fields->count_low);
	const ssize_t middle = (ssize_t)emu_read_u64(work, fields->count_middle);
	const ssize_t last = (ssize_t)emu_read_u64(work, fields->count_high);
	const ssize_t before_last = high > low ? first + (high - low - 1) * middle : first;
	struct emu_bits grains = fields->grains_middle;

	coll->count = (size_t)(before_last + last);
	coll->schedule = (struct emu_schedule){.kind = EMU_CONTIGUOUS,
					       .offset = first + (id - low - 1) * middle,
					       .count = middle};
	if (id == low) {
		coll->schedule.offset = 0;
		coll->schedule.count = first;
		grains = fields->grains_low;
	} else if (id == high) {
		coll->schedule.offset = before_last;
		coll->schedule.count = last;
		grains = fields->grains_high;
	}
	coll->schedule.chunk = (ssize_t)emu_read_bits(work, grains) * grain;
}

static int read_coll(const struct emu_launch *launch, int id, const struct emu_function *function, const char *work,
		     struct emu_coll *coll, const char **what)
{
	const struct emu_coll_fields *fields = launch->layout->coll;

	if (emu_read_bits(work, fields->registered)) {
		*what = "registered buffers";
		return -1;
	}
	coll->sendbuff = emu_read_pointer(work, fields->sendbuff);
	coll->recvbuff = emu_read_pointer(work, fields->recvbuff);
	coll->root = emu_read_int(work, fields->root);
	coll->arg = emu_function_load(function, emu_read_u64(work, fields->arg),
				      emu_read_bits(work, fields->arg_is_pointer));
	read_part(fields, work, id, grain_bytes(function->proto) / emu_function_element_bytes(function), coll);
	return 0;
}

/* Reads collectives from the first-th on, as long as operation and type stay the same. */
static int read_colls(const struct emu_launch *launch, int id, const struct emu_function *function,
		      const struct works *works, int first, struct emu_batch *batch, const char **what)
{
	for (int i = first; i < works->count; i++) {
		struct emu_coll *coll = &batch->coll[batch->works];
		enum emu_op op;
		enum emu_type type;

		if (read_coll(launch, id, function, works->work[i], coll, what))
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

/* Chunk sizes are floats of eight bits without a sign: three bits of mantissa behind the leading one. */
static int decode_chunk(unsigned code)
{
	const unsigned exponent = code >> 3;

	return (int)(exponent ? (code % 8 + 8) << (exponent - 1) : code);
}

/* channels is a power of two; value is below it. */
static unsigned reverse_bits(unsigned value, unsigned channels)
{
	unsigned reversed = 0;

	for (unsigned bit = 1; bit < channels; bit <<= 1, value >>= 1)
		reversed = reversed << 1 | (value & 1);
	return reversed;
}

static unsigned part_of(const struct emu_p2p_fields *fields, const char *work, int id)
{
	const unsigned channels = (unsigned)emu_read_bits(work, fields->channels);
	const unsigned distance = ((unsigned)id - (unsigned)emu_read_bits(work, fields->channel_base)) & (channels - 1);

	return fields->is_reversed ? reverse_bits(distance, channels) : distance;
}

/* Narrows [*address, *address + *bytes) to one of its parts, which begin at pages; false if there is no such part. A
 * part may be empty. */
static bool take_part(unsigned part, unsigned parts, void **address, size_t *bytes)
{
	const size_t page = 4096, whole = *bytes;
	size_t step, begin, end;

	if (part >= parts) {
		*bytes = 0;
		return false;
	}
	step = ((whole + parts - 1) / parts + page - 1) / page * page;
	begin = part * step < whole ? part * step : whole;
	end = begin + step < whole ? begin + step : whole;
	*address = (char *)*address + begin;
	*bytes = end - begin;
	return true;
}

static int read_p2p(const struct emu_launch *launch, int id, const char *work, struct emu_p2p *p2p, const char **what)
{
	const struct emu_p2p_fields *fields = launch->layout->p2p;
	const unsigned part = part_of(fields, work, id);

	if (emu_read_bits(work, fields->registered)) {
		*what = "registered buffers";
		return -1;
	}
	*p2p = (struct emu_p2p){
		.send_addr = emu_read_pointer(work, fields->send_addr),
		.recv_addr = emu_read_pointer(work, fields->recv_addr),
		.send_bytes = emu_read_u64(work, fields->send_bytes),
		.recv_bytes = emu_read_u64(work, fields->recv_bytes),
		.send_rank = emu_read_int(work, fields->send_rank),
		.recv_rank = emu_read_int(work, fields->recv_rank),
		.send_chunk = decode_chunk((unsigned)emu_read_bits(work, fields->send_chunk)),
		.recv_chunk = decode_chunk((unsigned)emu_read_bits(work, fields->recv_chunk)),
		.send_ll = emu_read_bits(work, fields->send_ll),
		.recv_ll = emu_read_bits(work, fields->recv_ll),
	};
	p2p->has_send = take_part(part, (unsigned)emu_read_bits(work, fields->send_channels), &p2p->send_addr,
				  &p2p->send_bytes);
	p2p->has_recv = take_part(part, (unsigned)emu_read_bits(work, fields->recv_channels), &p2p->recv_addr,
				  &p2p->recv_bytes);
	return 0;
}

/* ---- batches ---- */

static void read_bcast(const struct emu_bcast_fields *fields, const char *work, struct emu_bcast *bcast)
{
	bcast->ring_depth = emu_read_int(work, fields->ring_depth);
	bcast->chunk = emu_read_int(work, fields->chunk);
	bcast->sendbuff = emu_read_pointer(work, fields->sendbuff);
	bcast->recvbuff = emu_read_pointer(work, fields->recvbuff);
	bcast->bytes = emu_read_u64(work, fields->size);
}

/* Reads works from the first-th on; batch->works says how many. */
static int read_works(const struct emu_launch *launch, int id, const struct works *works, int first,
		      struct emu_batch *batch, const char **what)
{
	const struct emu_function *function = emu_function_find(works->function, what);

	if (!function)
		return -1;
	emu_function_describe(function, batch);
	batch->works = 0;
	if (works->type == TYPE_COLL)
		return read_colls(launch, id, function, works, first, batch, what);
	for (; batch->works < works->count; batch->works++) {
		const char *work = works->work[batch->works];

		if (works->type == TYPE_BCAST)
			read_bcast(launch->layout->bcast, work, &batch->bcast[batch->works]);
		else if (read_p2p(launch, id, work, &batch->p2p[batch->works], what))
			return -1;
	}
	return 0;
}

/* Up to 2.26 NCCL reuses its buffer up to where all channels say that they have read it. */
static void tell_consumed(const struct emu_launch *launch, int id, uint32_t consumed)
{
	uint32_t *counters = emu_read_pointer(launch->comm, launch->layout->comm->work_consumed);

	if (counters && storage(launch) == STORAGE_FIFO)
		__atomic_store_n(&counters[id], consumed, __ATOMIC_RELEASE);
}

/* cursor->at: place of the batch, and above 32 bits how many of its works have been given out. */
int emu_work_batch_next(const struct emu_launch *launch, int index, struct emu_cursor *cursor, struct emu_batch *batch,
			const char **what)
{
	const int id = launch->channel_ids[index];
	struct works works;
	int first;

	if (!cursor->started)
		*cursor = (struct emu_cursor){.started = true, .at = index};
	first = (int)(cursor->at >> 32);
	if (first == 0 && cursor->playing) {
		emu_counters_stop(launch, id, cursor->playing);
		cursor->playing = 0;
	}
	if (cursor->done)
		return 0;
	if (collect(launch, cursor->at & UINT32_MAX, &works, what) ||
	    read_works(launch, id, &works, first, batch, what))
		return -1;
	if (first == 0)
		emu_counters_start(launch, id, works.count);
	cursor->playing = works.count;
	if (first + batch->works < works.count) {
		cursor->at += (int64_t)batch->works << 32;
		return 1;
	}
	tell_consumed(launch, id, works.consumed);
	cursor->done = works.next < 0;
	cursor->at = cursor->done ? 0 : works.next;
	return 1;
}
