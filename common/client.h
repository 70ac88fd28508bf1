/* SPDX-License-Identifier: MIT
 *
 * The caller's side of NCCL's network interface: one way to drive an ncclNet table of any version from v4 to v12, ours
 * or another network's. The collectives, the test drivers and the benchmarks use it. All state is in the struct; calls
 * are as thread-safe as the table is.
 */
#ifndef BNET_CLIENT_H
#define BNET_CLIENT_H

#include "common/abi.h"

struct bnet_client {
	const void *raw; /* the table: ncclNet_v<version>_t */
	int version;
	void *ctx;                  /* v11 and later: what init returned */
	ncclNetCommConfig_t config; /* the communicator's: an argument of connect in v10, of init in v11 and later */
};

/* Calls the table's init. ncclInvalidArgument: raw is NULL, or version is not 4 to 12. */
ncclResult_t bnet_client_init(struct bnet_client *client, const void *raw, int version, ncclDebugLogger_t logger);
/* The same for a communicator with a traffic class, which tables before v10 are not told. */
ncclResult_t bnet_client_init_class(struct bnet_client *client, const void *raw, int version, ncclDebugLogger_t logger,
				    int traffic_class);
/* Calls the table's finalize, which exists in v11 and later. */
ncclResult_t bnet_client_finalize(struct bnet_client *client);
const char *bnet_client_name(const struct bnet_client *client);
/* 64 for v4, 128 for later ones. */
size_t bnet_client_handle_size(const struct bnet_client *client);
ncclResult_t bnet_client_devices(const struct bnet_client *client, int *ndev);
/* Fields that the version does not have are zero. */
ncclResult_t bnet_client_properties(const struct bnet_client *client, int dev, ncclNetProperties_v12_t *props);
/* Merges the first ndevs devices of devs into one; *dev: its number. ncclInvalidUsage: the version (before v9) or the
 * table has no such function. Versions up to v11 have room for four devices. */
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
