/* SPDX-License-Identifier: MIT
 *
 * The network that the nccl_shim.c tables show to NCCL, in one version: listen, connect, accept, register, send,
 * receive, test, close. Nothing here blocks, except that close and dereg wait for a pass of another thread to end.
 * Functions return 0 or -errno; the reason is in the log by then.
 */
#ifndef BNET_NET_H
#define BNET_NET_H

#include "handshake/acceptor.h"
#include "nccl/abi.h"
#include "transport/conn.h"
#include "transport/region.h"

/* One per communicator from v11 on, one for the process before. */
struct bnet_context {
	int version; /* of the table that it came in by */
	int traffic_class; /* as NCCL asks for it */
};

int bnet_net_init(int version, ncclDebugLogger_t logger);
struct bnet_context *bnet_context_new(int version, int traffic_class);
/* Also ends whatever this communicator began and dropped: half-open connects, connections nobody accepted. */
void bnet_context_free(struct bnet_context *context);

int bnet_net_devices(void);
/* NULL: no such device. */
const struct bnet_device *bnet_net_device(int dev);
/* Makes one device of several, by their numbers; *out: its number, which bnet_net_devices counts from now on. */
int bnet_net_merge(const int *parts, int nparts, int *out);

/* handle: BNET_WIRE_HANDLE_SIZE bytes. */
int bnet_net_listen(const struct bnet_context *context, int dev, void *handle, struct bnet_listen **out);
/* traffic_class: as NCCL asks for it. *out NULL: not yet, call again with the same handle. */
int bnet_net_connect(const struct bnet_context *context, int traffic_class, int dev, void *handle,
		     struct bnet_conn **out);
int bnet_net_accept(struct bnet_listen *listen, struct bnet_conn **out);

int bnet_net_reg(struct bnet_conn *conn, void *data, uint64_t size, int type, struct bnet_mr **out);
void bnet_net_dereg(struct bnet_mr *mr);
/* *out NULL: no room, ask again later. */
int bnet_net_isend(struct bnet_conn *conn, void *data, uint64_t size, struct bnet_request **out);
int bnet_net_irecv(struct bnet_conn *conn, void *data, uint64_t size, struct bnet_request **out);
int bnet_net_test(struct bnet_request *request, int *done, uint64_t *size);
void bnet_net_close(struct bnet_conn *conn);
void bnet_net_close_listen(struct bnet_listen *listen);

#endif
