/* SPDX-License-Identifier: MIT
 *
 * The caller's side of NCCL's network interface: one way to drive an ncclNet table of any version from v4 to v12, ours
 * or another network's. The collectives, the test drivers and the benchmarks stand on it. It keeps no state besides
 * the struct, and is as thread-safe as the table behind it.
 */
#ifndef BNET_CLIENT_H
#define BNET_CLIENT_H

#include "nccl/abi.h"

struct bnet_client {
	const void *raw; /* ncclNet_v<version>_t */
	int version;
	void *ctx;       /* v11 and later: what init returned */
	ncclNetCommConfig_t config; /* what the communicator asks for: v10 gives it to connect, v11 and later to init */
};

/* The number that follows "v" must be 4 to 12: ncclInvalidArgument otherwise. Calls the table's init. */
ncclResult_t bnet_client_init(struct bnet_client *client, const void *raw, int version, ncclDebugLogger_t logger);
/* The same for a communicator that asks for a traffic class. Before v10 nobody hears of it. */
ncclResult_t bnet_client_init_class(struct bnet_client *client, const void *raw, int version, ncclDebugLogger_t logger,
				    int traffic_class);
/* v11 and later; nothing to do before. */
ncclResult_t bnet_client_finalize(struct bnet_client *client);
const char *bnet_client_name(const struct bnet_client *client);
/* 64 for v4, 128 for later ones. */
size_t bnet_client_handle_size(const struct bnet_client *client);
ncclResult_t bnet_client_devices(const struct bnet_client *client, int *ndev);
/* Fields that the version lacks are zero. */
ncclResult_t bnet_client_properties(const struct bnet_client *client, int dev, ncclNetProperties_v12_t *props);
/* Makes one device of several, the first ndevs of devs; *dev: its number. ncclInvalidUsage: the version has no such
 * function (before v9), or the table leaves it out. Up to v11 no more than four have room. */
ncclResult_t bnet_client_make_v_device(const struct bnet_client *client, const int *devs, int ndevs, int *dev);
ncclResult_t bnet_client_listen(const struct bnet_client *client, int dev, void *handle, void **listen_comm);
ncclResult_t bnet_client_connect(const struct bnet_client *client, int dev, void *handle, void **send_comm);
ncclResult_t bnet_client_accept(const struct bnet_client *client, void *listen_comm, void **recv_comm);
ncclResult_t bnet_client_reg(const struct bnet_client *client, void *comm, void *data, size_t size, int type,
			     void **mhandle);
ncclResult_t bnet_client_dereg(const struct bnet_client *client, void *comm, void *mhandle);
ncclResult_t bnet_client_isend(const struct bnet_client *client, void *comm, void *data, size_t size, int tag,
			       void *mhandle, void **request);
ncclResult_t bnet_client_irecv(const struct bnet_client *client, void *comm, void *data, size_t size, int tag,
			       void *mhandle, void **request);
/* size may be NULL. */
ncclResult_t bnet_client_test(const struct bnet_client *client, void *request, int *done, int *size);
ncclResult_t bnet_client_close_send(const struct bnet_client *client, void *comm);
ncclResult_t bnet_client_close_recv(const struct bnet_client *client, void *comm);
ncclResult_t bnet_client_close_listen(const struct bnet_client *client, void *comm);

#endif
