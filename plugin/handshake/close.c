/* SPDX-License-Identifier: MIT
 *
 * See close.h.
 */
#include "handshake/close.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "base/clock.h"
#include "base/socket.h"

#define BUDGET_MS 1000
#define DISCARD_READS 64

struct drain {
	struct bnet_watch watch;
	bool sender;
};

bool bnet_drains_matter(void)
{
	bnet_list_each(node, &bnet_engine.drains)
		if (bnet_entry(node, struct drain, watch.node)->sender)
			return true;
	return false;
}

static void end_drain(struct drain *drain)
{
	bnet_list_remove(&drain->watch.node);
	bnet_socket_close(drain->watch.fd);
	free(drain);
	if (!bnet_drains_matter())
		pthread_cond_broadcast(&bnet_engine.changed);
}

/* True: the peer has closed its side, or is gone. */
static bool discard_input(int fd)
{
	char scratch[16384];

	for (int i = 0; i < DISCARD_READS; i++) {
		ssize_t n = recv(fd, scratch, sizeof(scratch), MSG_DONTWAIT);

		if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR))
			return true;
		if (n < 0 && errno == EAGAIN)
			return false;
	}
	return false;
}

void bnet_drain_ready(struct bnet_watch *watch)
{
	struct drain *drain = (struct drain *)watch;

	if (discard_input(watch->fd))
		end_drain(drain);
}

void bnet_drains_tick(uint64_t now)
{
	bnet_list_each(node, &bnet_engine.drains) {
		struct drain *drain = bnet_entry(node, struct drain, watch.node);
		bool over = discard_input(drain->watch.fd) || now >= drain->watch.deadline_ms;

		if (over || (drain->sender && bnet_socket_all_acknowledged(drain->watch.fd)))
			end_drain(drain);
	}
}

/* True: the list owns the socket. False: nothing has to be waited for. */
static bool drain_later(int fd, bool sender)
{
	struct drain *drain;

	shutdown(fd, SHUT_WR);
	if (discard_input(fd) || (sender && bnet_socket_all_acknowledged(fd)))
		return false;
	drain = calloc(1, sizeof(*drain));
	if (!drain)
		return false;
	drain->watch.fd = fd;
	drain->watch.deadline_ms = bnet_engine.drain_deadline_ms;
	drain->sender = sender;
	if (bnet_watch_add(&drain->watch, BNET_WATCH_DRAIN, EPOLLIN | EPOLLRDHUP | EPOLLET) < 0) {
		free(drain);
		return false;
	}
	bnet_list_add(&bnet_engine.drains, &drain->watch.node);
	return true;
}

static void begin_budget(void)
{
	uint64_t now = bnet_now_ms();

	if (bnet_list_empty(&bnet_engine.drains) || now >= bnet_engine.drain_deadline_ms)
		bnet_engine.drain_deadline_ms = now + BUDGET_MS;
}

void bnet_drain_socket(int fd, bool sender)
{
	begin_budget();
	if (!drain_later(fd, sender))
		bnet_socket_close(fd);
}

void bnet_drain_start(struct bnet_conn *conn)
{
	begin_budget();
	for (int i = 0; i < conn->nstreams; i++)
		if (conn->streams[i]->fd >= 0 && drain_later(conn->streams[i]->fd, conn->sender))
			conn->streams[i]->fd = -1;
}
