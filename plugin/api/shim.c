/* SPDX-License-Identifier: MIT
 *
 * The ncclNetPlugin_v4 … v12 tables: they map each version's arguments, structs and ncclResult_t to net.h, which knows
 * none of them. NCCL calls from many threads; net.c and conn.h describe the rules that it follows.
 */
#include <errno.h>
#include <limits.h>
#include <string.h>

#include "bagua_net.h"
#include "base/log.h"
#include "common/abi.h"
#include "api/net.h"

#define NAME "BaguaNet"
#define COUNT(array) ((int)(sizeof(array) / sizeof((array)[0])))

static_assert(BNET_WIRE_HANDLE_SIZE <= NCCL_NET_HANDLE_MAXSIZE_V4, "a handle fits into every version's");

/* torch prints NCCL's ncclGetErrorString for each: "remote process exited or there was a network error", "unhandled
 * system error", "internal error", and so on. */
static ncclResult_t result(int rc)
{
	if (rc == 0)
		return ncclSuccess;
	bnet_log_settle();
	switch (rc) {
	case -ECONNRESET:
	case -ECONNREFUSED:
	case -ECONNABORTED:
	case -EPIPE:
	case -ESHUTDOWN:
	case -ETIMEDOUT:
	case -EHOSTUNREACH:
	case -ENETUNREACH:
	case -ENETDOWN:
	case -ENETRESET:
	case -EHOSTDOWN:
		return ncclRemoteError;
	case -EINVAL:
		return ncclInvalidArgument;
	case -EMSGSIZE:
	case -EPROTO:
		return ncclInvalidUsage;
	case -EBADMSG:
	case -ECANCELED:
	case -ECHILD:
		return ncclInternalError;
	default:
		return ncclSystemError;
	}
}

/* ---- init, one for each version, since the log reports the version in use ---- */

static struct bnet_context global_context = {.traffic_class = NCCL_NET_TRAFFIC_CLASS_UNDEF};

static int config_traffic_class(const ncclNetCommConfig_t *config)
{
	return config ? config->trafficClass : NCCL_NET_TRAFFIC_CLASS_UNDEF;
}

#define INIT_WITH_LOGGER(v)                                  \
	static ncclResult_t init_v##v(ncclDebugLogger_t log) \
	{                                                    \
		return result(bnet_net_init(v, log));        \
	}

INIT_WITH_LOGGER(4)
INIT_WITH_LOGGER(5)
INIT_WITH_LOGGER(6)
INIT_WITH_LOGGER(7)
INIT_WITH_LOGGER(8)
INIT_WITH_LOGGER(9)

static ncclResult_t init_v10(ncclDebugLogger_t log, ncclProfilerCallback_t prof)
{
	(void)prof; /* profile.h */
	return result(bnet_net_init(10, log));
}

static ncclResult_t init_context(int version, void **ctx, uint64_t id, const ncclNetCommConfig_t *config,
				 ncclDebugLogger_t log, ncclProfilerCallback_t prof)
{
	int rc = bnet_net_init(version, log);

	*ctx = NULL;
	if (rc < 0)
		return result(rc);
	*ctx = bnet_context_new(version, id, config_traffic_class(config), prof);
	return *ctx ? ncclSuccess : ncclSystemError;
}

static ncclResult_t init_v11(void **ctx, uint64_t commId, ncclNetCommConfig_t *config, ncclDebugLogger_t log,
			     ncclProfilerCallback_t prof)
{
	return init_context(11, ctx, commId, config, log, prof);
}

static ncclResult_t init_v12(void **ctx, uint64_t commId, ncclNetCommConfig_t *config, ncclDebugLogger_t log,
			     ncclProfilerCallback_t prof)
{
	return init_context(12, ctx, commId, config, log, prof);
}

/* NCCL's own networks ignore the context, so a NULL must not crash this one. */
static const struct bnet_context *context_of(const void *ctx)
{
	return ctx ? ctx : &global_context;
}

static ncclResult_t finalize(void *ctx)
{
	bnet_context_free(ctx);
	return ncclSuccess;
}

static ncclResult_t set_net_attr(void *ctx, ncclNetAttr_t *attr)
{
	struct bnet_context *context = ctx;

	if (attr)
		bnet_intent_set(context ? &context->intent : &global_context.intent, attr);
	return ncclSuccess;
}

