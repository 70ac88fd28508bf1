/* SPDX-License-Identifier: MIT
 *
 * Whether a stream's bytes have arrived: what follows from the kernel's counts, what becomes of a stream that rests
 * when it ends too early, and how long the control thread looks. Partitions, resets and pauses between two hosts:
 * tests/netns/test_silence.py.
 */
#include <errno.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

#include "bagua_net.h"
#include "common/clock.h"
#include "base/socket.h"
#include "control/undelivered.h"
#include "engine/engine.h"
#include "oneself.h"
#include "scaling/path.h"
#include "scaling/path_sample.h"
#include "transport/delivery.h"

#define DEADLINE_S 250

/* ---- what follows from the counts ---- */

#define HANDSHAKE 73
#define LOOKS 3

static const struct bnet_silence_limit alone = {.looks = LOOKS}, probed = {.looks = LOOKS, .peer_probes = true},
				       endless = {.looks = 0, .peer_probes = true};

struct given {
	uint64_t acked; /* with the handshake */
	uint32_t arrived, unanswered;
	bool ended;
	uint32_t backoff;
};

static struct bnet_delivery fresh(void)
{
	return (struct bnet_delivery){.counted = true, .handshake = HANDSHAKE, .arrived = 2};
}

/* … whose peer's own probes have arrived. */
static struct bnet_delivery fresh_and_probed(void)
{
	struct bnet_delivery delivery = fresh();

	delivery.probed = true;
	return delivery;
}

static enum bnet_delivery_state judge(struct bnet_delivery *delivery, uint64_t written, struct given given,
				      struct bnet_silence_limit limit)
{
	const struct bnet_delivery_reading reading = {
		.ended = given.ended,
		.acked = given.acked,
		.arrived = given.arrived,
		.unanswered = given.unanswered,
		.backoff = given.backoff,
	};

	return bnet_delivery_judge(delivery, &reading, written, limit);
}

static void acknowledged_bytes_are_done(void)
{
	struct bnet_delivery delivery = fresh();

	check_int(judge(&delivery, 100, (struct given){HANDSHAKE + 100, 3, 0, false, 0}, probed), BNET_DELIVERY_DONE);
	check_int(judge(&delivery, 101, (struct given){HANDSHAKE + 100, 4, 0, false, 0}, probed), BNET_DELIVERY_OPEN);
	/* FIN counts as a byte. */
	check_int(judge(&delivery, 101, (struct given){HANDSHAKE + 102, 5, 0, true, 0}, probed), BNET_DELIVERY_DONE);
}

/* Whatever the kernel still counts of them. */
static void bytes_of_a_stream_that_ended_are_lost(void)
{
	struct bnet_delivery delivery = fresh();

	check_int(judge(&delivery, 100, (struct given){HANDSHAKE + 99, 3, 0, true, 0}, endless), BNET_DELIVERY_LOST);
	check_int(judge(&delivery, 100, (struct given){0, 0, 0, true, 0}, endless), BNET_DELIVERY_LOST);
}

static int looks_until_silent(struct bnet_delivery *delivery, struct given given, struct bnet_silence_limit limit)
{
	for (int looks = 1; looks <= 10 * LOOKS; looks++)
		if (judge(delivery, 100, given, limit) == BNET_DELIVERY_SILENT)
			return looks;
	return 0;
}

static void a_host_is_silent_if_nothing_arrives(void)
{
	struct bnet_delivery delivery = fresh();

	check_int(looks_until_silent(&delivery, (struct given){HANDSHAKE, 2, 5, false, 0}, alone), LOOKS + 1);
	delivery = fresh_and_probed();
	check_int(looks_until_silent(&delivery, (struct given){HANDSHAKE, 2, 1, false, 0}, probed), LOOKS + 1);
	delivery = fresh();
	check_int(looks_until_silent(&delivery, (struct given){HANDSHAKE, 2, 5, false, 0}, endless), 0);
}

