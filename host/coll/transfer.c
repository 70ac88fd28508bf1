/* SPDX-License-Identifier: MIT
 *
 * One buffer each way, in chunks. The group's own thread.
 */
#include "coll/transfer.h"

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

static struct bnet_coll_piece transfer_send(const struct bnet_coll_pipe *pipe, size_t i)
{
	const struct bnet_coll_transfer *transfer = pipe->op;
	const size_t at = i * transfer->chunk, bytes = bnet_coll_min(transfer->chunk, transfer->send_bytes - at);
	char *staged;

	if (transfer->stage == NULL)
		return (struct bnet_coll_piece){(char *)(uintptr_t)transfer->send + at, bytes};
	staged = transfer->stage + (i % BNET_COLL_DEPTH) * slot_bytes(transfer->chunk, transfer->send_bytes);
	memcpy(staged, transfer->send + at, bytes);
	return (struct bnet_coll_piece){staged, bytes};
}

static struct bnet_coll_piece transfer_recv(const struct bnet_coll_pipe *pipe, size_t i)
{
	const struct bnet_coll_transfer *transfer = pipe->op;
	const size_t at = i * transfer->chunk;

	return (struct bnet_coll_piece){transfer->recv + at, bnet_coll_min(transfer->chunk, transfer->recv_bytes - at)};
}

/* A chunk may be received over one to be sent only after the latter was staged. */
static bool transfer_staged(const struct bnet_coll_pipe *pipe, size_t i)
{
	return i >= pipe->send.count || pipe->send.posted > i;
}

void bnet_coll_transfer_init(const struct bnet_coll *coll, struct bnet_coll_transfer *transfer, const void *send,
			     size_t send_bytes, int send_peer, void *recv, size_t recv_bytes, int recv_peer,
			     char *stage)
{
	*transfer = (struct bnet_coll_transfer){.chunk = coll->chunk,
						.send = send,
						.send_bytes = send_bytes,
						.recv = recv,
						.recv_bytes = recv_bytes,
						.stage = stage};
	transfer->pipe.op = transfer;
	transfer->pipe.send.peer = send_peer;
	transfer->pipe.send.count = send_peer < 0 ? 0 : bnet_coll_chunks(send_bytes, transfer->chunk);
	transfer->pipe.send.piece = transfer_send;
	transfer->pipe.recv.peer = recv_peer;
	transfer->pipe.recv.count = recv_peer < 0 ? 0 : bnet_coll_chunks(recv_bytes, transfer->chunk);
	transfer->pipe.recv.piece = transfer_recv;
	transfer->pipe.recv.may_post = stage != NULL ? transfer_staged : NULL;
}

int bnet_coll_exchange(struct bnet_coll *coll, const void *send, size_t send_bytes, int send_peer, void *recv,
		       size_t recv_bytes, int recv_peer)
{
	struct bnet_coll_transfer transfer;

	bnet_coll_transfer_init(coll, &transfer, send, send_bytes, send_peer, recv, recv_bytes, recv_peer, NULL);
	return bnet_coll_pipes_run(coll, (struct bnet_coll_pipe *const[]){&transfer.pipe}, 1);
}
