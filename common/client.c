/* SPDX-License-Identifier: MIT
 *
 * The caller's side of NCCL's network interface, v4 to v12. Each function here knows how the versions of one function
 * of the table differ. As thread-safe as the table is.
 */
#include "common/client.h"

#include <limits.h>
#include <string.h>

#define NET(client, v) ((const ncclNet_v##v##_t *)(client)->raw)

/* A function whose signature is the same in every version; only its offset in the table changed. */
#define CALL_FROM_V4(client, function, ...)                               \
	((client)->version == 4   ? NET(client, 4)->function(__VA_ARGS__) \
	 : (client)->version == 5 ? NET(client, 5)->function(__VA_ARGS__) \
	 : (client)->version == 6 ? NET(client, 6)->function(__VA_ARGS__) \
	 : (client)->version == 7 ? NET(client, 7)->function(__VA_ARGS__) \
				  : CALL_FROM_V8(client, function, __VA_ARGS__))
#define CALL_FROM_V8(client, function, ...)                                 \
	((client)->version == 8    ? NET(client, 8)->function(__VA_ARGS__)  \
	 : (client)->version == 9  ? NET(client, 9)->function(__VA_ARGS__)  \
	 : (client)->version == 10 ? NET(client, 10)->function(__VA_ARGS__) \
	 : (client)->version == 11 ? NET(client, 11)->function(__VA_ARGS__) \
				   : NET(client, 12)->function(__VA_ARGS__))

ncclResult_t bnet_client_init_class(struct bnet_client *client, const void *raw, int version, ncclDebugLogger_t logger,
				    int traffic_class)
{
	uint64_t comm_id = (uintptr_t)client; /* unique among the live communicators of this process */

	*client = (struct bnet_client){.raw = raw, .version = version, .config.trafficClass = traffic_class};
	if (raw == NULL)
		return ncclInvalidArgument;
	switch (version) {
	case 4:
		return NET(client, 4)->init(logger);
	case 5:
		return NET(client, 5)->init(logger);
	case 6:
		return NET(client, 6)->init(logger);
	case 7:
		return NET(client, 7)->init(logger);
	case 8:
		return NET(client, 8)->init(logger);
	case 9:
		return NET(client, 9)->init(logger);
	case 10:
		return NET(client, 10)->init(logger, NULL);
	case 11:
		return NET(client, 11)->init(&client->ctx, comm_id, &client->config, logger, NULL);
	case 12:
		return NET(client, 12)->init(&client->ctx, comm_id, &client->config, logger, NULL);
	default:
		return ncclInvalidArgument;
	}
}

ncclResult_t bnet_client_init(struct bnet_client *client, const void *raw, int version, ncclDebugLogger_t logger)
{
	return bnet_client_init_class(client, raw, version, logger, NCCL_NET_TRAFFIC_CLASS_UNDEF);
}

ncclResult_t bnet_client_finalize(struct bnet_client *client)
{
	void *ctx = client->ctx;

	client->ctx = NULL;
	if (client->version == 11 && NET(client, 11)->finalize != NULL)
		return NET(client, 11)->finalize(ctx);
	if (client->version == 12 && NET(client, 12)->finalize != NULL)
		return NET(client, 12)->finalize(ctx);
	return ncclSuccess;
}

const char *bnet_client_name(const struct bnet_client *client)
{
	const char *name;

	memcpy(&name, client->raw, sizeof(name)); /* the first field of every version */
	return name;
}

size_t bnet_client_handle_size(const struct bnet_client *client)
{
	return client->version == 4 ? NCCL_NET_HANDLE_MAXSIZE_V4 : NCCL_NET_HANDLE_MAXSIZE;
}

ncclResult_t bnet_client_devices(const struct bnet_client *client, int *ndev)
{
	*ndev = 0;
	return CALL_FROM_V4(client, devices, ndev);
}

/* ---- properties: read in the version's own layout, then copied by name ---- */

/* The fields that every version has. */
#define COPY_PROPERTIES(to, from)                     \
	do {                                          \
		(to)->name = (from).name;             \
		(to)->pciPath = (from).pciPath;       \
		(to)->guid = (from).guid;             \
		(to)->ptrSupport = (from).ptrSupport; \
		(to)->speed = (from).speed;           \
		(to)->port = (from).port;             \
		(to)->maxComms = (from).maxComms;     \
	} while (0)

