/* SPDX-License-Identifier: MIT
 *
 * One buffer each way, in chunks. The group's own thread.
 */
#include "coll/flat.h"

#include <stdint.h>
#include <string.h>

#include "coll/size.h"

static size_t slot_bytes(size_t chunk, size_t send_bytes)
{
	return bnet_coll_min(chunk, bnet_coll_round_up(send_bytes, BNET_COLL_LINE));
}

size_t bnet_coll_stage_bytes(const struct bnet_coll *coll, size_t send_bytes)
{
	return BNET_COLL_DEPTH * slot_bytes(coll->chunk, send_bytes);
}

static struct bnet_coll_piece flat_send(const struct bnet_coll_pipe *pipe, size_t i)
{
	const struct bnet_coll_flat *flat = pipe->op;
	const size_t at = i * flat->chunk, bytes = bnet_coll_min(flat->chunk, flat->send_bytes - at);
	char *staged;

	if (flat->stage == NULL)
		return (struct bnet_coll_piece){(char *)(uintptr_t)flat->send + at, bytes};
	staged = flat->stage + (i % BNET_COLL_DEPTH) * slot_bytes(flat->chunk, flat->send_bytes);
	memcpy(staged, flat->send + at, bytes);
	return (struct bnet_coll_piece){staged, bytes};
}

static struct bnet_coll_piece flat_recv(const struct bnet_coll_pipe *pipe, size_t i)
{
	const struct bnet_coll_flat *flat = pipe->op;
	const size_t at = i * flat->chunk;

	return (struct bnet_coll_piece){flat->recv + at, bnet_coll_min(flat->chunk, flat->recv_bytes - at)};
}

/* A chunk may be received over one to be sent only after the latter was staged. */
static bool flat_staged(const struct bnet_coll_pipe *pipe, size_t i)
{
	return i >= pipe->send.count || pipe->send.posted > i;
}

void bnet_coll_flat_init(const struct bnet_coll *coll, struct bnet_coll_flat *flat, const void *send, size_t send_bytes,
			 int send_peer, void *recv, size_t recv_bytes, int recv_peer, char *stage)
{
	*flat = (struct bnet_coll_flat){.chunk = coll->chunk,
					.send = send,
					.send_bytes = send_bytes,
					.recv = recv,
					.recv_bytes = recv_bytes,
					.stage = stage};
	flat->pipe.op = flat;
	flat->pipe.send.peer = send_peer;
	flat->pipe.send.count = send_peer < 0 ? 0 : bnet_coll_chunks(send_bytes, flat->chunk);
	flat->pipe.send.piece = flat_send;
	flat->pipe.recv.peer = recv_peer;
	flat->pipe.recv.count = recv_peer < 0 ? 0 : bnet_coll_chunks(recv_bytes, flat->chunk);
	flat->pipe.recv.piece = flat_recv;
	flat->pipe.recv.may_post = stage != NULL ? flat_staged : NULL;
}

int bnet_coll_exchange(struct bnet_coll *coll, const void *send, size_t send_bytes, int send_peer, void *recv,
		       size_t recv_bytes, int recv_peer)
{
	struct bnet_coll_flat flat;

	bnet_coll_flat_init(coll, &flat, send, send_bytes, send_peer, recv, recv_bytes, recv_peer, NULL);
	return bnet_coll_pipes_run(coll, (struct bnet_coll_pipe *const[]){&flat.pipe}, 1);
}
