/* SPDX-License-Identifier: MIT
 *
 * See zerocopy.h.
 */
#include "transport/zerocopy.h"

#include <errno.h>
#include <linux/errqueue.h>
#include <netinet/in.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>

#include "common/clock.h"
#include "base/log.h"
#include "base/socket.h"
#include "transport/request.h"

/* Missing in kernel headers before Linux 4.14. */
#ifndef SO_ZEROCOPY
#define SO_ZEROCOPY 60
#endif
#ifndef MSG_ZEROCOPY
#define MSG_ZEROCOPY 0x4000000
#endif
#ifndef SO_EE_ORIGIN_ZEROCOPY
#define SO_EE_ORIGIN_ZEROCOPY 5
#endif
#ifndef SO_EE_CODE_ZEROCOPY_COPIED
#define SO_EE_CODE_ZEROCOPY_COPIED 1
#endif

/* Less is copied faster than its pages are looked up. */
#define MIN_BYTES 32768
/* A trial ends after this much each way, some hundred calls. */
#define TRIAL_BYTES (16u << 20)
/* Sending without a copy must cost at most this much of sending with one, since a send then ends with the peer's
 * acknowledgement and not with the call. */
#define COST_PERCENT 90
/* How long the kernel may take to release the pages of sockets that were reset: for all of the process that are
 * released within a second. A communicator of a thousand connections must not take minutes to end. */
#define RELEASE_MS 100
#define RELEASE_EVERY_MS 1000

enum bnet_zerocopy_mode bnet_zerocopy_judge(const struct bnet_zerocopy *zerocopy)
{
	const struct bnet_zerocopy_cost *with = &zerocopy->with_copy, *without = &zerocopy->without_copy;

	if (with->bytes < TRIAL_BYTES || without->bytes < TRIAL_BYTES)
		return BNET_ZEROCOPY_TRIAL;
	/* In ns per MiB, integers resolve a percent. */
	return without->ns / (without->bytes >> 20) * 100 <= with->ns / (with->bytes >> 20) * COST_PERCENT
		       ? BNET_ZEROCOPY_ON
		       : BNET_ZEROCOPY_OFF;
}

void bnet_zerocopy_start(struct bnet_conn *conn)
{
	conn->zerocopy.forced = conn->config->zerocopy > 0;
	if (conn->zerocopy.forced)
		conn->zerocopy.mode = BNET_ZEROCOPY_ON;
	else if (conn->config->zerocopy < 0 && !conn->setup.local)
		conn->zerocopy.mode = BNET_ZEROCOPY_TRIAL;
}

static void decide(struct bnet_conn *conn, enum bnet_zerocopy_mode mode, const char *why)
{
	if (conn->zerocopy.mode == mode)
		return;
	conn->zerocopy.mode = mode;
	bnet_info(NCCL_NET, "NET/BaguaNet: sends to %s go %s a copy: %s", conn->peer,
		  mode == BNET_ZEROCOPY_ON ? "without" : "with", why);
}

/* ---- sending ---- */

/* The kernel holds the memory until the acknowledgement, which takes too long on a long path. */
static bool is_short(const struct bnet_stream *stream)
{
	uint32_t rtt_us = atomic_load_explicit(&stream->estimator.min_rtt_us, memory_order_relaxed);

	return rtt_us > 0 && rtt_us <= BNET_SHORT_RTT_US;
}

static bool matters(const struct bnet_conn *conn, const struct bnet_stream *stream)
{
	return conn->zerocopy.forced || is_short(stream);
}

static bool enable(struct bnet_conn *conn, struct bnet_stream *stream)
{
	int one = 1;

	if (!stream->zerocopy.enabled && setsockopt(stream->fd, SOL_SOCKET, SO_ZEROCOPY, &one, sizeof(one)) < 0)
		decide(conn, BNET_ZEROCOPY_OFF, strerror(errno));
	else
		stream->zerocopy.enabled = true;
	return stream->zerocopy.enabled;
}

bool bnet_zerocopy_wants(struct bnet_conn *conn, struct bnet_stream *stream)
{
	const struct bnet_zerocopy *zerocopy = &conn->zerocopy;
	uint32_t pending = stream->zerocopy.made - stream->zerocopy.notified;

	if (zerocopy->mode == BNET_ZEROCOPY_OFF || stream->out.left < MIN_BYTES || pending >= BNET_ZEROCOPY_PENDING)
		return false;
	/* Any notification may end the trial, so the next call without a copy waits for it. */
	if (zerocopy->mode == BNET_ZEROCOPY_TRIAL &&
	    (pending || zerocopy->without_copy.bytes > zerocopy->with_copy.bytes))
		return false;
	return matters(conn, stream) && enable(conn, stream);
}

uint64_t bnet_zerocopy_clock(const struct bnet_conn *conn, const struct bnet_stream *stream)
{
	bool counts = conn->zerocopy.mode == BNET_ZEROCOPY_TRIAL && stream->out.left >= MIN_BYTES && is_short(stream);

	return counts ? bnet_now_ns() : 0;
}

void bnet_zerocopy_cost(struct bnet_conn *conn, bool without_copy, uint64_t bytes, uint64_t since)
{
	struct bnet_zerocopy_cost *cost = without_copy ? &conn->zerocopy.without_copy : &conn->zerocopy.with_copy;

	if (since == 0 || conn->zerocopy.mode != BNET_ZEROCOPY_TRIAL)
		return;
	cost->bytes += bytes;
	cost->ns += bnet_now_ns() - since;
	if (bnet_zerocopy_judge(&conn->zerocopy) == BNET_ZEROCOPY_ON)
		decide(conn, BNET_ZEROCOPY_ON, "that takes less time");
	else if (bnet_zerocopy_judge(&conn->zerocopy) == BNET_ZEROCOPY_OFF)
		decide(conn, BNET_ZEROCOPY_OFF, "without takes no less time");
}

