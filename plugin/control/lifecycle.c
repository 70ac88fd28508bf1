/* SPDX-License-Identifier: MIT
 *
 * See lifecycle.h.
 */
#include "control/lifecycle.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "common/clock.h"
#include "base/counters.h"
#include "base/crypto.h"
#include "base/log.h"
#include "base/secret.h"
#include "base/socket.h"
#include "control/active.h"
#include "device/scan.h"
#include "handshake/close.h"
#include "handshake/question.h"
#include "scaling/quota.h"
#include "stats/publish.h"
#include "scaling/path.h"
#include "transport/tx.h"
#include "transport/worker.h"

/* Nothing moves on it any more. A forked child has taken its copy out before. */
static void leave_list(struct bnet_conn *conn)
{
	bnet_list_remove(&conn->meter.node);
	if (bnet_list_empty(&conn->node))
		return;
	bnet_list_remove(&conn->node);
	bnet_conn_counts_add(&bnet_counts.ended, &conn->counts);
}

/* ---- fork ---- */

static void close_watches(struct bnet_node *head)
{
	bnet_list_each(node, head) {
		struct bnet_watch *watch = bnet_entry(node, struct bnet_watch, node);

		close(watch->fd);
		free(watch); /* every watch is its object's first member */
	}
}

/* A child that outlives its parent, such as a data loader, must not keep the parent's connections looking alive. It
 * gets an empty engine; inherited connections fail in the child, and can be closed there. */
static void after_fork_in_child(void)
{
	struct bnet_node doomed; /* nobody closes them again */

	bnet_list_init(&doomed);
	close_watches(&bnet_engine.inbound);
	close_watches(&bnet_engine.connectors);
	close_watches(&bnet_engine.drains);
	close_watches(&bnet_engine.questions);
	for (int i = 0; i < BNET_MAX_NICS; i++)
		if (bnet_engine.listeners[i].fd >= 0)
			close(bnet_engine.listeners[i].fd);
	bnet_list_each(node, &bnet_engine.conns) {
		struct bnet_conn *conn = bnet_entry(node, struct bnet_conn, node);
		bool moved;

		for (int i = 0; i < conn->nstreams; i++) {
			close(conn->streams[i]->fd);
			conn->streams[i]->fd = -1;
		}
		if (conn->epoll >= 0)
			close(conn->epoll);
		conn->epoll = -1;
		conn->worker = NULL;
		conn->ready.flag = 0;
		bnet_quota_early_over(conn);
		/* A thread that is not here may have left it in any state. */
		moved = atomic_exchange(&conn->owner, false);
		atomic_store(&conn->error, -ECHILD);
		leave_list(conn);
		bnet_table_remove(&conn->by_id);
		bnet_list_init(&conn->setup.connectors); /* freed above */
		bnet_list_init(&conn->setup.missing);
		if (conn->sender)
			bnet_list_init(&conn->setup.pending);
		if (conn->setup.closed && !moved)
			bnet_list_add(&doomed, &conn->setup.pending);
		bnet_work_item_init(&conn->work);
	}
	bnet_list_each(node, &bnet_engine.listens)
		bnet_listen_stop(bnet_entry(node, struct bnet_listen, node));
	bnet_paths_forget();
	bnet_quota_end();
	bnet_stats_forget();
	if (bnet_engine.running) {
		close(bnet_engine.epoll);
		close(bnet_engine.wake);
		bnet_engine.epoll = bnet_engine.wake = -1;
		bnet_engine.asleep_until_ms = 0;
	}
	bnet_workers_forget();
	bnet_readiness_forget();
	bnet_engine.running = false;
	atomic_store(&bnet_engine_wake_on_post, false);
	atomic_store(&bnet_counts.descriptors, 0);
	bnet_engine_init();
	bnet_engine_unlock_in_child();
	bnet_list_each(node, &doomed)
		bnet_lifecycle_discard(bnet_entry(node, struct bnet_conn, setup.pending));
}

/* ---- configuration ---- */

