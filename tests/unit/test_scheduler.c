/* SPDX-License-Identifier: MIT
 *
 * What a stream claims of a message, by the configuration and by what is known of the stream.
 */
#include <sys/socket.h>
#include <unistd.h>

#include "check.h"
#include "transport/conn.h"
#include "transport/request.h"
#include "transport/scheduler.h"

#define STREAMS 8
#define KIB UINT64_C(1024)
#define SLOW 1000
#define FAST (UINT64_C(1) << 33)
#define NOW UINT64_C(1000000000000)

static struct bnet_config config = {.min_chunksize = 64 * KIB, .max_chunksize = KIB * KIB};
static struct bnet_device device = {.name = "unit", .address = ""};
static char from[256 * KIB];

static uint64_t slice_of(const struct bnet_conn *conn, uint64_t rate)
{
	atomic_store(&conn->streams[0]->estimator.rate, rate);
	return bnet_scheduler_slice(conn, conn->streams[0], STREAMS, sizeof(from), 0);
}

/* A message that would not reach all streams. */
static void slow_streams_get_smaller_slices_of_a_small_message(const struct bnet_conn *conn)
{
	check_int(slice_of(conn, SLOW), sizeof(from) / STREAMS);
	check_int(slice_of(conn, FAST), 64 * KIB);
	check_int(slice_of(conn, 0), 64 * KIB); /* not known */
	config.min_chunksize = 128 * KIB;       /* somebody's choice is taken literally */
	check_int(slice_of(conn, SLOW), 128 * KIB);
}

/* Which of the first two streams gets the next slice if they have these rates and hold one slice each? */
static int pick(struct bnet_conn *conn, uint64_t first, uint64_t second, uint64_t refused)
{
	const uint64_t rates[] = {first, second};

	for (int i = 0; i < 2; i++) {
		atomic_store(&conn->streams[i]->estimator.rate, rates[i]);
		bnet_inflight_measured(&conn->streams[i]->inflight, 64 * KIB, NOW);
	}
	return bnet_scheduler_pick(conn, 2, refused, NOW)->index;
}

static void a_slice_goes_to_the_stream_that_completes_it_first(struct bnet_conn *conn)
{
	check_int(pick(conn, SLOW, FAST, 0), 1);
	check_int(pick(conn, FAST, SLOW, 0), 0);
	check_int(pick(conn, FAST, FAST, 0), 0); /* at which the receiver looks more often */
	check_int(pick(conn, SLOW, FAST, 1 << 1), 0);
	conn->streams[1]->writable = false;
	check_int(pick(conn, SLOW, FAST, 0), 0);
}

int main(void)
{
	struct bnet_conn *conn = bnet_conn_new(true, &device, &config, false);
	int pairs[2][2];

	check(conn != NULL);
	for (int i = 0; i < 2; i++) {
		check_int(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pairs[i]), 0);
		check_int(bnet_conn_add_stream(conn, pairs[i][0], NULL), 0);
	}
	check(bnet_request_post(conn, from, sizeof(from)) != NULL);
	slow_streams_get_smaller_slices_of_a_small_message(conn);
	a_slice_goes_to_the_stream_that_completes_it_first(conn);
	bnet_conn_free(conn);
	close(pairs[0][1]);
	close(pairs[1][1]);
	return 0;
}