/* After three looks, six, twelve …: another stream is tried in its place. */
static void a_silent_stream_is_doubted_ever_more_rarely(void)
{
	const struct bnet_silence_limit limit = {.looks = 50, .doubt = 3};
	struct bnet_delivery delivery = fresh();
	int doubts = 0;

	for (int looks = 0; looks < 50; looks++) {
		bool doubt = judge(&delivery, 100, (struct given){HANDSHAKE, 2, 2, false, 0}, limit) ==
			     BNET_DELIVERY_DOUBTFUL;

		check(doubt == (looks == 3 || looks == 6 || looks == 12 || looks == 24 || looks == 48));
		doubts += doubt;
	}
	check_int(doubts, 5);
	/* It is heard again, or nothing was asked. */
	check_int(judge(&delivery, 100, (struct given){HANDSHAKE, 3, 0, false, 0}, limit), BNET_DELIVERY_OPEN);
	for (int looks = 0; looks < 50; looks++)
		check_int(judge(&delivery, 100, (struct given){HANDSHAKE, 3, 0, false, 0}, limit), BNET_DELIVERY_OPEN);
}

/* A window that is shut is probed up to two minutes apart, and one answer may be lost. */
static void a_host_that_was_not_asked_is_not_silent(void)
{
	struct bnet_delivery delivery = fresh();

	check_int(looks_until_silent(&delivery, (struct given){HANDSHAKE, 2, 0, false, 0}, alone), 0);
	check_int(looks_until_silent(&delivery, (struct given){HANDSHAKE, 2, 1, false, 0}, alone), 0);
	check_int(looks_until_silent(&delivery, (struct given){HANDSHAKE, 2, 2, false, 0}, alone), 1);
}

/* A proxy that ends TCP answers each probe of a shut window, which may be up to two minutes apart, and passes none of
 * the peer's keepalive on. */
static void a_host_that_answers_in_time_is_not_silent(void)
{
	struct bnet_delivery delivery = fresh_and_probed();

	check_int(looks_until_silent(&delivery, (struct given){HANDSHAKE, 2, 0, false, 0}, probed), 0);
	/* A look between a probe and its answer. */
	check_int(judge(&delivery, 100, (struct given){HANDSHAKE, 2, 1, false, 0}, probed), BNET_DELIVERY_OPEN);
	check_int(judge(&delivery, 100, (struct given){HANDSHAKE, 3, 0, false, 0}, probed), BNET_DELIVERY_OPEN);
}

/* One lost probe, or its answer, is followed by nothing for up to two minutes. */
static void one_missing_answer_is_enough_only_where_the_peer_s_probes_arrive(void)
{
	struct bnet_delivery delivery = fresh();

	check_int(looks_until_silent(&delivery, (struct given){HANDSHAKE, 2, 1, false, 7}, probed), 0);
	check_int(looks_until_silent(&delivery, (struct given){HANDSHAKE, 2, 2, false, 8}, probed), 1);
}

/* Two readings of a shut window one after the other. */
static bool probe_is_seen(struct given before, struct given after)
{
	struct bnet_delivery delivery = fresh();

	judge(&delivery, 100, before, probed);
	judge(&delivery, 100, after, probed);
	return delivery.probed;
}

