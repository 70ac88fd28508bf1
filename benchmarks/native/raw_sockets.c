/* SPDX-License-Identifier: MIT
 *
 * The limit: the same bytes in tight send and recv loops on non-blocking sockets, one per lane and direction, without
 * framing, requests or a second system call per message. The buffers rotate as in p2p.c, so that both touch the same
 * amount of memory. One thread per object.
 */
#include "traffic.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sched.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

struct pipe_end {
	int fd;
	char *slots;     /* inflight × slot_size */
	uint64_t number; /* of the message in progress */
	size_t moved;    /* bytes of it */
	bool ended;
};

struct raw {
	struct sockaddr_in own;
	int sndbuf;
	int lanes;
	int inflight;
	size_t slot_size;
	int listener;
	struct pipe_end send[TRAFFIC_MAX_LANES];
	struct pipe_end recv[TRAFFIC_MAX_LANES];
};

static int fail_errno(const char *call)
{
	int error = errno;

	return traffic_fail(-error, "%s: %s", call, strerror(error));
}

/* ---- setting up and taking down ---- */

int raw_create(struct raw **out, const char *address, int sndbuf, int lanes, int inflight, size_t largest)
{
	struct raw *raw;

	if (lanes < 1 || lanes > TRAFFIC_MAX_LANES || inflight < 1 || inflight > TRAFFIC_MAX_INFLIGHT)
		return traffic_fail(-EINVAL, "%d lanes with %d messages each are out of range", lanes, inflight);
	raw = calloc(1, sizeof(*raw));
	if (!raw)
		return traffic_fail(-ENOMEM, "no memory");
	raw->own.sin_family = AF_INET;
	if (inet_pton(AF_INET, address, &raw->own.sin_addr) != 1) {
		free(raw);
		return traffic_fail(-EINVAL, "%s is no IPv4 address", address);
	}
	raw->sndbuf = sndbuf;
	raw->lanes = lanes;
	raw->inflight = inflight;
	raw->slot_size = largest;
	raw->listener = -1;
	for (int i = 0; i < lanes; i++)
		raw->send[i].fd = raw->recv[i].fd = -1;
	*out = raw;
	return 0;
}

size_t raw_handle_size(const struct raw *raw)
{
	return sizeof(raw->own);
}

int raw_listen(struct raw *raw, void *handles)
{
	struct sockaddr_in address = raw->own;
	socklen_t length = sizeof(address);

	raw->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (raw->listener < 0)
		return fail_errno("socket");
	if (bind(raw->listener, (struct sockaddr *)&address, sizeof(address)) ||
	    listen(raw->listener, TRAFFIC_MAX_LANES) ||
	    getsockname(raw->listener, (struct sockaddr *)&address, &length))
		return fail_errno("listen");
	for (int i = 0; i < raw->lanes; i++)
		memcpy((char *)handles + (size_t)i * sizeof(address), &address, sizeof(address));
	return 0;
}

static int end_open(struct raw *raw, struct pipe_end *end)
{
	size_t size = (size_t)raw->inflight * raw->slot_size;
	int one = 1;

	if (setsockopt(end->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one)) ||
	    (raw->sndbuf && setsockopt(end->fd, SOL_SOCKET, SO_SNDBUF, &raw->sndbuf, sizeof(raw->sndbuf))) ||
	    fcntl(end->fd, F_SETFL, O_NONBLOCK))
		return fail_errno("socket options");
	end->slots = malloc(size);
	if (!end->slots)
		return traffic_fail(-ENOMEM, "no memory for %zu bytes of buffers", size);
	memset(end->slots, 1, size);
	return 0;
}

static int connect_one(struct raw *raw, struct pipe_end *end, const struct sockaddr_in *peer)
{
	end->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (end->fd < 0 || connect(end->fd, (const struct sockaddr *)peer, sizeof(*peer)))
		return fail_errno("connect");
	return end_open(raw, end);
}

static int accept_one(struct raw *raw, struct pipe_end *end, double timeout_s)
{
	struct pollfd ready = {.fd = raw->listener, .events = POLLIN};

	if (poll(&ready, 1, (int)(timeout_s * 1000)) != 1)
		return traffic_fail(-ETIMEDOUT, "the peer did not connect within %.0f s", timeout_s);
	end->fd = accept4(raw->listener, NULL, NULL, SOCK_CLOEXEC);
	return end->fd < 0 ? fail_errno("accept") : end_open(raw, end);
}

/* The kernel completes a connect before the peer accepts, so both ranks may connect first. */
int raw_connect(struct raw *raw, const void *peer_handles, double timeout_s)
{
	struct sockaddr_in peer;
	int err = 0;

	memcpy(&peer, peer_handles, sizeof(peer));
	for (int i = 0; i < raw->lanes && !err; i++)
		err = connect_one(raw, &raw->send[i], &peer);
	for (int i = 0; i < raw->lanes && !err; i++)
		err = accept_one(raw, &raw->recv[i], timeout_s);
	return err;
}

