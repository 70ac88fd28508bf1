/* SPDX-License-Identifier: MIT
 *
 * The network's operations; see net.h. NCCL calls isend, irecv and test on its progress threads and everything else on
 * its service threads; there may be any number of both.
 */
#include "api/net.h"

#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bagua_net.h"
#include "api/profile.h"
#include "common/clock.h"
#include "base/descriptors.h"
#include "base/log.h"
#include "base/secret.h"
#include "base/socket.h"
#include "control/control.h"
#include "control/lifecycle.h"
#include "engine/engine.h"
#include "handshake/candidate.h"
#include "handshake/connector.h"
#include "handshake/listener.h"
#include "scaling/path.h"
#include "scaling/quota.h"
#include "transport/progress.h"
#include "transport/request.h"
#include "transport/worker.h"
#include "transport/zerocopy.h"
#include "wire/wire.h"

#define WARN_MS 10000
/* Ranks of a job that is well may be late by tens of seconds. */
#define LATE_MS 60000

/* ---- init ---- */

/* NCCL initializes a network for each communicator; one line a process is enough. */
static _Atomic pid_t logged_by;

static const char *protection(void)
{
	const bool secret = bnet_secret_is_set();

	if (bnet_engine.config.encrypt)
		return ", only from who knows the secret, encrypted (NCCL's bootstrap and torch's store are not)";
	if (bnet_engine.config.checksum)
		return secret ? ", only from who knows the secret, with checksums" : ", with checksums";
	return secret ? ", only from who knows the secret" : "";
}

static void log_startup(int version)
{
	char devices[512] = "", streams[24] = "auto", progress[24] = "inline";
	int workers = bnet_workers_wanted();
	size_t used = 0;

	for (int i = 0; i < bnet_engine.devices.ndevices && used < sizeof(devices); i++) {
		const struct bnet_device *dev = &bnet_engine.devices.devices[i];

		used += (size_t)snprintf(devices + used, sizeof(devices) - used, "%s%s %s %d Mb/s%s", i ? ", " : "",
					 dev->name, dev->address, dev->speed_mbps,
					 dev->speed_known ? "" : " (assumed)");
	}
	if (bnet_engine.config.nstreams)
		snprintf(streams, sizeof(streams), "%lld", (long long)bnet_engine.config.nstreams);
	if (workers)
		snprintf(progress, sizeof(progress), "by %d thread%s", workers, workers == 1 ? "" : "s");
	bnet_info(NCCL_INIT | NCCL_NET,
		  "NET/BaguaNet: version %s, net API v%d, wire version %d, streams %s, progress %s%s; %s",
		  bnet_version(), version, BNET_WIRE_VERSION, streams, progress, protection(), devices);
}

int bnet_net_init(int version, ncclDebugLogger_t logger)
{
	int rc;

	bnet_log_set(logger);
	rc = bnet_lifecycle_configure();
	if (rc == 0 && atomic_exchange(&logged_by, getpid()) != getpid())
		log_startup(version);
	return rc;
}

struct bnet_context *bnet_context_new(int version, uint64_t id, int traffic_class, ncclProfilerCallback_t profiler)
{
	struct bnet_context *context = calloc(1, sizeof(*context));

	if (context)
		*context = (struct bnet_context){.version = version,
						 .id = id,
						 .traffic_class = traffic_class,
						 .profiler = profiler};
	else
		bnet_shortage(-ENOMEM, "communicator");
	return context;
}

void bnet_context_free(struct bnet_context *context)
{
	if (!context)
		return;
	bnet_lifecycle_discard_context(context);
	free(context);
}

int bnet_net_devices(void)
{
	return atomic_load_explicit(&bnet_engine.devices.ndevices, memory_order_acquire);
}

const struct bnet_device *bnet_net_device(int dev)
{
	const struct bnet_device *device = bnet_device_get(&bnet_engine.devices, dev);

	if (!device)
		bnet_warn("NET/BaguaNet: there is no device %d, only 0 to %d", dev, bnet_net_devices() - 1);
	return device;
}

/* NCCL asks to merge by itself, and goes on with the devices as they are. Where it was told to, the job ends. */
static void say_not_merged(const char *why)
{
	const char *forced = getenv("NCCL_NET_FORCE_MERGE");

	if (forced && forced[0])
		bnet_warn("NET/BaguaNet: %s; unset NCCL_NET_FORCE_MERGE=%s", why, forced);
	else
		bnet_info(NCCL_INIT | NCCL_NET, "NET/BaguaNet: %s", why);
}