/* ---- devices ---- */

static ncclResult_t devices(int *ndev)
{
	*ndev = bnet_net_devices();
	return ncclSuccess;
}

/* The fields that all versions have under the same names. */
#define FILL_COMMON(props, dev, index)                                                                        \
	do {                                                                                                  \
		memset((props), 0, sizeof(*(props)));                                                         \
		(props)->name = (char *)(uintptr_t)(dev)->name;                                               \
		(props)->pciPath = (dev)->pci_path[0] ? (char *)(uintptr_t)(dev)->pci_path : NULL;            \
		(props)->guid = (dev)->guid;                                                                  \
		(props)->ptrSupport = NCCL_PTR_HOST;                                                          \
		(props)->speed = (dev)->speed_mbps;                                                           \
		/* Devices of equal guid and port share one bandwidth in NCCL; the ports of a card do not. */ \
		(props)->port = (index);                                                                      \
		(props)->maxComms = 65536;                                                                    \
	} while (0)

#define GET_PROPERTIES(v, type, more)                                   \
	static ncclResult_t get_properties_v##v(int index, type *props) \
	{                                                               \
		const struct bnet_device *dev = bnet_net_device(index); \
		if (!dev)                                               \
			return ncclInvalidArgument;                     \
		FILL_COMMON(props, dev, index);                         \
		more;                                                   \
		return ncclSuccess;                                     \
	}

GET_PROPERTIES(4, ncclNetProperties_v4_t, (void)0)
GET_PROPERTIES(6, ncclNetProperties_v6_t, props->maxRecvs = 1)
GET_PROPERTIES(7, ncclNetProperties_v7_t, props->maxRecvs = 1)
GET_PROPERTIES(8, ncclNetProperties_v8_t, props->maxRecvs = 1)

/* The numbers of the devices that NCCL merged into this one. Any other device lists itself, including a device of
 * BAGUA_NET_BOND, whose members have no numbers. */
static int fill_parts(int *parts, int max, const struct bnet_device *dev, int index)
{
	int n = dev->nparts < max ? dev->nparts : max;

	parts[0] = index;
	if (n)
		memcpy(parts, dev->parts, (size_t)n * sizeof(*parts));
	return n ? n : 1;
}

#define FILL_V9(props, index)                                                                              \
	(props)->maxRecvs = 1;                                                                             \
	(props)->vProps.ndevs = fill_parts((props)->vProps.devs, COUNT((props)->vProps.devs), dev, index); \
	(props)->maxP2pBytes = NCCL_MAX_NET_SIZE_BYTES;                                                    \
	(props)->maxCollBytes = NCCL_MAX_NET_SIZE_BYTES

GET_PROPERTIES(9, ncclNetProperties_v9_t, FILL_V9(props, index))
GET_PROPERTIES(11, ncclNetProperties_v11_t, FILL_V9(props, index); props->maxMultiRequestSize = 1)
GET_PROPERTIES(12, ncclNetProperties_v12_t, FILL_V9(props, index); props->maxMultiRequestSize = 1;
	       props->railId = NCCL_NET_ID_UNDEF; props->planeId = NCCL_NET_ID_UNDEF)

#define MAKE_V_DEVICE(v, props_t, pci_only)                                                                            \
	static ncclResult_t make_v_device_v##v(int *d, props_t *props)                                                 \
	{                                                                                                              \
		if (props->ndevs > COUNT(props->devs)) {                                                               \
			bnet_warn("NET/BaguaNet: asked to merge %d devices into one; it may be 1 to %d", props->ndevs, \
				  COUNT(props->devs));                                                                 \
			return ncclInvalidArgument;                                                                    \
		}                                                                                                      \
		return result(bnet_net_merge(props->devs, props->ndevs, pci_only, d));                                 \
	}

MAKE_V_DEVICE(9, ncclNetVDeviceProps_v9_t, false)
MAKE_V_DEVICE(10, ncclNetVDeviceProps_v9_t, true)
MAKE_V_DEVICE(12, ncclNetVDeviceProps_v12_t, true)

/* ---- listen, connect, accept ---- */

static ncclResult_t listen_v4(int dev, void *handle, void **listenComm)
{
	return result(bnet_net_listen(&global_context, dev, handle, (struct bnet_listen **)listenComm));
}

