/* SPDX-License-Identifier: MIT
 *
 * The process-wide state and its beginning, its end and its forks; see engine.h. The control thread's loop is in
 * control.c.
 */
#include "engine/engine.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#include "control/control.h"
#include "base/counters.h"
#include "base/log.h"
#include "base/socket.h"
#include "transport/worker.h"

struct bnet_engine bnet_engine = {.lock = PTHREAD_MUTEX_INITIALIZER, .epoll = -1, .wake = -1};
_Atomic bool bnet_engine_dozing;

uint64_t bnet_now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

uint64_t bnet_now_us(void)
{
	return bnet_now_ns() / 1000;
}

uint64_t bnet_now_ms(void)
{
	return bnet_now_ns() / 1000000;
}

uint64_t bnet_random(void)
{
	uint64_t value = 0;

	while (value == 0)
		if (getrandom(&value, sizeof(value), 0) != sizeof(value))
			value = (uint64_t)(uintptr_t)&value ^ bnet_now_ms() << 20 ^ (uint64_t)getpid();
	return value;
}

void bnet_engine_lock(void)
{
	pthread_mutex_lock(&bnet_engine.lock);
}

void bnet_engine_unlock(void)
{
	pthread_mutex_unlock(&bnet_engine.lock);
}

/* ---- fork ---- */

static void init_changed(void)
{
	pthread_condattr_t attr;

	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&bnet_engine.changed, &attr);
	pthread_condattr_destroy(&attr);
}

static void init_lists(void)
{
	bnet_list_init(&bnet_engine.listens);
	bnet_list_init(&bnet_engine.conns);
	bnet_list_init(&bnet_engine.paths);
	bnet_list_init(&bnet_engine.guests);
	bnet_list_init(&bnet_engine.dials);
	bnet_list_init(&bnet_engine.drains);
	for (int i = 0; i < BNET_MAX_NICS; i++)
		bnet_engine.listeners[i].fd = -1;
	bnet_engine.nguests = 0;
}

static void close_watches(struct bnet_node *head)
{
	bnet_list_each(node, head) {
		struct bnet_watch *watch = bnet_entry(node, struct bnet_watch, node);

		close(watch->fd);
		free(watch); /* every watch is its object's first member */
	}
}

/* A child that lives on, a data loader for one, must not keep its parent's connections looking alive. It gets an empty
 * engine of its own; the connections that it inherited fail in it, and can be closed. */
static void after_fork_in_child(void)
{
	close_watches(&bnet_engine.guests);
	close_watches(&bnet_engine.dials);
	close_watches(&bnet_engine.drains);
	for (int i = 0; i < BNET_MAX_NICS; i++)
		if (bnet_engine.listeners[i].fd >= 0)
			close(bnet_engine.listeners[i].fd);
	bnet_list_each(node, &bnet_engine.conns) {
		struct bnet_conn *conn = bnet_entry(node, struct bnet_conn, node);

		for (int i = 0; i < conn->nstreams; i++) {
			close(conn->streams[i]->fd);
			conn->streams[i]->fd = -1;
		}
		if (conn->epoll >= 0)
			close(conn->epoll);
		conn->epoll = -1;
		conn->worker = NULL;
		atomic_store(&conn->error, -ECHILD);
		atomic_store(&conn->owner, false);
		bnet_list_remove(node);
	}
	bnet_list_each(node, &bnet_engine.listens)
		bnet_list_remove(node);
	bnet_list_each(node, &bnet_engine.paths)
		bnet_list_remove(node);
	if (bnet_engine.running) {
		close(bnet_engine.epoll);
		close(bnet_engine.wake);
		bnet_engine.epoll = bnet_engine.wake = -1;
	}
	bnet_workers_forget();
	bnet_engine.running = false;
	atomic_store(&bnet_engine_dozing, false);
	atomic_store(&bnet_counts.descriptors, 0);
	init_lists();
	init_changed();
	pthread_mutex_unlock(&bnet_engine.lock);
}

/* ---- configuration ---- */

static void explain_no_device(int rc)
{
	bnet_warn("NET/BaguaNet: no network interface to use (%s). NCCL_SOCKET_IFNAME=%s NCCL_SOCKET_FAMILY=%s",
		  strerror(-rc), getenv("NCCL_SOCKET_IFNAME") ? getenv("NCCL_SOCKET_IFNAME") : "(unset)",
		  getenv("NCCL_SOCKET_FAMILY") ? getenv("NCCL_SOCKET_FAMILY") : "(unset)");
	for (int i = 0; i < bnet_engine.devices.nrejected; i++)
		bnet_warn("NET/BaguaNet: %s not used: %s", bnet_engine.devices.rejected[i].name,
			  bnet_engine.devices.rejected[i].reason);
}

