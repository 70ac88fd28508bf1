/* SPDX-License-Identifier: MIT
 *
 * Send and receive, over the network. All functions here but one are public. The group's own thread.
 */
#include <errno.h>
#include <stdint.h>
#include <string.h>

#include "coll/transfer.h"
#include "coll/size.h"

static struct bnet_coll_region region(const void *base, size_t bytes)
{
	return (struct bnet_coll_region){(char *)(uintptr_t)base, bytes};
}

static int sendrecv(struct bnet_coll *coll, const char *send, size_t send_bytes, int send_peer, char *recv,
		    size_t recv_bytes, int recv_peer)
{
	struct bnet_coll_transfer transfer;
	char *stage = NULL;

	if (send_peer >= 0 && recv_peer >= 0 && send == recv) {
		stage = bnet_coll_scratch(coll, bnet_coll_stage_bytes(coll, send_bytes));
		if (stage == NULL)
			return -ENOMEM;
	}
	bnet_coll_transfer_init(coll, &transfer, send, send_bytes, send_peer, recv, recv_bytes, recv_peer, stage);
	return bnet_coll_pipes_run(coll, (struct bnet_coll_pipe *const[]){&transfer.pipe}, 1);
}

static int check_sendrecv(struct bnet_coll *coll, size_t send_count, int send_peer, size_t recv_count, int recv_peer,
			  int dtype)
{
	int rc = bnet_coll_check_count(coll, bnet_coll_max(send_count, recv_count), dtype);

	if (rc != 0)
		return rc;
	if (send_peer == coll->rank && recv_peer == coll->rank) {
		if (send_count != recv_count)
			rc = bnet_coll_fail(coll, -EINVAL,
					    "sendrecv: rank %d sends %zu elements to itself and expects %zu",
					    coll->rank, send_count, recv_count);
		return rc;
	}
	if (send_peer != -1)
		rc = bnet_coll_check_peer(coll, send_peer);
	if (rc == 0 && recv_peer != -1)
		rc = bnet_coll_check_peer(coll, recv_peer);
	return rc;
}

int bnet_coll_sendrecv(bnet_coll_t *coll, const void *send, size_t send_count, int send_peer, void *recv,
		       size_t recv_count, int recv_peer, int dtype)
{
	size_t send_bytes = send_peer == -1 ? 0 : send_count * bnet_coll_dtype_size(dtype);
	size_t recv_bytes = recv_peer == -1 ? 0 : recv_count * bnet_coll_dtype_size(dtype);
	int rc = check_sendrecv(coll, send_peer == -1 ? 0 : send_count, send_peer, recv_peer == -1 ? 0 : recv_count,
				recv_peer, dtype);

	if (rc == 0)
		rc = bnet_coll_begin(coll, bnet_coll_copy(BNET_COLL_SENDRECV, 0, BNET_COLL_ANY),
				     region(send, send_bytes), region(recv, recv_bytes));
	if (rc != 0)
		return rc;
	if (send_peer == coll->rank) {
		if (send_bytes > 0)
			memmove(recv, send, send_bytes);
	} else {
		rc = sendrecv(coll, send, send_bytes, send_peer, recv, recv_bytes, recv_peer);
	}
	return bnet_coll_end(coll, rc);
}

int bnet_coll_send(bnet_coll_t *coll, const void *buf, size_t count, int dtype, int peer)
{
	size_t bytes = count * bnet_coll_dtype_size(dtype);
	int rc = bnet_coll_check_count(coll, count, dtype);

	if (rc == 0)
		rc = bnet_coll_check_peer(coll, peer);
	if (rc == 0)
		rc = bnet_coll_begin(coll, bnet_coll_copy(BNET_COLL_SEND, 0, BNET_COLL_ANY), region(buf, bytes),
				     region(NULL, 0));
	return rc != 0 ? rc : bnet_coll_end(coll, sendrecv(coll, buf, bytes, peer, NULL, 0, -1));
}

int bnet_coll_recv(bnet_coll_t *coll, void *buf, size_t count, int dtype, int peer)
{
	size_t bytes = count * bnet_coll_dtype_size(dtype);
	int rc = bnet_coll_check_count(coll, count, dtype);

	if (rc == 0)
		rc = bnet_coll_check_peer(coll, peer);
	if (rc == 0)
		rc = bnet_coll_begin(coll, bnet_coll_copy(BNET_COLL_RECV, 0, BNET_COLL_ANY), region(NULL, 0),
				     region(buf, bytes));
	return rc != 0 ? rc : bnet_coll_end(coll, sendrecv(coll, NULL, 0, -1, buf, bytes, peer));
}
