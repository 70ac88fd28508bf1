/* SPDX-License-Identifier: MIT
 *
 * The network behind the tables of shim.c, independent of their version: listen, connect, accept, register, send,
 * receive, test, close. Nothing here blocks, except that close and dereg wait for another thread's pass to end.
 * Functions return 0, or -errno after they have logged the reason. Any thread, by the rules of
 * conn.h for each connection.
 */
#ifndef BNET_NET_H
#define BNET_NET_H

#include "api/intent.h"
#include "handshake/acceptor.h"
#include "common/abi.h"
#include "transport/conn.h"
#include "transport/region.h"

/* One for each communicator from v11 on, one for the process before v11. */
struct bnet_context {
	int version;                     /* of the table that created it */
	uint64_t id;                     /* NCCL's commId; 0: tables before v11 are not told */
	int traffic_class;               /* as requested by NCCL */
	ncclProfilerCallback_t profiler; /* NCCL's; NULL: before v11 there is none (profile.h) */
	struct bnet_intent intent;
};

int bnet_net_init(int version, ncclDebugLogger_t logger);
struct bnet_context *bnet_context_new(int version, uint64_t id, int traffic_class, ncclProfilerCallback_t profiler);
/* Also ends what this communicator started and abandoned: listen objects, unfinished connects, and connections that
 * were never accepted. */
void bnet_context_free(struct bnet_context *context);

int bnet_net_devices(void);
/* NULL: no such device. */
const struct bnet_device *bnet_net_device(int dev);
/* Merges devices, given by their numbers, into a new one. *out: its number; bnet_net_devices then includes it. */
int bnet_net_merge(const int *parts, int nparts, bool pci_only, int *out);

/* handle: BNET_WIRE_HANDLE_SIZE bytes. */
int bnet_net_listen(const struct bnet_context *context, int dev, void *handle, struct bnet_listen **out);
/* traffic_class: as requested by NCCL. *out NULL: not connected yet; call again with the same handle. */
int bnet_net_connect(const struct bnet_context *context, int traffic_class, int dev, void *handle,
		     struct bnet_conn **out);
int bnet_net_accept(struct bnet_listen *listen, struct bnet_conn **out);

int bnet_net_reg(struct bnet_conn *conn, void *data, uint64_t size, int type, struct bnet_mr **out);
void bnet_net_dereg(struct bnet_mr *mr);
/* step: NCCL's, of which this message is a part, for a profiler; or NULL. *out NULL: no request is free; call again
 * later. */
int bnet_net_isend(struct bnet_conn *conn, void *data, uint64_t size, void *step, struct bnet_request **out);
int bnet_net_irecv(struct bnet_conn *conn, void *data, uint64_t size, void *step, struct bnet_request **out);
int bnet_net_test(struct bnet_request *request, int *done, uint64_t *size);
void bnet_net_close(struct bnet_conn *conn);
void bnet_net_close_listen(struct bnet_listen *listen);

#endif