static void a_peer_s_probe_is_told_from_an_answer(void)
{
	check(probe_is_seen((struct given){HANDSHAKE, 2, 0, false, 5}, (struct given){HANDSHAKE, 3, 0, false, 5}));
	/* Nothing came. */
	check(!probe_is_seen((struct given){HANDSHAKE, 2, 0, false, 5}, (struct given){HANDSHAKE, 2, 0, false, 5}));
	/* The window was probed between the looks, or before the first. */
	check(!probe_is_seen((struct given){HANDSHAKE, 2, 0, false, 5}, (struct given){HANDSHAKE, 3, 0, false, 6}));
	check(!probe_is_seen((struct given){HANDSHAKE, 2, 1, false, 5}, (struct given){HANDSHAKE, 3, 0, false, 5}));
	check(!probe_is_seen((struct given){HANDSHAKE, 2, 0, false, 5}, (struct given){HANDSHAKE, 3, 1, false, 5}));
	/* It opened and shut again. */
	check(!probe_is_seen((struct given){HANDSHAKE, 2, 0, false, 1}, (struct given){HANDSHAKE + 9, 3, 0, false, 1}));
	/* It is open. */
	check(!probe_is_seen((struct given){HANDSHAKE, 2, 0, false, 0}, (struct given){HANDSHAKE, 3, 0, false, 0}));
	/* Everything had arrived meanwhile. */
	check(!probe_is_seen((struct given){HANDSHAKE + 100, 2, 0, false, 1},
			     (struct given){HANDSHAKE + 100, 3, 0, false, 1}));
}

static void any_segment_ends_silence(void)
{
	struct bnet_delivery delivery = fresh();

	for (int i = 0; i < LOOKS; i++)
		check_int(judge(&delivery, 100, (struct given){HANDSHAKE, 2, 9, false, 0}, alone), BNET_DELIVERY_OPEN);
	check_int(judge(&delivery, 100, (struct given){HANDSHAKE, 3, 9, false, 0}, alone), BNET_DELIVERY_OPEN);
	check_int(looks_until_silent(&delivery, (struct given){HANDSHAKE, 3, 9, false, 0}, alone), LOOKS + 1);
}

/* An emulated kernel may count neither bytes nor segments. */
static void without_counts_a_stream_is_never_lost(void)
{
	struct bnet_delivery delivery = {.counted = false};
	int fd = bnet_socket_open(AF_INET);

	bnet_delivery_start(&delivery, fd);
	check(!delivery.counted);
	bnet_delivery_add(&delivery, 100);
	check_int(bnet_delivery_look(&delivery, fd, probed), BNET_DELIVERY_DONE);
	check_int((long long)bnet_delivery_missing(&delivery, fd), 0);
	bnet_socket_close(fd);
}

/* ---- a stream that rests ---- */

#define STREAMS 2
#define OTHERS 40    /* connections, of two ends each */
#define MESSAGE 8000 /* a slice: a receive buffer takes less than some of them, and a new stream may hold more */

static struct bnet_client client;

static void use_streams(int streams)
{
	bnet_engine_lock();
	bnet_list_each(node, &bnet_engine.paths) {
		struct bnet_path *path = bnet_entry(node, struct bnet_path, node);

		bnet_scaler_init(&path->scaler, streams, STREAMS, 1);
		bnet_path_widen(path);
	}
	bnet_engine_unlock();
}

static void await_streams(const struct bnet_conn *conn)
{
	while (atomic_load(&conn->nstreams) < STREAMS)
		usleep(1000);
}

static void send_one(struct bnet_conn *conn, char *data, void *mr)
{
	int done = 0, size;
	void *request;

	check_int(bnet_client_isend(&client, conn, data, MESSAGE, 0, mr, &request), ncclSuccess);
	while (!done)
		check_int(bnet_client_test(&client, request, &done, &size), ncclSuccess);
}

/* The last stream ends, its end is seen, and the path is sampled; no other thread comes in between. The stream is kept,
 * and the next look at it fails the connection, however many others come before it. */