int bnet_net_merge(const int *parts, int nparts, bool pci_only, int *out)
{
	char err[512];
	int rc;

	*out = -1;
	bnet_engine_lock();
	rc = bnet_device_merge(&bnet_engine.devices, parts, nparts, pci_only, err, sizeof(err));
	bnet_engine_unlock();
	if (rc == -EOPNOTSUPP) {
		say_not_merged(err);
		return -EINVAL;
	}
	if (rc < 0) {
		bnet_warn("NET/BaguaNet: %s", err);
		return rc;
	}
	*out = rc;
	bnet_info(NCCL_INIT | NCCL_NET, "NET/BaguaNet: device %d is %s, %d Mb/s", rc,
		  bnet_engine.devices.devices[rc].name, bnet_engine.devices.devices[rc].speed_mbps);
	return 0;
}

/* ---- traffic class ---- */

static void warn_traffic_class(int requested)
{
	static atomic_bool warned;

	if (!atomic_exchange(&warned, true))
		bnet_warn("NET/BaguaNet: the communicator's trafficClass=%d is ignored: it is not in 0 … 255, the byte of an IP "
			  "header (DSCP x 4). BAGUA_NET_TRAFFIC_CLASS=%lld applies (0 sets none)",
			  requested, (long long)bnet_engine.config.traffic_class);
}

/* NCCL's value if an IP header can hold it, else the parameter's. */
static int choose_traffic_class(int requested)
{
	if (requested >= 0 && requested <= UINT8_MAX)
		return requested;
	if (requested != NCCL_NET_TRAFFIC_CLASS_UNDEF && requested != NCCL_CONFIG_UNDEF_INT)
		warn_traffic_class(requested);
	return bnet_engine.config.traffic_class ? (int)bnet_engine.config.traffic_class : BNET_NO_TRAFFIC_CLASS;
}

/* ---- listen and accept ---- */

static void fill_handle(void *out, const struct bnet_listen *listen)
{
	struct bnet_wire_handle handle = {
		.version = BNET_WIRE_VERSION,
		.addr = listen->addr,
	};

	memcpy(handle.token, listen->token, BNET_TOKEN_SIZE);
	bnet_wire_handle_encode(out, &handle);
}

int bnet_net_listen(const struct bnet_context *context, int dev, void *handle, struct bnet_listen **out)
{
	const struct bnet_device *device = bnet_net_device(dev);
	struct bnet_listen *listen;
	uint64_t random[2] = {bnet_random(), bnet_random()};
	int rc;

	*out = NULL;
	if (!device)
		return -EINVAL;
	listen = calloc(1, sizeof(*listen));
	if (!listen)
		return bnet_shortage(-ENOMEM, "listening communicator");
	bnet_list_init(&listen->queue);
	listen->context = context;
	listen->traffic_class = choose_traffic_class(context->traffic_class);
	listen->dev = device;
	memcpy(listen->token, random, BNET_TOKEN_SIZE);

	bnet_engine_lock();
	rc = bnet_control_start();
	if (rc == 0)
		rc = bnet_listen_start(listen);
	if (rc == 0) {
		fill_handle(handle, listen);
		*out = listen;
	} else {
		bnet_engine_wake(); /* nothing may be left for it */
	}
	bnet_engine_unlock();
	if (rc < 0)
		free(listen);
	return rc;
}

static void warn_of_no_peer(const struct bnet_listen *listen, uint64_t waited_ms, bool over)
{
	char address[BNET_ADDRESS_TEXT], text[768];

	bnet_address_text(&listen->addr, address);
	snprintf(text, sizeof(text), "NET/BaguaNet: no peer has connected to %s (%s) within %llu s%s. %s", address,
		 listen->dev->name, (unsigned long long)waited_ms / 1000, over ? " (BAGUA_NET_CONNECT_TIMEOUT)" : "",
		 listen->refused
			 ? "One was refused that has not the same BAGUA_NET_SECRET_FILE and BAGUA_NET_ENCRYPT: the line "
			   "about it says more"
			 : "Either the other host does not use BaguaNet (its log says which network it uses; activate "
			   "bagua_net on every host), or a firewall is in the way (BAGUA_NET_PORT_RANGE), or that rank is "
			   "late or gone");
	if (over || waited_ms < LATE_MS)
		bnet_warn("%s", text);
	else
		bnet_warn_visibly("%s", text);
}