#define COPY_PROPERTIES_V5(to, from)              \
	do {                                      \
		COPY_PROPERTIES(to, from);        \
		(to)->latency = (from).latency;   \
		(to)->maxRecvs = (from).maxRecvs; \
	} while (0)

#define COPY_PROPERTIES_V7(to, from)                              \
	do {                                                      \
		COPY_PROPERTIES_V5(to, from);                     \
		(to)->netDeviceType = (from).netDeviceType;       \
		(to)->netDeviceVersion = (from).netDeviceVersion; \
	} while (0)

#define COPY_PROPERTIES_V9(to, from)                                                       \
	do {                                                                               \
		COPY_PROPERTIES_V7(to, from);                                              \
		(to)->regIsGlobal = (from).regIsGlobal;                                    \
		(to)->forceFlush = (from).forceFlush;                                      \
		(to)->vProps.ndevs = (from).vProps.ndevs;                                  \
		memcpy((to)->vProps.devs, (from).vProps.devs, sizeof((from).vProps.devs)); \
		(to)->maxP2pBytes = (from).maxP2pBytes;                                    \
		(to)->maxCollBytes = (from).maxCollBytes;                                  \
	} while (0)

static ncclResult_t properties_to_v6(const struct bnet_client *client, int dev, ncclNetProperties_v12_t *props)
{
	ncclNetProperties_v4_t v4 = {0};
	ncclNetProperties_v6_t v6 = {0};
	ncclResult_t result;

	if (client->version == 4) {
		result = NET(client, 4)->getProperties(dev, &v4);
		COPY_PROPERTIES(props, v4);
		return result;
	}
	if (client->version == 5)
		result = NET(client, 5)->getProperties(dev, &v6);
	else
		result = NET(client, 6)->getProperties(dev, &v6);
	COPY_PROPERTIES_V5(props, v6);
	return result;
}

static ncclResult_t properties_to_v8(const struct bnet_client *client, int dev, ncclNetProperties_v12_t *props)
{
	ncclNetProperties_v7_t v7 = {0};
	ncclNetProperties_v8_t v8 = {0};
	ncclResult_t result;

	if (client->version == 7) {
		result = NET(client, 7)->getProperties(dev, &v7);
		COPY_PROPERTIES_V7(props, v7);
		return result;
	}
	result = NET(client, 8)->getProperties(dev, &v8);
	COPY_PROPERTIES_V7(props, v8);
	props->regIsGlobal = v8.regIsGlobal;
	return result;
}

static ncclResult_t properties_to_v11(const struct bnet_client *client, int dev, ncclNetProperties_v12_t *props)
{
	ncclNetProperties_v9_t v9 = {0};
	ncclNetProperties_v11_t v11 = {0};
	ncclResult_t result;

	if (client->version == 11) {
		result = NET(client, 11)->getProperties(dev, &v11);
		COPY_PROPERTIES_V9(props, v11);
		props->maxMultiRequestSize = v11.maxMultiRequestSize;
		return result;
	}
	if (client->version == 9)
		result = NET(client, 9)->getProperties(dev, &v9);
	else
		result = NET(client, 10)->getProperties(dev, &v9);
	COPY_PROPERTIES_V9(props, v9);
	return result;
}

ncclResult_t bnet_client_properties(const struct bnet_client *client, int dev, ncclNetProperties_v12_t *props)
{
	*props = (ncclNetProperties_v12_t){0};
	if (client->version <= 6)
		return properties_to_v6(client, dev, props);
	if (client->version <= 8)
		return properties_to_v8(client, dev, props);
	if (client->version <= 11)
		return properties_to_v11(client, dev, props);
	return NET(client, 12)->getProperties(dev, props);
}

/* ---- virtual devices ---- */

/* The count is passed on unchecked, so that tests can ask a table for too many devices. */
#define MAKE_V_DEVICE(v, props_v)                                                                                      \
	static ncclResult_t make_v_device_v##v(const struct bnet_client *client, const int *devs, int ndevs, int *dev) \
	{                                                                                                              \
		ncclNetVDeviceProps_v##props_v##_t props = {.ndevs = ndevs};                                           \
                                                                                                                       \
		for (size_t i = 0; i < sizeof(props.devs) / sizeof(props.devs[0]) && (int)i < ndevs; i++)              \
			props.devs[i] = devs[i];                                                                       \
		if (!NET(client, v)->makeVDevice)                                                                      \
			return ncclInvalidUsage;                                                                       \
		return NET(client, v)->makeVDevice(dev, &props);                                                       \
	}