static ncclResult_t listen_v5(int dev, void *handle, void **listenComm)
{
	memset(handle, 0, NCCL_NET_HANDLE_MAXSIZE);
	return listen_v4(dev, handle, listenComm);
}

static ncclResult_t listen_v11(void *ctx, int dev, void *handle, void **listenComm)
{
	memset(handle, 0, NCCL_NET_HANDLE_MAXSIZE);
	return result(bnet_net_listen(context_of(ctx), dev, handle, (struct bnet_listen **)listenComm));
}

static ncclResult_t connect_on(const struct bnet_context *context, int traffic_class, int dev, void *handle,
			       void **sendComm)
{
	return result(bnet_net_connect(context, traffic_class, dev, handle, (struct bnet_conn **)sendComm));
}

static ncclResult_t connect_v5(int dev, void *handle, void **sendComm)
{
	return connect_on(&global_context, global_context.traffic_class, dev, handle, sendComm);
}

/* Before v5, connect and accept return once the connection is established. The peer's control thread completes the
 * handshake, so a connect does not wait for the peer's accept: those NCCL versions connect on every rank before they
 * accept on any. */
static ncclResult_t connect_v4(int dev, void *handle, void **sendComm)
{
	ncclResult_t rc;

	for (;;) {
		rc = connect_v5(dev, handle, sendComm);
		if (rc != ncclSuccess || *sendComm)
			return rc;
		bnet_engine_lock();
		bnet_engine_wait(1);
		bnet_engine_unlock();
	}
}

static ncclResult_t connect_v7(int dev, void *handle, void **sendComm, ncclNetDeviceHandle_t **sendDevComm)
{
	if (sendDevComm)
		*sendDevComm = NULL;
	return connect_v5(dev, handle, sendComm);
}

static ncclResult_t connect_v10(int dev, ncclNetCommConfig_t *config, void *handle, void **sendComm,
				ncclNetDeviceHandle_t **sendDevComm)
{
	if (sendDevComm)
		*sendDevComm = NULL;
	return connect_on(&global_context, config_traffic_class(config), dev, handle, sendComm);
}

static ncclResult_t connect_v11(void *ctx, int dev, void *handle, void **sendComm, ncclNetDeviceHandle_t **sendDevComm)
{
	const struct bnet_context *context = context_of(ctx);

	if (sendDevComm)
		*sendDevComm = NULL;
	return connect_on(context, context->traffic_class, dev, handle, sendComm);
}

static ncclResult_t accept_v5(void *listenComm, void **recvComm)
{
	return result(bnet_net_accept(listenComm, (struct bnet_conn **)recvComm));
}

static ncclResult_t accept_v4(void *listenComm, void **recvComm)
{
	ncclResult_t rc;

	for (;;) {
		rc = accept_v5(listenComm, recvComm);
		if (rc != ncclSuccess || *recvComm)
			return rc;
		bnet_engine_lock();
		bnet_engine_wait(1);
		bnet_engine_unlock();
	}
}

static ncclResult_t accept_v7(void *listenComm, void **recvComm, ncclNetDeviceHandle_t **recvDevComm)
{
	if (recvDevComm)
		*recvDevComm = NULL;
	return accept_v5(listenComm, recvComm);
}

/* ---- memory ---- */

static ncclResult_t reg_mr_v8(void *comm, void *data, size_t size, int type, void **mhandle)
{
	return result(bnet_net_reg(comm, data, size, type, (struct bnet_mr **)mhandle));
}

static ncclResult_t reg_mr_v4(void *comm, void *data, int size, int type, void **mhandle)
{
	/* NCCL up to 2.19 passes a size_t as this int. A truncated size stands for the largest region. */
	return reg_mr_v8(comm, data, size <= 0 ? (size_t)UINT32_MAX : (size_t)size, type, mhandle);
}

static ncclResult_t dereg_mr(void *comm, void *mhandle)
{
	(void)comm;
	if (mhandle)
		bnet_net_dereg(mhandle);
	return ncclSuccess;
}

/* ---- data ---- */

/* A negative size is invalid: SIZE_MAX is then refused with a line in the log. */
static size_t int_size(int size)
{
	return size < 0 ? SIZE_MAX : (size_t)size;
}