static ssize_t send_rest(struct bnet_conn *conn, const struct bnet_stream *stream, int flags)
{
	ssize_t n;

	do
		n = send(stream->fd, stream->out.data, stream->out.left, MSG_DONTWAIT | MSG_NOSIGNAL | flags);
	while (n < 0 && errno == EINTR);
	bnet_conn_count(conn, send_calls, 1);
	return n < 0 ? -errno : n;
}

/* Pages count against the limit of locked memory, notifications against the socket's option memory; and some memory
 * cannot be pinned. */
static void refused(struct bnet_conn *conn, int error)
{
	if (!conn->zerocopy.forced)
		decide(conn, BNET_ZEROCOPY_OFF,
		       error == -ENOBUFS ? "the kernel's limit is reached (ulimit -l, net.core.optmem_max)"
					 : strerror(-error));
}

ssize_t bnet_zerocopy_send(struct bnet_conn *conn, struct bnet_stream *stream)
{
	struct bnet_zerocopy_calls *calls = &stream->zerocopy;
	ssize_t n = send_rest(conn, stream, MSG_ZEROCOPY);

	if (n == -ENOBUFS || n == -EFAULT) {
		refused(conn, (int)n);
		return send_rest(conn, stream, 0);
	}
	if (n <= 0)
		return n;
	calls->over[calls->made++ % BNET_ZEROCOPY_PENDING] = false;
	stream->out.pinned = true;
	bnet_conn_count(conn, zerocopy_calls, 1);
	return n;
}

/* ---- notifications ---- */

/* The calls first … last are over. Notifications arrive in order, but the kernel does not guarantee it. */
static void end_calls(struct bnet_zerocopy_calls *calls, uint32_t first, uint32_t last)
{
	for (uint32_t call = calls->notified; call != calls->made; call++)
		if (call - first <= last - first)
			calls->over[call % BNET_ZEROCOPY_PENDING] = true;
	while (calls->notified != calls->made && calls->over[calls->notified % BNET_ZEROCOPY_PENDING])
		calls->notified++;
}

static bool is_error(const struct cmsghdr *part)
{
	return (part->cmsg_level == IPPROTO_IP && part->cmsg_type == IP_RECVERR) ||
	       (part->cmsg_level == IPPROTO_IPV6 && part->cmsg_type == IPV6_RECVERR);
}

/* False: no notification is there. */
static bool take_one(struct bnet_conn *conn, struct bnet_stream *stream)
{
	union {
		struct cmsghdr align;
		char bytes[CMSG_SPACE(sizeof(struct sock_extended_err) + sizeof(struct sockaddr_in6))];
	} control;
	struct msghdr msg = {.msg_control = control.bytes, .msg_controllen = sizeof(control.bytes)};

	if (recvmsg(stream->fd, &msg, MSG_ERRQUEUE | MSG_DONTWAIT) < 0)
		return false;
	for (struct cmsghdr *part = CMSG_FIRSTHDR(&msg); part; part = CMSG_NXTHDR(&msg, part)) {
		struct sock_extended_err error;

		if (!is_error(part))
			continue;
		memcpy(&error, CMSG_DATA(part), sizeof(error));
		if (error.ee_errno || error.ee_origin != SO_EE_ORIGIN_ZEROCOPY)
			continue;
		end_calls(&stream->zerocopy, error.ee_info, error.ee_data);
		if (!(error.ee_code & SO_EE_CODE_ZEROCOPY_COPIED))
			continue;
		bnet_conn_count(conn, zerocopy_copied, 1);
		if (!conn->zerocopy.forced)
			decide(conn, BNET_ZEROCOPY_OFF, "the kernel copies all the same");
	}
	return true;
}

void bnet_zerocopy_reap(struct bnet_conn *conn, struct bnet_stream *stream)
{
	uint64_t since = conn->zerocopy.mode == BNET_ZEROCOPY_TRIAL ? bnet_now_ns() : 0;
	bool any = false;

	while (bnet_zerocopy_pending(&stream->zerocopy) && take_one(conn, stream))
		any = true;
	if (any)
		bnet_zerocopy_cost(conn, true, 0, since);
}

/* ---- the end ---- */

void bnet_zerocopy_reset(struct bnet_conn *conn)
{
	for (int i = 0; i < conn->nstreams; i++)
		if (bnet_zerocopy_pending(&conn->streams[i]->zerocopy))
			bnet_socket_reset(conn->streams[i]->fd);
}

static uint64_t release_until(void)
{
	static _Atomic uint64_t began;
	uint64_t now = bnet_now_ms(), last = atomic_load(&began);

	if (now - last >= RELEASE_EVERY_MS && atomic_compare_exchange_strong(&began, &last, now))
		last = now;
	return last + RELEASE_MS;
}

void bnet_zerocopy_release(struct bnet_conn *conn)
{
	uint64_t until = release_until();

	for (int i = 0; i < conn->nstreams; i++) {
		struct bnet_stream *stream = conn->streams[i];
		struct pollfd pollfd = {.fd = stream->fd};
		uint64_t now;

		for (bnet_zerocopy_reap(conn, stream); bnet_zerocopy_pending(&stream->zerocopy);
		     bnet_zerocopy_reap(conn, stream)) {
			now = bnet_now_ms();
			if (now >= until || poll(&pollfd, 1, (int)(until - now)) < 0)
				break;
		}
	}
}
