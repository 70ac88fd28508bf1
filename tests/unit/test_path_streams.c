/* SPDX-License-Identifier: MIT
 *
 * What a path does with its connections' streams: send buffers follow the path, pauses do not count, and a stream that
 * rests is closed once its bytes have arrived. The smallest round trip that the kernel reports is interposed.
 */
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "bagua_net.h"
#include "common/clock.h"
#include "base/socket.h"
#include "engine/engine.h"
#include "oneself.h"
#include "scaling/path.h"
#include "scaling/path_sample.h"
#include "scaling/sampler.h"

#define DEADLINE_S 250
#define STREAMS 2
#define TICK_US 20000

static struct bnet_client client;

/* ---- interposed ---- */

static _Atomic uint32_t min_rtt_us; /* 0: the kernel's */

int getsockopt(int fd, int level, int option, void *value, socklen_t *size)
{
	int rc = (int)syscall(SYS_getsockopt, fd, level, option, value, size);

	if (level == IPPROTO_TCP && option == TCP_INFO && min_rtt_us)
		((struct tcp_info *)value)->tcpi_min_rtt = min_rtt_us;
	return rc;
}

/* ---- send buffers ---- */

static int64_t send_buffer(const struct bnet_stream *stream)
{
	int bytes = 0;
	socklen_t size = sizeof(bytes);

	check_int(getsockopt(stream->fd, SOL_SOCKET, SO_SNDBUF, &bytes, &size), 0);
	return bytes / 2; /* the kernel doubles it */
}

/* The speed assumed for the loopback interface and these round trips call for the smallest buffer, and for the
 * largest. */
static void send_buffers_follow_the_path(void)
{
	struct oneself ends;
	struct bnet_conn *conn;
	struct bnet_stream *stream;

	min_rtt_us = 20;
	ends = connect_to_oneself(&client);
	conn = ends.send;
	stream = conn->streams[0];
	bnet_engine_lock();
	check_int(stream->estimator.sndbuf, BNET_SNDBUF_MIN);
	check_int(send_buffer(stream), BNET_SNDBUF_MIN);
	min_rtt_us = 2 * BNET_SHORT_RTT_US;
	bnet_path_sample_conn(conn, bnet_now_us(), false);
	check_int(stream->estimator.sndbuf, bnet_sndbuf_most() > bnet_sndbuf_tuned() / 2 ? bnet_sndbuf_most() : 0);
	bnet_socket_set_sndbuf(stream->fd, BNET_SNDBUF_MIN / 2);
	min_rtt_us = 20;
	bnet_path_sample_conn(conn, bnet_now_us(), false);
	check_int(stream->estimator.sndbuf, BNET_SNDBUF_MIN);
	check_int(send_buffer(stream), BNET_SNDBUF_MIN);
	min_rtt_us = 0;
	bnet_engine_unlock();
	close_to_oneself(&client, ends);
}

static void sample(struct bnet_conn *conn)
{
	bnet_engine_lock();
	bnet_path_sample_conn(conn, bnet_now_us(), false);
	bnet_engine_unlock();
}

static void send_buffers_follow_the_messages(void)
{
	static char from[1 << 20], into[1 << 20];
	const int64_t large = bnet_sndbuf_most() < 512 * 1024 ? bnet_sndbuf_most() : 512 * 1024;
	struct oneself ends;
	struct bnet_conn *conn;

	min_rtt_us = 1;
	ends = connect_to_oneself(&client);
	conn = ends.send;
	pass_to_oneself(&client, ends, from, into, sizeof(from));
	sample(conn);
	check_int(send_buffer(conn->streams[0]), large);
	sample(conn); /* nothing was sent in between */
	check_int(send_buffer(conn->streams[0]), large);
	pass_to_oneself(&client, ends, from, into, sizeof(from) / 4);
	sample(conn);
	check_int(send_buffer(conn->streams[0]), large);
	send_to_oneself(&client, ends);
	sample(conn);
	check_int(send_buffer(conn->streams[0]), BNET_SNDBUF_MIN);
	min_rtt_us = 0;
	close_to_oneself(&client, ends);
}

/* ---- samples ---- */

/* A sample, a while after the last one, in which the connection has moved. Returns how many of its streams count. */
static uint32_t counted(struct oneself ends, bool was_idle, uint64_t idle_until_us)
{
	struct bnet_conn *conn = ends.send;
	uint64_t now_us = conn->streams[0]->estimator.last_us + TICK_US;
	struct bnet_path *path = conn->path;

	bnet_engine.idle_until_us = idle_until_us;
	move_oneself(ends);
	conn->was_idle = was_idle;
	conn->passes_sampled = conn->passes - 1;
	bnet_sampler_read(now_us);
	check_int(path->sampled_us, now_us);
	return path->of[BNET_WORK_SMALL].count + path->of[BNET_WORK_BULK].count;
}

/* The connection or the whole path was idle since the last sample, and little of the time was busy. */
static void pauses_do_not_count(void)
{
	struct oneself ends = connect_to_oneself(&client);

	bnet_engine_lock();
	counted(ends, false, 0); /* the handshake was busy */
	check_int(counted(ends, true, 0), 0);
	check_int(counted(ends, false, 0), 1);
	check_int(counted(ends, true, 0), 0);
	check_int(counted(ends, false, UINT64_MAX), 0);
	check_int(counted(ends, false, 0), 1);
	bnet_engine_unlock();
	close_to_oneself(&client, ends);
}