/* No peer has connected yet: warns after a while, and fails with -ETIMEDOUT in the end, or sooner where this process
 * could accept none. */
static int check_accept(struct bnet_listen *listen)
{
	uint64_t now = bnet_now_ms(), limit = (uint64_t)bnet_engine.config.connect_timeout * 1000;
	bool over;
	int rc;

	if (!listen->started_ms) {
		listen->started_ms = now;
		listen->warn_at_ms = now + WARN_MS;
	}
	rc = bnet_listeners_error(listen->dev, listen->started_ms);
	if (rc) {
		bnet_warn("NET/BaguaNet: cannot accept a connection on %s: %s%s", listen->dev->name, strerror(-rc),
			  bnet_shortage_remedy(rc));
		return rc;
	}
	over = now - listen->started_ms >= limit;
	if (!over && now < listen->warn_at_ms)
		return 0;
	listen->warn_at_ms = now + (now - listen->started_ms);
	warn_of_no_peer(listen, now - listen->started_ms, over);
	if (over)
		listen->started_ms = 0; /* a later accept waits for the full timeout again */
	return over ? -ETIMEDOUT : 0;
}

/* Not under the lock. most: of a sender, the streams that it may use. */
static void log_connection(const struct bnet_conn *conn, int most)
{
	const struct bnet_context *context = conn->setup.context;
	char intent[256];

	bnet_intent_text(&context->intent, conn->sender, intent, sizeof(intent));
	if (conn->sender)
		bnet_info(NCCL_NET, "NET/BaguaNet: sends to %s over %s, up to %d stream%s%s%s", conn->peer,
			  conn->dev->name, most, most == 1 ? "" : "s", conn->sealed, intent);
	else
		bnet_info(NCCL_NET, "NET/BaguaNet: receives from %s over %s%s%s", conn->peer, conn->dev->name,
			  conn->sealed, intent);
}

/* Under the lock. */
static void hand_out(struct bnet_conn *conn)
{
	const struct bnet_context *context = conn->setup.context;

	conn->setup.handed_out = true;
	conn->communicator = context->id;
	conn->profiler = context->profiler;
}

int bnet_net_accept(struct bnet_listen *listen, struct bnet_conn **out)
{
	int rc = 0;

	*out = NULL;
	bnet_engine_lock();
	if (bnet_list_empty(&listen->queue))
		bnet_acceptor_look(listen);
	if (bnet_list_empty(&listen->queue)) {
		rc = check_accept(listen);
	} else {
		*out = bnet_entry(listen->queue.next, struct bnet_conn, setup.pending);
		bnet_list_remove(&(*out)->setup.pending);
		listen->started_ms = 0;
		hand_out(*out);
	}
	bnet_engine_unlock();
	if (*out)
		log_connection(*out, 0);
	return rc;
}

void bnet_net_close_listen(struct bnet_listen *listen)
{
	bnet_lifecycle_discard_listen(listen);
}

/* ---- connect ---- */

/* Identifies the origin of the handle. One of NCCL's own Socket transport begins with a socket address. */
static void explain_foreign_handle(const struct bnet_device *dev, const uint8_t *handle)
{
	static const uint8_t zero[BNET_WIRE_HANDLE_SIZE];
	struct sockaddr_storage addr;
	char text[BNET_ADDRESS_TEXT];

	memset(&addr, 0, sizeof(addr));
	memcpy(&addr, handle, sizeof(struct sockaddr_in6));
	if (addr.ss_family == AF_INET || addr.ss_family == AF_INET6)
		bnet_warn("NET/BaguaNet: this rank (%s, %s) uses BaguaNet, the peer at %s uses NCCL's own Socket transport: "
			  "bagua_net is not installed or not active there. Activate it on every host, or on none",
			  dev->name, dev->address, bnet_address_text(&addr, text));
	else if (memcmp(handle, zero, sizeof(zero)) == 0)
		bnet_warn("NET/BaguaNet: this rank (%s, %s) uses BaguaNet, but the peer's handle is empty: the peer uses "
			  "another network, or none. Activate bagua_net on every host, or on none",
			  dev->name, dev->address);
	else
		bnet_warn("NET/BaguaNet: this rank (%s, %s) uses BaguaNet, but the peer's handle is another network plugin's, "
			  "or was damaged on its way. Activate bagua_net on every host, or on none",
			  dev->name, dev->address);
}