/* A congestion control that cannot be had costs a line, and the streams have the system's. Asked once, not for every
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

static int configure(void)
{
	char err[256];
	int rc;

	rc = bnet_config_read(&bnet_engine.config, err, sizeof(err));
	if (rc < 0) {
		bnet_warn("NET/BaguaNet: %s", err);
		return rc;
	}
	if (bnet_config_unknown(err, sizeof(err)) < 0)
		bnet_warn("NET/BaguaNet: %s", err);
	rc = bnet_device_scan(&bnet_engine.devices, getenv("NCCL_SOCKET_IFNAME"), getenv("NCCL_SOCKET_FAMILY"));
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
	bnet_engine.workers = bnet_workers_choose(&bnet_engine.config, &bnet_engine.devices);
	init_lists();
	init_changed();
	rc = pthread_atfork(bnet_engine_lock, bnet_engine_unlock, after_fork_in_child);
	if (rc)
		return -rc;
	bnet_engine.configured = true;
	return 0;
}

int bnet_engine_configure(void)
{
	int rc;

	bnet_engine_lock();
	rc = bnet_engine.configured ? 0 : configure();
	bnet_engine_unlock();
	return rc;
}

/* ---- the thread's start and the process's end ---- */

int bnet_engine_start(void)
{
	struct epoll_event event = {.events = EPOLLIN, .data.u64 = BNET_WATCH_WAKE};
	int rc;

	if (bnet_engine.running)
		return 0;
	bnet_engine.epoll = bnet_fd_opened(epoll_create1(EPOLL_CLOEXEC));
	if (bnet_engine.epoll < 0)
		return bnet_engine.epoll;
	bnet_engine.wake = bnet_fd_opened(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
	rc = bnet_engine.wake;
	if (rc >= 0 && epoll_ctl(bnet_engine.epoll, EPOLL_CTL_ADD, bnet_engine.wake, &event) < 0)
		rc = -errno;
	if (rc >= 0)
		rc = bnet_control_spawn();
	if (rc < 0) {
		bnet_socket_close(bnet_engine.wake);
		bnet_socket_close(bnet_engine.epoll);
		bnet_engine.wake = bnet_engine.epoll = -1;
		return rc;
	}
	bnet_engine.running = true;
	return 0;
}

void bnet_engine_wake(void)
{
	uint64_t one = 1;

	atomic_store(&bnet_engine_dozing, false);
	if (bnet_engine.wake >= 0 && write(bnet_engine.wake, &one, sizeof(one)) < 0)
		return; /* full: it is awake */
}

void bnet_engine_wait(int ms)
{
	struct timespec until;

	clock_gettime(CLOCK_MONOTONIC, &until);
	until.tv_nsec += (long)(ms % 1000) * 1000000;
	until.tv_sec += ms / 1000 + until.tv_nsec / 1000000000;
	until.tv_nsec %= 1000000000;
	pthread_cond_timedwait(&bnet_engine.changed, &bnet_engine.lock, &until);
}

/* At exit the control thread still runs: what it drains of our sends gets the rest of its budget. A process may end
 * inside a signal handler that interrupted a holder of the lock, so even the lock is not waited for longer. */
__attribute__((destructor)) static void finish_drains(void)
{
	struct timespec until;

	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec++;
	if (!bnet_engine.configured || pthread_mutex_timedlock(&bnet_engine.lock, &until) != 0)
		return;
	while (bnet_engine.running && bnet_drains_matter()) {
		uint64_t now = bnet_now_ms();

		if (now >= bnet_engine.drain_deadline_ms)
			break;
		bnet_engine_wait((int)(bnet_engine.drain_deadline_ms - now));
	}
	bnet_engine_unlock();
}

/* ---- descriptors under the control thread's eye ---- */

int bnet_watch_add(struct bnet_watch *watch, enum bnet_watch_kind kind, uint32_t events)
{
	struct epoll_event event = {.events = events};

	watch->id = ++bnet_engine.serial << 3 | kind;
	event.data.u64 = watch->id;
	return epoll_ctl(bnet_engine.epoll, EPOLL_CTL_ADD, watch->fd, &event) < 0 ? -errno : 0;
}

int bnet_watch_change(struct bnet_watch *watch, uint32_t events)
{
	struct epoll_event event = {.events = events, .data.u64 = watch->id};

	return epoll_ctl(bnet_engine.epoll, EPOLL_CTL_MOD, watch->fd, &event) < 0 ? -errno : 0;
}

void bnet_watch_remove(struct bnet_watch *watch)
{
	epoll_ctl(bnet_engine.epoll, EPOLL_CTL_DEL, watch->fd, NULL);
}
