/* SPDX-License-Identifier: MIT
 *
 * The kernel is told which streams of bbr have run dry: those with bytes in flight on long paths, again and again,
 * until the bytes have arrived.
 */
#include <errno.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <linux/tcp.h>
#include <sched.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "bagua_net.h"
#include "engine/engine.h"
#include "oneself.h"
#include "scaling/path.h"
#include "scaling/sampler.h"
#include "stream_pairs.h"
#include "transport/conn.h"
#include "transport/progress.h"
#include "transport/request.h"
#include "transport/tx.h"

#define DEADLINE_S 250
#define FAR_US 20000
#define SAMPLES 4
#define PAIRS 100       /* connections of one stream, which count twice: MAX_NOTES of sampler.c is 128 */
#define CALLS 4         /* enough for the rest of a round and the whole of the next */
#define LARGE (8 << 20) /* more than a socket takes */

/* ---- interposed: loopback becomes a long path with bbr, on which what was sent is in flight ---- */

static atomic_bool far, in_flight;
static _Atomic uint64_t notes; /* sends of no bytes */

int getsockopt(int fd, int level, int option, void *value, socklen_t *size)
{
	int rc = (int)syscall(SYS_getsockopt, fd, level, option, value, size);

	if (rc == 0 && level == IPPROTO_TCP && option == TCP_INFO && atomic_load(&far))
		((struct tcp_info *)value)->tcpi_min_rtt = FAR_US;
	if (rc == 0 && level == IPPROTO_TCP && option == TCP_CONGESTION)
		memcpy(value, "bbr2", sizeof("bbr2"));
	return rc;
}

int ioctl(int fd, unsigned long request, ...)
{
	va_list args;
	int *value, rc;

	va_start(args, request);
	value = va_arg(args, int *);
	va_end(args);
	rc = (int)syscall(SYS_ioctl, fd, request, value);
	if (rc == 0 && request == SIOCOUTQ && atomic_load(&in_flight))
		*value = 1;
	return rc;
}

ssize_t send(int fd, const void *data, size_t size, int flags)
{
	if (size == 0)
		atomic_fetch_add(&notes, 1);
	return syscall(SYS_sendto, fd, data, size, flags, NULL, 0);
}

/* ---- which streams ---- */

static char from[LARGE];

static void write_message(struct bnet_conn *conn, uint64_t bytes)
{
	check(bnet_request_post(conn, from, bytes) != NULL);
	while (bnet_progress(conn))
		;
}

static uint64_t notes_of(struct bnet_conn *conn, int looked)
{
	const uint64_t before = atomic_load(&notes);

	check_int(bnet_tx_note_dry(conn), looked);
	return atomic_load(&notes) - before;
}

static struct bnet_conn *open_with_rtt(int *peers, int count, uint32_t rtt_us)
{
	struct bnet_conn *conn = open_stream_pairs(true, peers, count);

	for (int i = 0; i < count; i++)
		atomic_store(&conn->streams[i]->estimator.min_rtt_us, rtt_us);
	for (int i = 0; i < count; i++)
		conn->streams[i]->bbr = true;
	return conn;
}

static void close_all(struct bnet_conn *conn, const int *peers, int count)
{
	bnet_conn_free(conn);
	for (int i = 0; i < count; i++)
		close(peers[i]);
}

static void streams_in_flight_are_told_until_their_bytes_have_arrived(void)
{
	int peers[2];
	struct bnet_conn *conn = open_with_rtt(peers, 2, FAR_US);
	char into[256];

	write_message(conn, 100);
	check_int(notes_of(conn, 2), 1); /* the other one has nothing in flight, … */
	check_int(notes_of(conn, 1), 1); /* … which is found out once */
	check(read(peers[0], into, sizeof(into)) > 100);
	check_int(notes_of(conn, 1), 0);
	check_int(notes_of(conn, 0), 0);
	write_message(conn, 100);
	check_int(notes_of(conn, 1), 1);
	close_all(conn, peers, 2);
}

static void streams_of_short_paths_are_not(void)
{
	int peer;
	struct bnet_conn *conn = open_with_rtt(&peer, 1, BNET_LONG_RTT_US - 1);

	write_message(conn, 100);
	check_int(notes_of(conn, 0), 0);
	close_all(conn, &peer, 1);
}

static void streams_of_other_congestion_controls_are_not(void)
{
	int peer;
	struct bnet_conn *conn = open_with_rtt(&peer, 1, FAR_US);

	conn->streams[0]->bbr = false;
	write_message(conn, 100);
	check_int(notes_of(conn, 0), 0);
	close_all(conn, &peer, 1);
}