/* *request may hold anything on entry; it is always written. */
static ncclResult_t isend_v10(void *sendComm, void *data, size_t size, int tag, void *mhandle, void *phandle,
			      void **request)
{
	(void)tag, (void)mhandle;
	return result(bnet_net_isend(sendComm, data, size, phandle, (struct bnet_request **)request));
}

static ncclResult_t isend_v9(void *sendComm, void *data, size_t size, int tag, void *mhandle, void **request)
{
	return isend_v10(sendComm, data, size, tag, mhandle, NULL, request);
}

static ncclResult_t isend_v5(void *sendComm, void *data, int size, int tag, void *mhandle, void **request)
{
	return isend_v10(sendComm, data, int_size(size), tag, mhandle, NULL, request);
}

static ncclResult_t isend_v4(void *sendComm, void *data, int size, void *mhandle, void **request)
{
	return isend_v5(sendComm, data, size, 0, mhandle, request);
}

static ncclResult_t irecv_one(void *recvComm, void *data, size_t size, void *phandle, void **request)
{
	return result(bnet_net_irecv(recvComm, data, size, phandle, (struct bnet_request **)request));
}

static ncclResult_t irecv_many(int n, void **request)
{
	*request = NULL;
	bnet_warn("NET/BaguaNet: asked for a receive of %d buffers; one at a time was offered (maxRecvs)", n);
	return ncclInvalidArgument;
}

static ncclResult_t irecv_v10(void *recvComm, int n, void **data, size_t *sizes, int *tags, void **mhandles,
			      void **phandles, void **request)
{
	(void)tags, (void)mhandles;
	return n == 1 ? irecv_one(recvComm, data[0], sizes[0], phandles ? phandles[0] : NULL, request)
		      : irecv_many(n, request);
}

static ncclResult_t irecv_v9(void *recvComm, int n, void **data, size_t *sizes, int *tags, void **mhandles,
			     void **request)
{
	return irecv_v10(recvComm, n, data, sizes, tags, mhandles, NULL, request);
}

static ncclResult_t irecv_v5(void *recvComm, int n, void **data, int *sizes, int *tags, void **mhandles, void **request)
{
	(void)tags, (void)mhandles;
	return n == 1 ? irecv_one(recvComm, data[0], int_size(sizes[0]), NULL, request) : irecv_many(n, request);
}

static ncclResult_t irecv_v4(void *recvComm, void *data, int size, void *mhandle, void **request)
{
	(void)mhandle;
	return irecv_one(recvComm, data, int_size(size), NULL, request);
}

/* Host memory needs no flush: done at once. */
static ncclResult_t iflush_v5(void *recvComm, int n, void **data, int *sizes, void **mhandles, void **request)
{
	(void)recvComm, (void)n, (void)data, (void)sizes, (void)mhandles;
	*request = NULL;
	return ncclSuccess;
}

static ncclResult_t iflush_v4(void *recvComm, void *data, int size, void *mhandle, void **request)
{
	(void)recvComm, (void)data, (void)size, (void)mhandle;
	*request = NULL;
	return ncclSuccess;
}

static ncclResult_t test(void *request, int *done, int *sizes)
{
	uint64_t size = 0;
	int rc = bnet_net_test(request, done, &size);

	/* The interface has only an int for the size; NCCL merely checks it for zero. */
	if (*done && sizes)
		sizes[0] = size > INT_MAX ? INT_MAX : (int)size;
	return result(rc);
}

/* ---- close: always succeeds, since NCCL would otherwise skip its remaining frees ---- */

static ncclResult_t close_conn(void *comm)
{
	if (comm)
		bnet_net_close(comm);
	return ncclSuccess;
}

static ncclResult_t close_listen(void *listenComm)
{
	if (listenComm)
		bnet_net_close_listen(listenComm);
	return ncclSuccess;
}

/* ---- the tables ---- */

#define PUBLIC __attribute__((visibility("default")))

extern const ncclNet_v4_t ncclNetPlugin_v4;
extern const ncclNet_v5_t ncclNetPlugin_v5;
extern const ncclNet_v6_t ncclNetPlugin_v6;
extern const ncclNet_v7_t ncclNetPlugin_v7;
extern const ncclNet_v8_t ncclNetPlugin_v8;
extern const ncclNet_v9_t ncclNetPlugin_v9;
extern const ncclNet_v10_t ncclNetPlugin_v10;
extern const ncclNet_v11_t ncclNetPlugin_v11;
extern const ncclNet_v12_t ncclNetPlugin_v12;