static int read_handle(const struct bnet_device *dev, const uint8_t *bytes, struct bnet_wire_handle *handle)
{
	char text[BNET_ADDRESS_TEXT];
	int rc = bnet_wire_handle_decode(bytes, handle);

	if (rc < 0) {
		explain_foreign_handle(dev, bytes);
		return -EPROTO;
	}
	if (handle->version != BNET_WIRE_VERSION) {
		bnet_warn("NET/BaguaNet: the peer at %s speaks wire version %d, this rank (%s, %s) version %d: install the "
			  "same bagua_net on every host",
			  bnet_address_text(&handle->addr, text), handle->version, dev->name, dev->address,
			  BNET_WIRE_VERSION);
		return -EPROTO;
	}
	return 0;
}

static struct bnet_conn *find_attempt(uint64_t id)
{
	struct bnet_table_entry *entry = bnet_table_find(&bnet_engine.attempts_by_id, id, NULL);

	return entry ? bnet_entry(entry, struct bnet_conn, by_id) : NULL;
}

/* All that needs no lock. NULL: no memory. */
static struct bnet_conn *prepare_attempt(const struct bnet_context *context, int traffic_class,
					 const struct bnet_device *dev, const struct bnet_wire_handle *handle)
{
	struct bnet_conn *conn = bnet_conn_new(true, dev, &bnet_engine.config, bnet_workers_wanted() > 0);

	if (!conn)
		return NULL;
	conn->id = bnet_random();
	memcpy(conn->token, handle->token, BNET_TOKEN_SIZE);
	bnet_address_text(&handle->addr, conn->peer);
	conn->setup.context = context;
	conn->setup.traffic_class = choose_traffic_class(traffic_class);
	bnet_peer_addresses_start(conn, &handle->addr, bnet_peer_is_local(dev, &handle->addr));
	bnet_zerocopy_start(conn);
	conn->setup.started_ms = bnet_now_ms();
	conn->setup.warn_at_ms = conn->setup.started_ms + WARN_MS;
	return conn;
}

/* Under the lock. */
static int begin_attempt(struct bnet_conn *conn)
{
	int rc = bnet_path_join(conn);

	if (rc == 0)
		rc = bnet_control_start();
	else
		bnet_shortage(rc, "connection");
	/* The peer may have to ask. Without, it waits. */
	if (rc == 0 && conn->config->repair)
		(void)bnet_listener_open(bnet_listener_number(conn->dev->members[0]));
	if (rc == 0) {
		rc = bnet_connector_start(conn, 0, false);
		if (rc < 0)
			bnet_shortage(rc, "connection");
	}
	if (rc < 0) {
		bnet_lifecycle_free(conn);
		return rc;
	}
	bnet_quota_join(conn->dev); /* until the control thread ends */
	bnet_list_add(&bnet_engine.conns, &conn->node);
	bnet_table_add(&bnet_engine.attempts_by_id, &conn->by_id, conn->id);
	bnet_list_add(&bnet_engine.attempts, &conn->setup.pending);
	bnet_engine_tick_soon();
	return 0;
}

static int start_attempt(const struct bnet_context *context, int traffic_class, const struct bnet_device *dev,
			 const struct bnet_wire_handle *decoded, void *handle)
{
	struct bnet_conn *conn = prepare_attempt(context, traffic_class, dev, decoded);
	uint64_t id;
	int rc;

	if (!conn)
		return bnet_shortage(-ENOMEM, "connection");
	id = conn->id;
	bnet_descriptors_reserve();
	bnet_engine_lock();
	rc = begin_attempt(conn);
	bnet_engine_unlock();
	if (rc == 0)
		bnet_wire_handle_set_attempt(handle, id);
	return rc;
}

/* A caller that polls would wait for the control thread to be scheduled, which on busy processors takes longer than the
 * handshake. */
static void go_on(struct bnet_conn *conn)
{
	struct bnet_joined joined;

	if (conn->setup.ready || atomic_load(&conn->error) || !bnet_connector_look(conn, &joined))
		return;
	bnet_lifecycle_joined(&joined);
	if (!bnet_list_empty(&bnet_engine.missing))
		bnet_engine_wake(); /* which opens them */
}

