/* SPDX-License-Identifier: MIT
 *
 * A pipe that moves one buffer each way, in chunks. The group's own thread.
 */
#ifndef BNET_COLL_FLAT_H
#define BNET_COLL_FLAT_H

#include "coll/pipe.h"

struct bnet_coll_flat {
	struct bnet_coll_pipe pipe;
	const char *send;
	size_t send_bytes;
	char *recv;
	size_t recv_bytes;
	char *stage; /* NULL, or BNET_COLL_DEPTH chunks to send from because both buffers are the same memory */
};

void bnet_coll_flat_init(struct bnet_coll_flat *flat, const void *send, size_t send_bytes, int send_peer, void *recv,
			 size_t recv_bytes, int recv_peer, char *stage);
/* One flat pipe, run. */
int bnet_coll_exchange(struct bnet_coll *coll, const void *send, size_t send_bytes, int send_peer, void *recv,
		       size_t recv_bytes, int recv_peer);

#endif