MAKE_V_DEVICE(9, 9)
MAKE_V_DEVICE(10, 9)
MAKE_V_DEVICE(11, 9)
MAKE_V_DEVICE(12, 12)

ncclResult_t bnet_client_make_v_device(const struct bnet_client *client, const int *devs, int ndevs, int *dev)
{
	*dev = -1;
	switch (client->version) {
	case 9:
		return make_v_device_v9(client, devs, ndevs, dev);
	case 10:
		return make_v_device_v10(client, devs, ndevs, dev);
	case 11:
		return make_v_device_v11(client, devs, ndevs, dev);
	case 12:
		return make_v_device_v12(client, devs, ndevs, dev);
	default:
		return ncclInvalidUsage;
	}
}

/* ---- connections ---- */

ncclResult_t bnet_client_listen(const struct bnet_client *client, int dev, void *handle, void **listen_comm)
{
	*listen_comm = NULL;
	switch (client->version) {
	case 4:
		return NET(client, 4)->listen(dev, handle, listen_comm);
	case 5:
		return NET(client, 5)->listen(dev, handle, listen_comm);
	case 6:
		return NET(client, 6)->listen(dev, handle, listen_comm);
	case 7:
		return NET(client, 7)->listen(dev, handle, listen_comm);
	case 8:
		return NET(client, 8)->listen(dev, handle, listen_comm);
	case 9:
		return NET(client, 9)->listen(dev, handle, listen_comm);
	case 10:
		return NET(client, 10)->listen(dev, handle, listen_comm);
	case 11:
		return NET(client, 11)->listen(client->ctx, dev, handle, listen_comm);
	default:
		return NET(client, 12)->listen(client->ctx, dev, handle, listen_comm);
	}
}

ncclResult_t bnet_client_connect(const struct bnet_client *client, int dev, void *handle, void **send_comm)
{
	ncclNetCommConfig_t config = client->config;
	ncclNetDeviceHandle_t *device_handle = NULL;

	*send_comm = NULL;
	switch (client->version) {
	case 4:
		return NET(client, 4)->connect(dev, handle, send_comm);
	case 5:
		return NET(client, 5)->connect(dev, handle, send_comm);
	case 6:
		return NET(client, 6)->connect(dev, handle, send_comm);
	case 7:
		return NET(client, 7)->connect(dev, handle, send_comm, &device_handle);
	case 8:
		return NET(client, 8)->connect(dev, handle, send_comm, &device_handle);
	case 9:
		return NET(client, 9)->connect(dev, handle, send_comm, &device_handle);
	case 10:
		return NET(client, 10)->connect(dev, &config, handle, send_comm, &device_handle);
	case 11:
		return NET(client, 11)->connect(client->ctx, dev, handle, send_comm, &device_handle);
	default:
		return NET(client, 12)->connect(client->ctx, dev, handle, send_comm, &device_handle);
	}
}

ncclResult_t bnet_client_accept(const struct bnet_client *client, void *listen_comm, void **recv_comm)
{
	ncclNetDeviceHandle_t *device_handle = NULL;

	*recv_comm = NULL;
	switch (client->version) {
	case 4:
		return NET(client, 4)->accept(listen_comm, recv_comm);
	case 5:
		return NET(client, 5)->accept(listen_comm, recv_comm);
	case 6:
		return NET(client, 6)->accept(listen_comm, recv_comm);
	case 7:
		return NET(client, 7)->accept(listen_comm, recv_comm, &device_handle);
	default:
		return CALL_FROM_V8(client, accept, listen_comm, recv_comm, &device_handle);
	}
}

/* ---- memory ---- */

ncclResult_t bnet_client_reg(const struct bnet_client *client, void *comm, void *data, size_t size, int type,
			     void **mhandle)
{
	*mhandle = NULL;
	if (client->version >= 8)
		return CALL_FROM_V8(client, regMr, comm, data, size, type, mhandle);
	if (size > INT_MAX)
		return ncclInvalidArgument;
	switch (client->version) {
	case 4:
		return NET(client, 4)->regMr(comm, data, (int)size, type, mhandle);
	case 5:
		return NET(client, 5)->regMr(comm, data, (int)size, type, mhandle);
	case 6:
		return NET(client, 6)->regMr(comm, data, (int)size, type, mhandle);
	default:
		return NET(client, 7)->regMr(comm, data, (int)size, type, mhandle);
	}
}

