/* SPDX-License-Identifier: MIT
 *
 * See listener.h.
 */
#include "handshake/listener.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/epoll.h>

#include "common/clock.h"
#include "base/descriptors.h"
#include "base/log.h"
#include "base/socket.h"
#include "engine/engine.h"

#define PAUSE_MS 100
/* What a process that closes other connections at that moment may take. */
#define SHORT_MS 2000
#define WARN_MS 60000
/* Callers that look so often look all the time. */
#define SPIN_MS 1

int bnet_listener_number(const struct bnet_nic *nic)
{
	return (int)(nic - bnet_engine.devices.nics);
}

static uint64_t listener_id(int nic)
{
	return (uint64_t)nic << 3 | BNET_WATCH_LISTENER;
}

static bool is_watched(const struct bnet_listener *listener)
{
	return !listener->paused_until_ms && !listener->by_callers;
}

static int watch_listener(int nic, int op)
{
	const struct bnet_listener *listener = &bnet_engine.listeners[nic];
	struct epoll_event event = {.events = is_watched(listener) ? EPOLLIN : 0, .data.u64 = listener_id(nic)};

	return epoll_ctl(bnet_engine.epoll, op, listener->fd, &event) < 0 ? -errno : 0;
}

/* A lease that has ended, or an administrator, may have taken it away. Another socket with it would tell. */
static bool has_lost_address(const struct bnet_nic *where)
{
	int fd = bnet_socket_open(where->addr.ss_family);
	int rc = fd < 0 ? fd : bnet_socket_bind_source(fd, &where->addr, NULL);

	if (fd >= 0)
		bnet_socket_close(fd);
	return rc == -EADDRNOTAVAIL;
}

static void explain_not_listening(const struct bnet_nic *where, struct bnet_ports ports, int error)
{
	const char *hint = bnet_shortage_remedy(error);

	if (error == -EADDRNOTAVAIL)
		hint = ". The interface has lost this address: start the process again";
	else if (error == -EACCES || error == -EPERM)
		hint = ": ports below 1024 are root's, and a security module may forbid others";
	else if (ports.first && !hint[0])
		hint = ". Widen BAGUA_NET_PORT_RANGE: every rank of this host takes one port of it";
	else if (error == -EADDRINUSE)
		hint = ". No port is free in net.ipv4.ip_local_port_range: widen it";
	bnet_warn("NET/BaguaNet: cannot listen on %s (%s), port %d-%d: %s%s", where->name, where->address, ports.first,
		  ports.last, strerror(-error), hint);
}

int bnet_listener_open(int nic)
{
	struct bnet_listener *listener = &bnet_engine.listeners[nic];
	const struct bnet_nic *where = &bnet_engine.devices.nics[nic];
	struct bnet_ports ports = bnet_engine.config.port_range;
	int rc;

	if (listener->fd >= 0 && !has_lost_address(where))
		return 0;
	rc = listener->fd >= 0 ? -EADDRNOTAVAIL : bnet_socket_listen(&where->addr, ports, &listener->addr);
	if (rc < 0) {
		explain_not_listening(where, ports, rc);
		return rc;
	}
	*listener = (struct bnet_listener){.fd = rc, .addr = listener->addr};
	rc = watch_listener(nic, EPOLL_CTL_ADD);
	if (rc < 0) {
		explain_not_listening(where, ports, rc);
		bnet_socket_close(listener->fd);
		listener->fd = -1;
	}
	return rc;
}

/* ---- a lack of descriptors ---- */

/* The queue stays readable: without a pause this thread would spin. */
void bnet_listener_pause(int nic, int error)
{
	struct bnet_listener *listener = &bnet_engine.listeners[nic];
	uint64_t now = bnet_now_ms();

	if (!listener->short_since_ms)
		listener->short_since_ms = now;
	listener->short_of = error;
	if (now >= listener->warn_at_ms) {
		bnet_warn_visibly("NET/BaguaNet: cannot accept a connection: %s%s", strerror(-error),
				  bnet_shortage_remedy(error));
		listener->warn_at_ms = now + WARN_MS;
	}
	listener->paused_until_ms = now + PAUSE_MS;
	watch_listener(nic, EPOLL_CTL_MOD);
}

int bnet_listeners_error(const struct bnet_device *dev, uint64_t since_ms)
{
	const uint64_t now = bnet_now_ms();

	for (int i = 0; i < dev->nmembers; i++) {
		const struct bnet_listener *listener = &bnet_engine.listeners[bnet_listener_number(dev->members[i])];

		if (listener->short_since_ms && now - listener->short_since_ms >= SHORT_MS &&
		    now - since_ms >= SHORT_MS)
			return listener->short_of;
	}
	return 0;
}

/* ---- callers ---- */

static void set_by_callers(int nic, bool by_callers)
{
	struct bnet_listener *listener = &bnet_engine.listeners[nic];

	if (listener->by_callers == by_callers || listener->fd < 0)
		return;
	listener->by_callers = by_callers;
	watch_listener(nic, EPOLL_CTL_MOD);
	bnet_engine_tick_soon();
}

/* Where callers look all the time, each event would wake the control thread in vain. */
void bnet_listener_look(int nic)
{
	struct bnet_listener *listener = &bnet_engine.listeners[nic];
	const uint64_t now = bnet_now_ms(), before = listener->looked_ms;

	listener->looked_ms = now;
	if (now - before <= SPIN_MS)
		set_by_callers(nic, true);
}

void bnet_listener_leave(int nic)
{
	bnet_engine.listeners[nic].looked_ms = 0;
	set_by_callers(nic, false);
}

/* ---- ticks ---- */

/* For whom there was no room may have gone meanwhile. */
static bool is_waiting(int fd)
{
	struct pollfd waits = {.fd = fd, .events = POLLIN};

	return fd >= 0 && poll(&waits, 1, 0) > 0;
}

void bnet_listeners_tick(uint64_t now)
{
	for (int i = 0; i < bnet_engine.devices.nnics; i++) {
		struct bnet_listener *listener = &bnet_engine.listeners[i];

		if (is_watched(listener))
			continue;
		if (listener->paused_until_ms && now >= listener->paused_until_ms) {
			listener->paused_until_ms = 0;
			listener->short_since_ms = is_waiting(listener->fd) ? listener->short_since_ms : 0;
		}
		if (now >= listener->looked_ms + BNET_TICK_MS)
			listener->by_callers = false;
		if (is_watched(listener) && listener->fd >= 0)
			watch_listener(i, EPOLL_CTL_MOD);
	}
}

bool bnet_listeners_wait(void)
{
	for (int i = 0; i < bnet_engine.devices.nnics; i++)
		if (!is_watched(&bnet_engine.listeners[i]))
			return true;
	return false;
}