/* False: there is no such attempt. *out: the connection once it is ready. *rc: why it has failed. */
static bool poll_attempt(uint64_t id, void *handle, struct bnet_conn **out, int *rc)
{
	struct bnet_conn *conn;
	int most = 0;

	bnet_engine_lock();
	conn = find_attempt(id);
	if (conn)
		go_on(conn);
	*rc = conn ? atomic_load(&conn->error) : 0;
	if (conn)
		conn->setup.looks = 0;
	if (conn && !*rc && conn->setup.ready) {
		hand_out(conn);
		most = conn->path->scaler.most;
		*out = conn;
	}
	if (*rc || *out) {
		bnet_table_remove(&conn->by_id);
		bnet_list_remove(&conn->setup.pending);
	}
	if (*out)
		bnet_table_add(&bnet_engine.senders_by_id, &conn->by_id, conn->id);
	bnet_engine_unlock();
	if (*rc || *out)
		bnet_wire_handle_set_attempt(handle, 0);
	if (*rc)
		bnet_lifecycle_discard(conn);
	if (*out)
		log_connection(*out, most);
	return conn != NULL;
}

int bnet_net_connect(const struct bnet_context *context, int traffic_class, int dev, void *handle,
		     struct bnet_conn **out)
{
	const struct bnet_device *device = bnet_net_device(dev);
	struct bnet_wire_handle decoded;
	int rc;

	*out = NULL;
	if (!device)
		return -EINVAL;
	rc = read_handle(device, handle, &decoded);
	if (rc < 0)
		return rc;
	if (decoded.attempt && poll_attempt(decoded.attempt, handle, out, &rc))
		return rc;
	return start_attempt(context, traffic_class, device, &decoded, handle);
}

/* ---- memory ---- */

int bnet_net_reg(struct bnet_conn *conn, void *data, uint64_t size, int type, struct bnet_mr **out)
{
	struct bnet_mr *mr;

	*out = NULL;
	if (type != NCCL_PTR_HOST) {
		bnet_warn("NET/BaguaNet: asked to register memory of type %d; only host memory (1) was offered", type);
		return -EINVAL;
	}
	mr = calloc(1, sizeof(*mr));
	if (!mr)
		return bnet_shortage(-ENOMEM, "registration of memory");
	mr->base = (uintptr_t)data;
	mr->size = size;
	mr->conn = conn;
	*out = mr;
	return 0;
}

void bnet_net_dereg(struct bnet_mr *mr)
{
	bnet_region_quiesce(mr);
	free(mr);
}

/* ---- data ---- */

/* A connection that has failed still takes requests, and test fails them: a caller that posts many need not care when
 * the peer went. Without a free slot there is nothing to test, and post returns the error. */
static int post(struct bnet_conn *conn, void *data, uint64_t size, void *step, struct bnet_request **out)
{
	*out = NULL;
	if (size > NCCL_MAX_NET_SIZE_BYTES || (size && !data)) {
		bnet_warn("NET/BaguaNet: a %s of %llu bytes at %p is no valid one", conn->sender ? "send" : "receive",
			  (unsigned long long)size, data);
		return -EINVAL;
	}
	*out = bnet_request_post(conn, data, size);
	if (!*out)
		return atomic_load_explicit(&conn->error, memory_order_acquire);
	bnet_profile_begin(*out, step, size);
	bnet_engine_posted(&conn->work);
	if (!bnet_conn_is_inline(conn))
		bnet_worker_wake(conn);
	return 0;
}

int bnet_net_isend(struct bnet_conn *conn, void *data, uint64_t size, void *step, struct bnet_request **out)
{
	int rc = post(conn, data, size, step, out);

	if (rc == 0 && *out)
		bnet_progress_inline(conn);
	return rc;
}

int bnet_net_irecv(struct bnet_conn *conn, void *data, uint64_t size, void *step, struct bnet_request **out)
{
	int rc = post(conn, data, size, step, out);

	if (rc == 0 && *out)
		bnet_progress_posted_receive(conn);
	return rc;
}

int bnet_net_test(struct bnet_request *request, int *done, uint64_t *size)
{
	int rc = bnet_progress_test(request, size);

	if (rc)
		bnet_profile_end(request);
	*done = rc > 0;
	return rc > 0 ? 0 : rc;
}

void bnet_net_close(struct bnet_conn *conn)
{
	bnet_conn_own(conn);
	bnet_zerocopy_reset(conn);
	bnet_zerocopy_release(conn);
	bnet_lifecycle_close(conn);
}