static void explain_no_device(int rc)
{
	const bool refused = rc == -EPERM || rc == -EACCES || rc == -EAFNOSUPPORT;
	const char *family = getenv("NCCL_SOCKET_FAMILY"), *prefixes = bnet_engine.config.address_prefix;

	if (rc == -EINVAL) {
		bnet_warn("NET/BaguaNet: NCCL_SOCKET_FAMILY=%s: not AF_INET or AF_INET6; unset it or use one of these",
			  family ? family : "");
		return;
	}
	bnet_warn("NET/BaguaNet: no network interface to use (%s%s). NCCL_SOCKET_IFNAME=%s NCCL_SOCKET_FAMILY=%s "
		  "BAGUA_NET_ADDRESS_PREFIX=%s",
		  strerror(-rc), refused ? ": a sandbox, or a service's settings, refuse it netlink sockets" : "",
		  bnet_device_ifname() ? bnet_device_ifname() : "(unset)", family ? family : "(unset)",
		  prefixes[0] ? prefixes : "(unset)");
	for (int i = 0; i < bnet_engine.devices.nrejected; i++) {
		const struct bnet_rejected *left = &bnet_engine.devices.rejected[i];

		bnet_warn("NET/BaguaNet: %s (%s) not used: %s", left->name,
			  left->address[0] ? left->address : "no address", left->reason);
	}
}

/* An unavailable congestion control costs one line, and the streams use the system's. It is tried once, not for every
 * stream. */
static void check_congestion(struct bnet_config *config, int family)
{
	char available[BNET_CONGESTIONS], allowed[BNET_CONGESTIONS];
	int rc = config->congestion[0] ? bnet_socket_try_congestion(family, config->congestion) : 0;

	if (rc == 0)
		return;
	bnet_socket_congestions("available", available);
	bnet_socket_congestions("allowed", allowed);
	bnet_warn("NET/BaguaNet: BAGUA_NET_CONGESTION=%s: %s; going on with the system's. The kernel has: %s. Without "
		  "CAP_NET_ADMIN a process may use: %s",
		  config->congestion,
		  rc == -ENOENT  ? "the kernel has no congestion control of that name, or its module is not loaded"
		  : rc == -EPERM ? "this process may not use it (net.ipv4.tcp_allowed_congestion_control)"
				 : strerror(-rc),
		  available, allowed);
	memset(config->congestion, 0, sizeof(config->congestion));
}

static void finish_drains(void);

static_assert(BNET_SECRET_LINE >= BNET_CONFIG_LINE, "a line of either kind has room");

/* A job in clear, whose user has asked for something else, must not depend on NCCL_DEBUG to learn of it. */
static void say_unknown(void)
{
	char err[BNET_CONFIG_LINE];
	bool grave = false;

	for (int number = 0; bnet_config_unknown(number, &grave, err, sizeof(err)) < 0; number++) {
		atomic_bool told = false; /* each of them */

		if (grave)
			bnet_log_visibly(&told, BNET_WAITS, BNET_FILE, __LINE__, "NET/BaguaNet: %s It is ignored", err);
		else
			bnet_warn("NET/BaguaNet: %s", err);
	}
}

static int configure(void)
{
	char err[BNET_SECRET_LINE];
	int rc;

	say_unknown();
	rc = bnet_config_read(&bnet_engine.config, err, sizeof(err));
	if (rc == 0)
		rc = bnet_secret_load(bnet_engine.config.secret_file, err, sizeof(err));
	if (rc == 0 && bnet_engine.config.encrypt && !bnet_secret_is_set()) {
		rc = -EINVAL;
		snprintf(err, sizeof(err), "BAGUA_NET_ENCRYPT=1: it needs a secret; set BAGUA_NET_SECRET_FILE as well");
	}
	if (rc < 0) {
		bnet_warn("NET/BaguaNet: %s", err);
		return rc;
	}
	rc = bnet_device_scan_here(&bnet_engine.devices);
	if (rc < 0) {
		explain_no_device(rc);
		return rc;
	}
	for (int i = 0; i < bnet_engine.devices.nrejected; i++)
		bnet_info(NCCL_INIT | NCCL_NET, "NET/BaguaNet: %s not used: %s", bnet_engine.devices.rejected[i].name,
			  bnet_engine.devices.rejected[i].reason);
	if (bnet_devices_make(&bnet_engine.devices, bnet_engine.config.bond, err, sizeof(err)) < 0)
		bnet_warn("NET/BaguaNet: %s", err);
	check_congestion(&bnet_engine.config, bnet_engine.devices.nics[0].addr.ss_family);
	bnet_crypto_at_exit(finish_drains);
	bnet_engine.local_ranks = bnet_local_ranks();
	bnet_stats_configure();
	bnet_workers_want(bnet_workers_choose(&bnet_engine.config, &bnet_engine.devices));
	bnet_engine_init();
	rc = pthread_atfork(bnet_engine_lock, bnet_engine_unlock, after_fork_in_child);
	if (rc)
		return -rc;
	bnet_engine.configured = true;
	return 0;
}