static void streams_with_more_to_send_are_not(void)
{
	int peer;
	struct bnet_conn *conn = open_with_rtt(&peer, 1, FAR_US);

	write_message(conn, sizeof(from));
	check(conn->streams[0]->out.request != NULL);
	check_int(notes_of(conn, 0), 0);
	close_all(conn, &peer, 1);
}

/* The kernel reports a socket's error once: here, so that it must count. */
static void an_error_is_the_connections(void)
{
	int peers[2];
	struct bnet_conn *conn = open_with_rtt(peers, 2, FAR_US);

	write_message(conn, 100);
	close(peers[0]);
	atomic_store(&in_flight, true); /* as with TCP, whose bytes are lost with the peer */
	check_int(notes_of(conn, 1), 1);
	check_int(conn->error, -EPIPE);
	check_int(notes_of(conn, 0), 0);
	atomic_store(&in_flight, false);
	close_all(conn, peers + 1, 1);
}

/* ---- when ---- */

static struct bnet_client client;

static void exchange_all(const struct oneself *ends)
{
	for (int i = 0; i < PAIRS; i++)
		send_to_oneself(&client, ends[i]);
}

static uint32_t samples(void)
{
	uint32_t count;

	bnet_engine_lock();
	count = bnet_entry(bnet_engine.paths.next, struct bnet_path, node)->samples;
	bnet_engine_unlock();
	return count;
}

static int had_a_turn(const struct oneself *ends)
{
	int count = 0;

	bnet_engine_lock();
	for (int i = 0; i < PAIRS; i++)
		count += ((const struct bnet_conn *)ends[i].send)->noted > 0;
	bnet_engine_unlock();
	return count;
}

static void the_control_thread_tells_no_stream_of_a_short_path(const struct oneself *ends)
{
	const uint64_t before = atomic_load(&notes);
	uint32_t first;

	exchange_all(ends);
	first = samples();
	while (samples() - first < SAMPLES)
		exchange_all(ends);
	check_int(atomic_load(&notes), before);
	check_int(had_a_turn(ends), 0);
}

static void the_control_thread_tells_those_of_long_paths(const struct oneself *ends)
{
	const uint64_t before = atomic_load(&notes);

	atomic_store(&in_flight, true);
	atomic_store(&far, true);
	while (atomic_load(&notes) == before || had_a_turn(ends) == 0) /* until the deadline */
		exchange_all(ends);
}

/* Do all of them move? Under the engine's lock. */
static bool are_moving(void)
{
	const struct bnet_path *path = bnet_entry(bnet_engine.paths.next, struct bnet_path, node);
	int count = 0;

	bnet_list_each(node, &path->moving)
		count++;
	return bnet_sampler_any_far() && count == PAIRS;
}

/* There are more of them than are told at a time. */
static void those_that_move_have_their_turn(const struct oneself *ends)
{
	uint32_t before[PAIRS];

	exchange_all(ends);
	bnet_engine_lock();
	while (!are_moving()) { /* until the deadline */
		bnet_engine_unlock();
		exchange_all(ends);
		bnet_engine_lock();
	}
	for (int i = 0; i < PAIRS; i++)
		before[i] = ((const struct bnet_conn *)ends[i].send)->noted;
	for (int i = 0; i < CALLS; i++)
		bnet_sampler_note_dry();
	for (int i = 0; i < PAIRS; i++)
		check(((const struct bnet_conn *)ends[i].send)->noted != before[i]);
	bnet_engine_unlock();
}

int main(void)
{
	struct oneself ends[PAIRS];

	setenv("NCCL_SOCKET_IFNAME", "lo", 1);
	alarm(DEADLINE_S);
	streams_in_flight_are_told_until_their_bytes_have_arrived();
	streams_of_short_paths_are_not();
	streams_of_other_congestion_controls_are_not();
	streams_with_more_to_send_are_not();
	an_error_is_the_connections();
	check_int(bnet_client_init(&client, bnet_net_table(12), 12, print_warnings), ncclSuccess);
	for (int i = 0; i < PAIRS; i++)
		ends[i] = connect_to_oneself(&client);
	the_control_thread_tells_no_stream_of_a_short_path(ends);
	the_control_thread_tells_those_of_long_paths(ends);
	those_that_move_have_their_turn(ends);
	for (int i = 0; i < PAIRS; i++)
		close_to_oneself(&client, ends[i]);
	check_int(bnet_client_finalize(&client), ncclSuccess);
	return 0;
}
