/* SPDX-License-Identifier: MIT
 *
 * Finds the layout of a release, and reads what all releases have: the device communicator, its channels, rings, trees
 * and connections. To add a generation, write its file (nccl_2_30.c is one), declare it in generation.h and enter it in
 * the table here. Thread: a launch is its player's; the rest any.
 */
#include "layout/decode.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

static const struct emu_layout *const generations[] = {
	&emu_nccl_2_18, &emu_nccl_2_19, &emu_nccl_2_20, &emu_nccl_2_21, &emu_nccl_2_22,
	&emu_nccl_2_23, &emu_nccl_2_24, &emu_nccl_2_25, &emu_nccl_2_26, &emu_nccl_2_27,
	&emu_nccl_2_28, &emu_nccl_2_29, &emu_nccl_2_30, &emu_nccl_2_31, &emu_nccl_2_32,
};

enum { GENERATIONS = sizeof(generations) / sizeof(generations[0]) };

static char versions[32 * GENERATIONS];

const struct emu_layout *emu_layout_find(int version)
{
	for (int i = 0; i < GENERATIONS; i++)
		if (version >= generations[i]->first && version <= generations[i]->last)
			return generations[i];
	return NULL;
}

static void list_versions(void)
{
	size_t used = 0;

	for (int i = 0; i < GENERATIONS; i++) {
		const int first = generations[i]->first, last = generations[i]->last;
		const int minor = first / 100 % 100;

		used += (size_t)snprintf(versions + used, sizeof(versions) - used, "%s2.%d.%d", i ? ", " : "", minor,
					 first % 100);
		if (last != first)
			used += (size_t)snprintf(versions + used, sizeof(versions) - used, "–2.%d.%d", minor,
						 last % 100);
	}
}

const char *emu_layout_versions(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, list_versions);
	return versions;
}

/* The device communicator, the channels of this launch and what all channels share. */
static void read_comm(struct emu_launch *launch, uint64_t mask)
{
	const struct emu_comm_fields *fields = launch->layout->comm;

	launch->rank = emu_read_int(launch->comm, fields->rank);
	launch->ranks = emu_read_int(launch->comm, fields->ranks);
	for (int i = 0; i < EMU_PROTOCOLS; i++)
		launch->buffer_bytes[i] = emu_read_int(launch->comm, fields->buffer_bytes + i * (int)sizeof(int));
	if (fields->p2p_chunk != EMU_ABSENT)
		launch->p2p_chunk_bytes = emu_read_int(launch->comm, fields->p2p_chunk);
	launch->abort_flag = emu_read_pointer(launch->comm, fields->abort_flag);
	for (int id = 0; id < 64; id++)
		if (mask >> id & 1)
			launch->channel_ids[launch->channels++] = id;
}

/* Three arguments of eight bytes become the buffer that emu_args_2_18 describes. */
static void copy_arguments(struct emu_launch *launch, void **pointers, const void *buffer)
{
	if (buffer) {
		memcpy(launch->args, buffer, launch->args_bytes);
		return;
	}
	for (size_t at = 0; at < launch->args_bytes; at += sizeof(uint64_t))
		memcpy(launch->args + at, pointers[at / sizeof(uint64_t)], sizeof(uint64_t));
}

int emu_launch_open(struct emu_launch *launch, const struct emu_layout *layout, void **pointers, const void *buffer,
		    size_t bytes)
{
	const struct emu_args_fields *fields = layout->args;

	*launch = (struct emu_launch){.layout = layout};
	if (!buffer) {
		if (layout->era != EMU_WORK_FIFO)
			return -1;
		bytes = (size_t)fields->bytes;
	}
	if (bytes < (size_t)fields->bytes)
		return -1;
	launch->args_bytes = bytes;
	launch->args = malloc(bytes);
	if (!launch->args)
		return -1;
	copy_arguments(launch, pointers, buffer);
	launch->comm = emu_read_pointer(launch->args, fields->comm);
	read_comm(launch, emu_read_u64(launch->args, fields->channel_mask));
	return 0;
}