int bnet_lifecycle_configure(void)
{
	int rc;

	bnet_descriptors_reserve();
	bnet_engine_lock();
	rc = bnet_engine.configured ? 0 : configure();
	bnet_engine_unlock();
	return rc;
}

/* ---- connections ---- */

/* For as many connections as the quota has room for; the others get their streams when they move. */
static void open_recalled(struct bnet_conn *conn)
{
	const int streams = bnet_path_recalled(conn);

	if (streams && bnet_quota_early(conn, streams))
		bnet_path_open_recalled(conn);
}

void bnet_lifecycle_joined(const struct bnet_joined *joined)
{
	struct bnet_conn *conn = joined->conn;

	bnet_path_stream_joined(conn, joined->stream);
	if (!joined->first)
		return;
	bnet_path_ready(conn, joined->most);
	open_recalled(conn);
	bnet_worker_adopt(conn);
	pthread_cond_broadcast(&bnet_engine.changed);
}

static void leave_path(struct bnet_conn *conn)
{
	bnet_quota_early_over(conn);
	bnet_path_leave(conn);
}

void bnet_lifecycle_free(struct bnet_conn *conn)
{
	leave_path(conn);
	bnet_conn_free(conn);
}

/* ---- the end of a connection ---- */

/* Where BAGUA_NET_KEEPALIVE sets no limit: for how long a sender that was closed tries to deliver what it owes. */
#define CLOSED_S 120

/* An end takes three steps, so that nobody waits for the lock meanwhile: under the lock the connection is taken from
 * all who may find it, except that it stays in the list that keeps the control thread and its workers running; then,
 * without the lock, a worker's round is awaited and what has arrived is read; then, under the lock, its sockets are
 * closed or drain. Its memory is freed without the lock: the C library may return tens of megabytes to the kernel. */
static void detach(struct bnet_conn *conn, struct bnet_node *doomed)
{
	bnet_connectors_cancel(conn);
	bnet_questions_cancel(NULL, conn);
	bnet_worker_release(conn);
	leave_path(conn);
	bnet_table_remove(&conn->by_id);
	conn->setup.context = NULL;
	bnet_list_remove(&conn->setup.pending);
	bnet_list_add(doomed, &conn->setup.pending);
}

static void finish(struct bnet_conn *conn)
{
	bnet_workers_await();
	bnet_drain_prepare(conn);
	bnet_engine_lock();
	leave_list(conn);
	bnet_conn_unready(conn);
	if (bnet_engine.running)
		bnet_drain_start(conn);
	bnet_conn_close(conn);
	if (bnet_engine.running)
		bnet_engine_wake();
	bnet_engine_unlock();
	bnet_conn_free(conn);
}

static void finish_all(struct bnet_node *doomed)
{
	bnet_list_each(node, doomed)
		finish(bnet_entry(node, struct bnet_conn, setup.pending));
}

static void detach_listen(struct bnet_listen *listen, struct bnet_node *doomed)
{
	bnet_list_each(node, &listen->queue)
		detach(bnet_entry(node, struct bnet_conn, setup.pending), doomed);
	bnet_listen_stop(listen);
	free(listen);
	if (bnet_engine.running && bnet_engine_is_empty())
		bnet_engine_wake(); /* it ends */
}

void bnet_lifecycle_discard(struct bnet_conn *conn)
{
	struct bnet_node doomed;

	bnet_list_init(&doomed);
	bnet_engine_lock();
	bnet_active_forget(conn); /* nothing was ever posted on one that was not handed out */
	detach(conn, &doomed);
	bnet_engine_unlock();
	finish(conn);
}

/* Nothing that the caller has posted is left, so that whatever is owed is in copies. */
static bool may_end_later(struct bnet_conn *conn)
{
	return conn->sender && !atomic_load(&conn->error) && bnet_conn_outstanding(conn) == conn->buried &&
	       bnet_tx_owes(conn);
}

void bnet_lifecycle_close(struct bnet_conn *conn)
{
	const uint64_t seconds = conn->config->keepalive ? (uint64_t)conn->config->keepalive : CLOSED_S;

	if (!may_end_later(conn)) {
		bnet_lifecycle_discard(conn);
		return;
	}
	bnet_engine_lock();
	conn->setup.closed = true;
	conn->setup.context = NULL;
	conn->setup.until_ms = bnet_now_ms() + seconds * 1000;
	bnet_list_add(&bnet_engine.closed, &conn->setup.pending);
	bnet_drain_begin();
	bnet_engine_tick_soon();
	bnet_conn_disown(conn);
	bnet_engine_unlock();
}

