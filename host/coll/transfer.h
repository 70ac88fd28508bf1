/* SPDX-License-Identifier: MIT
 *
 * A pipe that moves one buffer each way, in chunks. The group's own thread.
 */
#ifndef BNET_COLL_TRANSFER_H
#define BNET_COLL_TRANSFER_H

#include "coll/pipe.h"

struct bnet_coll_transfer {
	struct bnet_coll_pipe pipe;
	size_t chunk;
	const char *send;
	size_t send_bytes;
	char *recv;
	size_t recv_bytes;
	char *stage; /* NULL, or to be sent from because both buffers are the same memory */
};

void bnet_coll_transfer_init(const struct bnet_coll *coll, struct bnet_coll_transfer *transfer, const void *send,
			     size_t send_bytes, int send_peer, void *recv, size_t recv_bytes, int recv_peer,
			     char *stage);
/* Bytes of the stage for so many bytes to be sent. */
size_t bnet_coll_stage_bytes(const struct bnet_coll *coll, size_t send_bytes);
/* One transfer, run. */
int bnet_coll_exchange(struct bnet_coll *coll, const void *send, size_t send_bytes, int send_peer, void *recv,
		       size_t recv_bytes, int recv_peer);

#endif