ncclResult_t bnet_client_dereg(const struct bnet_client *client, void *comm, void *mhandle)
{
	return CALL_FROM_V4(client, deregMr, comm, mhandle);
}

/* ---- messages ---- */

static ncclResult_t isend_to_v8(const struct bnet_client *client, void *comm, void *data, int size, int tag,
				void *mhandle, void **request)
{
	switch (client->version) {
	case 4:
		return NET(client, 4)->isend(comm, data, size, mhandle, request);
	case 5:
		return NET(client, 5)->isend(comm, data, size, tag, mhandle, request);
	case 6:
		return NET(client, 6)->isend(comm, data, size, tag, mhandle, request);
	case 7:
		return NET(client, 7)->isend(comm, data, size, tag, mhandle, request);
	default:
		return NET(client, 8)->isend(comm, data, size, tag, mhandle, request);
	}
}

ncclResult_t bnet_client_isend(const struct bnet_client *client, void *comm, void *data, size_t size, int tag,
			       void *mhandle, void **request)
{
	*request = NULL;
	switch (client->version) {
	case 9:
		return NET(client, 9)->isend(comm, data, size, tag, mhandle, request);
	case 10:
		return NET(client, 10)->isend(comm, data, size, tag, mhandle, NULL, request);
	case 11:
		return NET(client, 11)->isend(comm, data, size, tag, mhandle, NULL, request);
	case 12:
		return NET(client, 12)->isend(comm, data, size, tag, mhandle, NULL, request);
	default:
		if (size > INT_MAX)
			return ncclInvalidArgument;
		return isend_to_v8(client, comm, data, (int)size, tag, mhandle, request);
	}
}

static ncclResult_t irecv_to_v8(const struct bnet_client *client, void *comm, void *data, int size, int tag,
				void *mhandle, void **request)
{
	switch (client->version) {
	case 4:
		return NET(client, 4)->irecv(comm, data, size, mhandle, request);
	case 5:
		return NET(client, 5)->irecv(comm, 1, &data, &size, &tag, &mhandle, request);
	case 6:
		return NET(client, 6)->irecv(comm, 1, &data, &size, &tag, &mhandle, request);
	case 7:
		return NET(client, 7)->irecv(comm, 1, &data, &size, &tag, &mhandle, request);
	default:
		return NET(client, 8)->irecv(comm, 1, &data, &size, &tag, &mhandle, request);
	}
}

ncclResult_t bnet_client_irecv(const struct bnet_client *client, void *comm, void *data, size_t size, int tag,
			       void *mhandle, void **request)
{
	void *profiler_handle = NULL;

	*request = NULL;
	switch (client->version) {
	case 9:
		return NET(client, 9)->irecv(comm, 1, &data, &size, &tag, &mhandle, request);
	case 10:
		return NET(client, 10)->irecv(comm, 1, &data, &size, &tag, &mhandle, &profiler_handle, request);
	case 11:
		return NET(client, 11)->irecv(comm, 1, &data, &size, &tag, &mhandle, &profiler_handle, request);
	case 12:
		return NET(client, 12)->irecv(comm, 1, &data, &size, &tag, &mhandle, &profiler_handle, request);
	default:
		if (size > INT_MAX)
			return ncclInvalidArgument;
		return irecv_to_v8(client, comm, data, (int)size, tag, mhandle, request);
	}
}

ncclResult_t bnet_client_test(const struct bnet_client *client, void *request, int *done, int *size)
{
	*done = 0;
	return CALL_FROM_V4(client, test, request, done, size);
}

ncclResult_t bnet_client_close_send(const struct bnet_client *client, void *comm)
{
	return CALL_FROM_V4(client, closeSend, comm);
}

ncclResult_t bnet_client_close_recv(const struct bnet_client *client, void *comm)
{
	return CALL_FROM_V4(client, closeRecv, comm);
}

ncclResult_t bnet_client_close_listen(const struct bnet_client *client, void *comm)
{
	return CALL_FROM_V4(client, closeListen, comm);
}