/* True: its end has come, and it is owned. */
static bool is_over(struct bnet_conn *conn, uint64_t now)
{
	if (!bnet_conn_try_own(conn))
		return false;
	if (atomic_load(&conn->error) || now >= conn->setup.until_ms || !bnet_tx_owes(conn))
		return true;
	bnet_conn_disown(conn);
	return false;
}

/* Ended at a time where there are workers: each waits for their rounds, and other events wait meanwhile. */
#define ENDS 16

/* Each is looked at once. */
void bnet_lifecycle_end_closed(void)
{
	const uint64_t now = bnet_now_ms();
	const struct bnet_node *last;
	int ends = 0;

	bnet_engine_lock();
	last = bnet_engine.closed.prev;
	for (bool more = !bnet_list_empty(&bnet_engine.closed); more;) {
		struct bnet_node *node = bnet_engine.closed.next;
		struct bnet_conn *conn = bnet_entry(node, struct bnet_conn, setup.pending);

		more = node != last && ends < ENDS;
		bnet_list_remove(node);
		if (!is_over(conn, now)) {
			bnet_list_add(&bnet_engine.closed, node);
			continue;
		}
		ends += bnet_workers_wanted() > 0;
		bnet_engine_unlock();
		bnet_lifecycle_discard(conn);
		bnet_engine_lock();
	}
	if (bnet_list_empty(&bnet_engine.closed))
		pthread_cond_broadcast(&bnet_engine.changed);
	bnet_engine_unlock();
}

void bnet_lifecycle_discard_listen(struct bnet_listen *listen)
{
	struct bnet_node doomed;

	bnet_list_init(&doomed);
	bnet_engine_lock();
	detach_listen(listen, &doomed);
	bnet_engine_unlock();
	finish_all(&doomed);
}

/* Ten minutes. NCCL polls a connect without a pause. */
#define ABANDONED_LOOKS 60

void bnet_lifecycle_discard_abandoned(void)
{
	struct bnet_node doomed;

	bnet_list_init(&doomed);
	bnet_engine_lock();
	bnet_list_each(node, &bnet_engine.attempts) {
		struct bnet_conn *conn = bnet_entry(node, struct bnet_conn, setup.pending);

		if (++conn->setup.looks < ABANDONED_LOOKS)
			continue;
		bnet_info(NCCL_NET,
			  "NET/BaguaNet: the connection to %s is given up: nobody has asked for it for 10 minutes, as after "
			  "the abort of a communicator",
			  conn->peer);
		detach(conn, &doomed);
	}
	bnet_engine_unlock();
	finish_all(&doomed);
}

void bnet_lifecycle_discard_context(const void *context)
{
	struct bnet_node doomed;

	bnet_list_init(&doomed);
	bnet_engine_lock();
	bnet_list_each(node, &bnet_engine.listens) {
		struct bnet_listen *listen = bnet_entry(node, struct bnet_listen, node);

		if (listen->context == context)
			detach_listen(listen, &doomed);
	}
	bnet_list_each(node, &bnet_engine.conns) {
		struct bnet_conn *conn = bnet_entry(node, struct bnet_conn, node);

		if (conn->setup.context == context && !conn->setup.handed_out)
			detach(conn, &doomed);
	}
	bnet_engine_unlock();
	finish_all(&doomed);
}

/* ---- the process's end ---- */

/* At exit the control thread still runs: what it drains of our sends gets the rest of its budget. A process may end
 * inside a signal handler that interrupted a holder of the lock, so even the lock is not waited for longer. */
static void finish_drains(void)
{
	static bool finished;
	struct timespec until;
	uint64_t deadline_ms;

	if (finished)
		return;
	finished = true;
	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec++;
	if (!bnet_engine.configured || pthread_mutex_timedlock(&bnet_engine.lock, &until) != 0)
		return;
	deadline_ms = bnet_engine.drain_deadline_ms; /* those that end meanwhile may begin a budget */
	while (bnet_engine.running && (bnet_drains_matter() || !bnet_list_empty(&bnet_engine.closed))) {
		uint64_t now = bnet_now_ms();

		if (now >= deadline_ms)
			break;
		bnet_engine_wait((int)(deadline_ms - now));
	}
	bnet_stats_exit();
	bnet_engine_unlock();
}

/* The library is told of its end later than OpenSSL, which encrypts what is left. */
__attribute__((destructor)) static void at_the_end(void)
{
	finish_drains();
}