static void end_close(struct pipe_end *end)
{
	if (end->fd >= 0)
		close(end->fd);
	free(end->slots);
}

void raw_destroy(struct raw *raw)
{
	if (!raw)
		return;
	for (int i = 0; i < raw->lanes; i++) {
		end_close(&raw->send[i]);
		end_close(&raw->recv[i]);
	}
	if (raw->listener >= 0)
		close(raw->listener);
	free(raw);
}

/* ---- moving bytes ---- */

static void advance(struct pipe_end *end, size_t size, ssize_t moved)
{
	end->moved += (size_t)moved;
	if (end->moved == size) {
		end->moved = 0;
		end->number++;
	}
}

static char *position(const struct raw *raw, const struct pipe_end *end)
{
	return end->slots + end->number % (uint64_t)raw->inflight * raw->slot_size + end->moved;
}

/* Returns the bytes moved, 0 if there is no room, or -errno. */
static ssize_t send_some(struct raw *raw, struct pipe_end *end, size_t size)
{
	ssize_t sent = send(end->fd, position(raw, end), size - end->moved, MSG_NOSIGNAL);

	if (sent < 0)
		return errno == EAGAIN ? 0 : fail_errno("send");
	advance(end, size, sent);
	return sent;
}

/* The same; sets end->ended at the end of the stream. */
static ssize_t recv_some(struct raw *raw, struct pipe_end *end, size_t size)
{
	ssize_t received = recv(end->fd, position(raw, end), size - end->moved, 0);

	if (received < 0)
		return errno == EAGAIN ? 0 : fail_errno("recv");
	if (received == 0)
		end->ended = true;
	advance(end, size, received);
	return received;
}

/* ---- streaming ---- */

static int stream_pass(struct raw *raw, size_t size, uint64_t *bytes)
{
	bool idle = true;
	ssize_t moved;

	for (int i = 0; i < raw->lanes; i++) {
		moved = raw->send[i].ended ? 0 : send_some(raw, &raw->send[i], size);
		if (moved < 0)
			return (int)moved;
		idle &= moved == 0;
		moved = raw->recv[i].ended ? 0 : recv_some(raw, &raw->recv[i], size);
		if (moved < 0)
			return (int)moved;
		idle &= moved == 0;
		*bytes += (uint64_t)moved;
	}
	if (idle)
		sched_yield();
	return 0;
}

static int stream_until(struct raw *raw, size_t size, double end, uint64_t *bytes, double *now)
{
	int err = 0;

	do {
		err = stream_pass(raw, size, bytes);
		*now = traffic_now();
	} while (!err && *now < end);
	return err;
}

static int stream_drain(struct raw *raw, size_t size)
{
	uint64_t bytes = 0;
	bool ended = false;
	int err = 0;

	for (int i = 0; i < raw->lanes; i++) {
		raw->send[i].ended = true;
		if (shutdown(raw->send[i].fd, SHUT_WR))
			return fail_errno("shutdown");
	}
	while (!err && !ended) {
		err = stream_pass(raw, size, &bytes);
		ended = true;
		for (int i = 0; i < raw->lanes; i++)
			ended &= raw->recv[i].ended;
	}
	return err;
}

int raw_stream(struct raw *raw, size_t size, double warm_up_s, double window_s, struct traffic_window *out)
{
	uint64_t before = 0;
	uint64_t bytes = 0;
	double opened, closed, now;
	int err;

	err = stream_until(raw, size, traffic_now() + warm_up_s, &before, &opened);
	if (!err)
		err = stream_until(raw, size, opened + window_s, &bytes, &closed);
	if (err)
		return err;
	*out = (struct traffic_window){.bytes = bytes, .seconds = closed - opened};
	err = stream_until(raw, size, closed + TRAFFIC_TAIL_S, &before, &now);
	return err ? err : stream_drain(raw, size);
}

/* ---- ping-pong ---- */

static int move_message(struct raw *raw, struct pipe_end *end, size_t size,
			ssize_t (*some)(struct raw *, struct pipe_end *, size_t))
{
	uint64_t number = end->number;

	while (end->number == number) {
		ssize_t moved = some(raw, end, size);

		if (moved < 0)
			return (int)moved;
		if (end->ended)
			return traffic_fail(-ECONNRESET, "the peer ended the connection");
		if (moved == 0)
			sched_yield();
	}
	return 0;
}

int raw_pingpong(struct raw *raw, int first, size_t size, int warm_up, int rounds, double *half_us)
{
	int err = 0;

	for (int i = -warm_up; i < rounds && !err; i++) {
		double start = traffic_now();

		if (first)
			err = move_message(raw, &raw->send[0], size, send_some);
		if (!err)
			err = move_message(raw, &raw->recv[0], size, recv_some);
		if (!err && !first)
			err = move_message(raw, &raw->send[0], size, send_some);
		if (first && i >= 0)
			half_us[i] = (traffic_now() - start) * 1e6 / 2;
	}
	return err;
}