/* A pass has found a stream broken, and the connection rests before the control thread has looked at it. */
static void a_connection_that_rests_is_repaired(void)
{
	struct oneself ends = connect_to_oneself(&client);
	struct bnet_conn *conn = ends.send;

	send_to_oneself(&client, ends);
	bnet_engine_lock();
	move_oneself(ends); /* if it rests already */
	conn->passes_sampled = conn->passes;
	atomic_store(&conn->reap, true);
	bnet_sampler_read(bnet_now_us() + TICK_US);
	check(bnet_list_empty(&conn->path->moving));
	bnet_engine_unlock();
	while (atomic_load(&conn->reap))
		sched_yield();
	close_to_oneself(&client, ends);
}

/* ---- fewer streams ---- */

/* Returns with the engine's lock. */
static struct oneself connect_with_streams(void)
{
	struct oneself ends = connect_to_oneself(&client);
	struct bnet_conn *conn = ends.send;

	bnet_engine_lock();
	bnet_scaler_init(&conn->path->scaler, STREAMS, STREAMS, 1);
	bnet_path_widen(conn->path);
	bnet_engine_wake();
	while (conn->nstreams < STREAMS) {
		bnet_engine_unlock();
		sched_yield();
		bnet_engine_lock();
	}
	return ends;
}

/* A stream that rests is closed once its bytes have arrived. */
static void a_resting_stream_waits_for_its_bytes(void)
{
	struct oneself ends = connect_with_streams();
	struct bnet_conn *conn = ends.send;

	bnet_scaler_init(&conn->path->scaler, 1, 1, 1);
	bnet_path_widen(conn->path);
	bnet_delivery_add(&conn->streams[1]->delivery, 1);
	bnet_path_sample_conn(conn, bnet_now_us(), false);
	check_int(conn->nstreams, STREAMS);
	bnet_delivery_add(&conn->streams[1]->delivery, UINT64_MAX); /* takes it back */
	bnet_path_sample_conn(conn, bnet_now_us(), false);
	check_int(conn->nstreams, 1);
	bnet_engine_unlock();
	close_to_oneself(&client, ends);
}

/* … and once the trial is over in which it rests. */
static void a_resting_stream_waits_for_the_trials_end(void)
{
	struct oneself ends = connect_with_streams();
	struct bnet_conn *conn = ends.send;
	struct bnet_scaler *scaler = &conn->path->scaler;

	bnet_scaler_init(scaler, 1, STREAMS, 1);
	scaler->state = BNET_SCALER_LOWERING;
	scaler->before = STREAMS;
	bnet_path_widen(conn->path);
	bnet_path_sample_conn(conn, bnet_now_us(), false);
	check_int(bnet_conn_active(conn), 1);
	check_int(conn->nstreams, STREAMS);
	scaler->state = BNET_SCALER_HOLDING;
	bnet_path_sample_conn(conn, bnet_now_us(), false);
	check_int(conn->nstreams, 1);
	bnet_engine_unlock();
	close_to_oneself(&client, ends);
}

static struct bnet_stream *other_half(struct bnet_conn *receiver, const struct bnet_stream *stream)
{
	for (int i = 0; i < receiver->nstreams; i++)
		if (receiver->streams[i]->serial == stream->serial)
			return receiver->streams[i];
	check(false);
	return NULL;
}

static void rest(struct bnet_conn *conn)
{
	bnet_scaler_init(&conn->path->scaler, 1, 1, 1);
	bnet_path_widen(conn->path);
	bnet_path_sample_conn(conn, bnet_now_us(), false);
}

/* One that was reset is replaced: its receiver waits for another one in its place. */
static void a_resting_stream_that_was_reset_stays(void)
{
	struct oneself ends = connect_with_streams();
	struct bnet_conn *conn = ends.send;

	bnet_socket_reset(other_half(ends.recv, conn->streams[1])->fd);
	while (!bnet_socket_is_closed(conn->streams[1]->fd))
		sched_yield();
	rest(conn);
	check_int(conn->nstreams, STREAMS);
	bnet_engine_unlock();
	close_to_oneself(&client, ends);
}

/* The sender has closed its half of a stream that its receiver takes for broken. */
static void a_broken_half_takes_no_place(void)
{
	struct oneself ends = connect_with_streams();
	struct bnet_conn *conn = ends.send;

	other_half(ends.recv, conn->streams[1])->broken = true;
	rest(conn);
	check_int(conn->nstreams, 1);
	bnet_engine.config.nstreams = STREAMS;
	bnet_scaler_init(&conn->path->scaler, STREAMS, STREAMS, 1);
	conn->setup.wanted = 1;
	bnet_path_widen(conn->path);
	bnet_engine_wake();
	while (conn->setup.wanted < STREAMS || bnet_conn_is_opening(conn)) {
		bnet_engine_unlock();
		sched_yield();
		bnet_engine_lock();
	}
	check_int(conn->nstreams, STREAMS);
	bnet_engine.config.nstreams = 0;
	bnet_engine_unlock();
	close_to_oneself(&client, ends);
}

int main(void)
{
	setenv("NCCL_SOCKET_IFNAME", "lo", 1);
	alarm(DEADLINE_S);
	check_int(bnet_client_init(&client, bnet_net_table(12), 12, print_warnings), ncclSuccess);
	send_buffers_follow_the_path();
	send_buffers_follow_the_messages();
	pauses_do_not_count();
	a_connection_that_rests_is_repaired();
	a_resting_stream_waits_for_its_bytes();
	a_resting_stream_waits_for_the_trials_end();
	a_resting_stream_that_was_reset_stays();
	a_broken_half_takes_no_place();
	check_int(bnet_client_finalize(&client), ncclSuccess);
	return 0;
}