static void a_resting_stream_that_ends_too_early_is_lost(void)
{
	struct oneself others[OTHERS], ends;
	struct bnet_conn *conn;
	char *data = calloc(1, MESSAGE);
	struct bnet_stream *last;
	void *mr;

	for (int i = 0; i < OTHERS; i++)
		others[i] = connect_to_oneself(&client);
	ends = connect_to_oneself(&client);
	conn = ends.send;
	check(data != NULL);
	check_int(bnet_client_reg(&client, conn, data, MESSAGE, NCCL_PTR_HOST, &mr), ncclSuccess);
	use_streams(STREAMS);
	await_streams(conn);
	last = conn->streams[STREAMS - 1];
	while (bnet_delivery_missing(&last->delivery, last->fd) == 0)
		send_one(conn, data, mr);
	use_streams(1);
	bnet_engine_lock();
	bnet_socket_reset(last->fd);
	bnet_conn_own(conn);
	bnet_conn_poll(conn);
	bnet_conn_disown(conn);
	check(last->hangup);
	bnet_path_sample_conn(conn, bnet_now_us() + 1000000, false);
	check_int(conn->nstreams, STREAMS);
	check_int(conn->error, 0);
	bnet_list_remove(&conn->node); /* looks before this one may have moved it to the front */
	bnet_list_add(&bnet_engine.conns, &conn->node);
	check(bnet_undelivered_look() || conn->error); /* the control thread may come first once the look gives way */
	check(conn->error != 0);
	bnet_engine_unlock();
	check_int(bnet_client_dereg(&client, conn, mr), ncclSuccess);
	free(data);
	close_to_oneself(&client, ends);
	for (int i = 0; i < OTHERS; i++)
		close_to_oneself(&client, others[i]);
}

/* ---- how long the control thread looks ---- */

#define UNREAD 12 /* messages: more than a receive buffer takes, less than a send buffer holds */

/* A connection on which everything is sent, and most of it has not arrived and will not. */
static struct oneself send_unread(char *data)
{
	struct oneself ends = connect_to_oneself(&client);
	void *mr;

	check_int(bnet_client_reg(&client, ends.send, data, MESSAGE, NCCL_PTR_HOST, &mr), ncclSuccess);
	for (int i = 0; i < UNREAD; i++)
		send_one(ends.send, data, mr);
	check_int(bnet_client_dereg(&client, ends.send, mr), ncclSuccess);
	return ends;
}

/* Nothing is outstanding, and the control thread is idle. */
static void bytes_are_looked_for_until_they_have_arrived(char *data)
{
	struct oneself ends = send_unread(data);
	struct bnet_conn *conn = ends.send;

	while (!atomic_load(&bnet_engine_wake_on_post))
		sched_yield();
	bnet_engine_lock();
	bnet_socket_reset(conn->streams[0]->fd);
	bnet_engine_unlock();
	while (!atomic_load(&conn->error))
		sched_yield();
	check_int(conn->error, -ECONNRESET);
	close_to_oneself(&client, ends);
}

int main(void)
{
	static char data[MESSAGE];

	acknowledged_bytes_are_done();
	bytes_of_a_stream_that_ended_are_lost();
	a_host_is_silent_if_nothing_arrives();
	a_silent_stream_is_doubted_ever_more_rarely();
	a_host_that_was_not_asked_is_not_silent();
	a_host_that_answers_in_time_is_not_silent();
	one_missing_answer_is_enough_only_where_the_peer_s_probes_arrive();
	a_peer_s_probe_is_told_from_an_answer();
	any_segment_ends_silence();
	without_counts_a_stream_is_never_lost();

	setenv("NCCL_SOCKET_IFNAME", "lo", 1);
	setenv("BAGUA_NET_REPAIR", "0", 1); /* a stream that is lost would be replaced */
	setenv("BAGUA_NET_RCVBUF", "4K", 1);
	setenv("BAGUA_NET_SNDBUF", "208K", 1);
	setenv("BAGUA_NET_NOTSENT_LOWAT", "0", 1);
	setenv("BAGUA_NET_THREADS", "0", 1);
	alarm(DEADLINE_S);
	check_int(bnet_client_init(&client, bnet_net_table(12), 12, print_warnings), ncclSuccess);
	a_resting_stream_that_ends_too_early_is_lost();
	bytes_are_looked_for_until_they_have_arrived(data);
	check_int(bnet_client_finalize(&client), ncclSuccess);
	return 0;
}
