/* SPDX-License-Identifier: MIT
 *
 * See close.h.
 */
#include "handshake/close.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "common/clock.h"
#include "base/socket.h"
#include "wire/wire.h"

#define BUDGET_MS 1000
/* Of one look at a socket. */
#define DISCARD_READS 16
#define DISCARD_BYTES 65536

struct drain {
	struct bnet_watch watch;
	bool sender;
};

bool bnet_drains_matter(void)
{
	return bnet_engine.ndraining_senders > 0;
}

static void end_drain(struct drain *drain)
{
	bnet_list_remove(&drain->watch.node);
	bnet_watch_close(&drain->watch);
	bnet_engine.ndraining_senders -= drain->sender;
	free(drain);
	if (!bnet_drains_matter())
		pthread_cond_broadcast(&bnet_engine.changed);
}

/* True: the peer has closed its side, or is gone. */
static bool discard_input(int fd)
{
	char scratch[DISCARD_BYTES];

	for (int i = 0; i < DISCARD_READS; i++) {
		/* MSG_TRUNC: nothing is copied. */
		ssize_t n = recv(fd, scratch, sizeof(scratch), MSG_DONTWAIT | MSG_TRUNC);

		if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR))
			return true;
		if (n < 0 && errno == EAGAIN)
			return false;
	}
	return false;
}

/* Without the lock: only this thread ends drains. */
static bool discard_unlocked(const struct drain *drain)
{
	bool over;

	bnet_engine_unlock();
	over = discard_input(drain->watch.fd);
	bnet_engine_lock();
	return over;
}

void bnet_drain_ready(struct bnet_watch *watch)
{
	struct drain *drain = (struct drain *)watch;

	if (discard_unlocked(drain))
		end_drain(drain);
}

void bnet_drains_tick(uint64_t now)
{
	bnet_list_each(node, &bnet_engine.drains) {
		struct drain *drain = bnet_entry(node, struct drain, watch.node);
		bool over = discard_unlocked(drain) || now >= drain->watch.deadline_ms;

		if (over || (drain->sender && bnet_socket_all_acknowledged(drain->watch.fd)))
			end_drain(drain);
	}
}

static bool prepare(int fd)
{
	shutdown(fd, SHUT_WR);
	return discard_input(fd);
}

/* True: the list owns the socket. False: nothing has to be waited for. */
static bool drain_later(int fd, bool sender)
{
	struct drain *drain;

	if (sender && bnet_socket_all_acknowledged(fd))
		return false;
	drain = calloc(1, sizeof(*drain));
	if (!drain)
		return false;
	bnet_watch_init(&drain->watch, fd);
	drain->watch.deadline_ms = bnet_engine.drain_deadline_ms;
	drain->sender = sender;
	if (bnet_watch_add(&drain->watch, BNET_WATCH_DRAIN, EPOLLIN | EPOLLRDHUP | EPOLLET) < 0) {
		free(drain);
		return false;
	}
	bnet_list_add(&bnet_engine.drains, &drain->watch.node);
	bnet_engine.ndraining_senders += sender;
	return true;
}

void bnet_drain_begin(void)
{
	uint64_t now = bnet_now_ms();

	if (bnet_list_empty(&bnet_engine.drains) || now >= bnet_engine.drain_deadline_ms)
		bnet_engine.drain_deadline_ms = now + BUDGET_MS;
}

void bnet_drain_socket(int fd, bool sender)
{
	bnet_drain_begin();
	if (prepare(fd) || !drain_later(fd, sender))
		bnet_socket_close(fd);
}

/* Is something left of a broken stream? Nobody sends it any more. */
static bool owes_something(const struct bnet_conn *conn)
{
	for (int i = 0; i < conn->nstreams; i++)
		if (conn->streams[i]->replaces && conn->streams[i]->replaces->ledger.count)
			return true;
	bnet_list_each(node, &conn->broken)
		if (bnet_entry(node, struct bnet_stream, node)->ledger.count)
			return true;
	return false;
}

/* A receiver whose receives are left over then knows that nothing is lost. Without room for it now, it takes the end
 * for that of a process. A stream may have been reset while it was idle. */
static void say_closed(const struct bnet_conn *conn)
{
	enum bnet_wire_frame_type type = BNET_WIRE_FRAME_CLOSE;

	if (!conn->sender || conn->nstreams == 0 || atomic_load(&conn->error))
		return;
	if (owes_something(conn))
		type = BNET_WIRE_FRAME_FAILED;
	else if (bnet_conn_has_work(conn))
		return;
	for (int i = 0; i < conn->nstreams; i++)
		if (bnet_stream_say(conn->streams[i], type))
			return;
}

void bnet_drain_prepare(struct bnet_conn *conn)
{
	say_closed(conn);
	for (int i = 0; i < conn->nstreams; i++)
		conn->streams[i]->hangup = conn->streams[i]->fd >= 0 && prepare(conn->streams[i]->fd);
}

void bnet_drain_start(struct bnet_conn *conn)
{
	bnet_drain_begin();
	for (int i = 0; i < conn->nstreams; i++)
		if (conn->streams[i]->fd >= 0 && !conn->streams[i]->hangup &&
		    drain_later(conn->streams[i]->fd, conn->sender))
			conn->streams[i]->fd = -1;
}
