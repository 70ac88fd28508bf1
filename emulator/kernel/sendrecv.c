/* SPDX-License-Identifier: MIT
 *
 * Send and receive: the transfers of a batch run side by side, each in a fiber. Called within a channel's fiber.
 */
#include <string.h>

#include "kernel/kernel.h"
#include "kernel/prims.h"

/* One direction of a work. */
struct transfer {
	struct emu_lane *lane;
	char *buffer;
	size_t bytes;
	int peer, chunk;
	bool send, ll;
};

/* An empty transfer has one step as well. */
static void play_transfer(void *arg)
{
	const struct transfer *transfer = arg;
	const struct emu_kind kind = {
		.proto = transfer->ll ? EMU_LL : EMU_SIMPLE,
		.type = EMU_INT8,
		.slices = 1,
		.slice_steps = 1,
		.step_bytes = transfer->lane->play->launch->p2p_chunk_bytes,
		.connection = 1,
	};
	const struct emu_peers to = {NULL, &transfer->peer, 0, 1}, from = {&transfer->peer, NULL, 1, 0};
	struct emu_prims prims;
	size_t at = 0;

	emu_prims_open(&prims, transfer->lane, &kind, transfer->send ? &to : &from);
	do {
		const size_t left = transfer->bytes - at;
		const size_t count = left < (size_t)transfer->chunk ? left : (size_t)transfer->chunk;
		char *place = transfer->buffer + at;

		emu_prims_move(&prims, &(struct emu_move){
					       .count = (ssize_t)count,
					       .receive = !transfer->send,
					       .send = transfer->send,
					       .source = transfer->send ? place : NULL,
					       .destination = transfer->send ? NULL : place,
				       });
		at += count;
	} while (at < transfer->bytes);
	emu_prims_close(&prims);
}

static void copy_own(const struct emu_p2p *work)
{
	if (work->send_bytes > 0 && work->send_addr != work->recv_addr)
		memmove(work->recv_addr, work->send_addr, work->send_bytes);
}

/* Adds the transfers of a work. Returns how many. */
static int list_transfers(struct emu_lane *lane, const struct emu_p2p *work, struct transfer *transfers)
{
	const int own = lane->play->launch->rank;
	int count = 0;

	if (work->has_send && work->send_rank == own) {
		copy_own(work);
		return 0;
	}
	if (work->has_recv && work->recv_rank != own)
		transfers[count++] =
			(struct transfer){lane,  work->recv_addr, work->recv_bytes, work->recv_rank, work->recv_chunk,
					  false, work->recv_ll};
	if (work->has_send)
		transfers[count++] =
			(struct transfer){lane, work->send_addr, work->send_bytes, work->send_rank, work->send_chunk,
					  true, work->send_ll};
	return count;
}

void emu_play_p2p(struct emu_lane *lane, const struct emu_batch *batch)
{
	struct transfer transfers[2 * EMU_BATCH_WORKS];
	struct emu_fiber_group group = {0};
	int count = 0;

	for (int i = 0; i < batch->works; i++)
		count += list_transfers(lane, &batch->p2p[i], transfers + count);
	for (int i = 0; i < count; i++) {
		if (!emu_fiber_start(lane->play->fibers, &group, play_transfer, &transfers[i])) {
			emu_play_fail(lane->play, "no memory for a fiber");
			break;
		}
	}
	emu_fiber_join(lane->play->fibers, &group);
}