void emu_launch_close(struct emu_launch *launch)
{
	free(launch->args);
	launch->args = NULL;
}

char *emu_launch_channel_at(const struct emu_launch *launch, int id)
{
	char *channels = emu_read_pointer(launch->comm, launch->layout->comm->channels);

	return channels + (size_t)id * (size_t)launch->layout->channel->bytes;
}

void emu_launch_channel(const struct emu_launch *launch, int id, struct emu_channel *channel)
{
	const struct emu_channel_fields *fields = launch->layout->channel;
	const char *base = emu_launch_channel_at(launch, id);

	channel->id = id;
	channel->ring_prev = emu_read_int(base, fields->ring_prev);
	channel->ring_next = emu_read_int(base, fields->ring_next);
	channel->ring_index = emu_read_int(base, fields->ring_index);
	channel->ring_ranks = emu_read_pointer(base, fields->ring_ranks);
	channel->tree_up = emu_read_int(base, fields->tree_up);
	for (int i = 0; i < EMU_TREE_ARITY; i++)
		channel->tree_down[i] = emu_read_int(base, fields->tree_down + i * (int)sizeof(int));
}

/* 2.18 and 2.19: two arrays. */
static void read_arrays(const struct emu_conn_fields *fields, const char *base, struct emu_conn *conn)
{
	conn->fifo_stride = sizeof(int);
	conn->fifo_size_bytes = conn->fifo_offset_bytes = sizeof(int);
	conn->fifo_size = emu_read_pointer(base, fields->sizes);
	conn->fifo_offset = emu_read_pointer(base, fields->offsets);
}

static void read_slots(const struct emu_slot_fields *fields, char *slots, struct emu_conn *conn)
{
	conn->fifo_stride = (size_t)fields->bytes;
	conn->fifo_size_bytes = fields->size_bytes;
	conn->fifo_offset_bytes = fields->offset_bytes;
	conn->fifo_size = slots + fields->size;
	conn->fifo_offset = slots + fields->offset;
	conn->fifo_mode = slots + fields->mode;
}

/* Before 2.21 the distance of slots followed from the use; connections of index 1 are those of send and receive. */
static int step_bytes(const struct emu_launch *launch, const char *base, int index)
{
	const struct emu_conn_fields *fields = launch->layout->conn;

	if (fields->step_bytes != EMU_ABSENT)
		return emu_read_int(base, fields->step_bytes);
	if (index == 1 && launch->p2p_chunk_bytes)
		return launch->p2p_chunk_bytes;
	return launch->buffer_bytes[EMU_SIMPLE] / EMU_STEPS;
}

void emu_launch_conn(const struct emu_launch *launch, int channel, int peer, bool send, int index,
		     struct emu_conn *conn)
{
	const struct emu_conn_fields *fields = launch->layout->conn;
	char **peers = emu_read_pointer(emu_launch_channel_at(launch, channel), launch->layout->channel->peers);
	char *base = peers[peer] + (send ? fields->send : fields->recv) + index * fields->bytes;
	char *slots = emu_read_pointer(base, fields->slots);

	*conn = (struct emu_conn){0};
	for (int i = 0; i < EMU_PROTOCOLS; i++)
		conn->buffs[i] = emu_read_pointer(base, fields->buffs + i * (int)sizeof(char *));
	conn->tail = emu_read_pointer(base, fields->tail);
	conn->head = emu_read_pointer(base, fields->head);
	conn->step = (uint64_t *)(void *)(base + fields->step);
	conn->step_bytes = step_bytes(launch, base, index);
	if (slots)
		read_slots(launch->layout->slot, slots, conn);
	else if (fields->slots == EMU_ABSENT)
		read_arrays(fields, base, conn);
}

int emu_launch_next(const struct emu_launch *launch, int index, struct emu_cursor *cursor, struct emu_batch *batch,
		    const char **what)
{
	if (launch->layout->era == EMU_WORK_FIFO)
		return emu_work_fifo_next(launch, index, cursor, batch, what);
	return emu_work_batch_next(launch, index, cursor, batch, what);
}