/* Functions with the same signature in all versions. */
#define COMMON                                                                                        \
	.name = NAME, .devices = devices, .deregMr = dereg_mr, .test = test, .closeSend = close_conn, \
	.closeRecv = close_conn, .closeListen = close_listen

PUBLIC const ncclNet_v4_t ncclNetPlugin_v4 = {
	COMMON,
	.init = init_v4,
	.getProperties = get_properties_v4,
	.listen = listen_v4,
	.connect = connect_v4,
	.accept = accept_v4,
	.regMr = reg_mr_v4,
	.isend = isend_v4,
	.irecv = irecv_v4,
	.iflush = iflush_v4,
};

#define COMMON_V5 \
	COMMON, .listen = listen_v5, .isend = isend_v5, .irecv = irecv_v5, .iflush = iflush_v5, .regMr = reg_mr_v4

PUBLIC const ncclNet_v5_t ncclNetPlugin_v5 = {
	COMMON_V5, .init = init_v5, .getProperties = get_properties_v6, .connect = connect_v5, .accept = accept_v5,
};

PUBLIC const ncclNet_v6_t ncclNetPlugin_v6 = {
	COMMON_V5, .init = init_v6, .getProperties = get_properties_v6, .connect = connect_v5, .accept = accept_v5,
};

PUBLIC const ncclNet_v7_t ncclNetPlugin_v7 = {
	COMMON_V5, .init = init_v7, .getProperties = get_properties_v7, .connect = connect_v7, .accept = accept_v7,
};

PUBLIC const ncclNet_v8_t ncclNetPlugin_v8 = {
	COMMON,
	.init = init_v8,
	.getProperties = get_properties_v8,
	.listen = listen_v5,
	.connect = connect_v7,
	.accept = accept_v7,
	.regMr = reg_mr_v8,
	.isend = isend_v5,
	.irecv = irecv_v5,
	.iflush = iflush_v5,
};

PUBLIC const ncclNet_v9_t ncclNetPlugin_v9 = {
	COMMON,
	.init = init_v9,
	.getProperties = get_properties_v9,
	.listen = listen_v5,
	.connect = connect_v7,
	.accept = accept_v7,
	.regMr = reg_mr_v8,
	.isend = isend_v9,
	.irecv = irecv_v9,
	.iflush = iflush_v5,
	.makeVDevice = make_v_device_v9,
};

PUBLIC const ncclNet_v10_t ncclNetPlugin_v10 = {
	COMMON,
	.init = init_v10,
	.getProperties = get_properties_v9,
	.listen = listen_v5,
	.connect = connect_v10,
	.accept = accept_v7,
	.regMr = reg_mr_v8,
	.isend = isend_v10,
	.irecv = irecv_v10,
	.iflush = iflush_v5,
	.makeVDevice = make_v_device_v10,
};

#define COMMON_V11                                                                                     \
	COMMON, .listen = listen_v11, .connect = connect_v11, .accept = accept_v7, .regMr = reg_mr_v8, \
		.isend = isend_v10, .irecv = irecv_v10, .iflush = iflush_v5, .finalize = finalize,     \
		.setNetAttr = set_net_attr

PUBLIC const ncclNet_v11_t ncclNetPlugin_v11 = {
	COMMON_V11,
	.init = init_v11,
	.getProperties = get_properties_v11,
	.makeVDevice = make_v_device_v10,
};

PUBLIC const ncclNet_v12_t ncclNetPlugin_v12 = {
	COMMON_V11,
	.init = init_v12,
	.getProperties = get_properties_v12,
	.makeVDevice = make_v_device_v12,
};

const void *bnet_net_table(int version)
{
	static const void *const tables[] = {
		&ncclNetPlugin_v4, &ncclNetPlugin_v5,  &ncclNetPlugin_v6,  &ncclNetPlugin_v7,  &ncclNetPlugin_v8,
		&ncclNetPlugin_v9, &ncclNetPlugin_v10, &ncclNetPlugin_v11, &ncclNetPlugin_v12,
	};

	return version < 4 || version > 12 ? NULL : tables[version - 4];
}
