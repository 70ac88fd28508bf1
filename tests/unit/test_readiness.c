/* SPDX-License-Identifier: MIT
 *
 * Many receivers that wait: a round of fruitless tests takes one system call, and nothing that arrives is missed: not
 * the end behind a message, not what waits for its receive, not a further stream.
 */
#include <errno.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "bagua_net.h"
#include "common/clock.h"
#include "control/lifecycle.h"
#include "engine/engine.h"
#include "oneself.h"
#include "stream_pairs.h"
#include "transport/progress.h"
#include "transport/readiness.h"
#include "transport/request.h"

#define DEADLINE_S 250
#define BYTES 5000
#define PAIRS 12
#define ROUNDS 1000

/* ---- one connection, by socket pairs ---- */

#define STREAMS 3

struct one {
	struct bnet_conn *conn;
	int peers[BNET_MAX_STREAMS], streams;
	uint64_t sent;
};

static char into[BYTES];

static void add_stream(struct one *one)
{
	int pair[2];

	check_int(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair), 0);
	check_int(bnet_conn_add_stream(one->conn, pair[0], NULL), 0);
	one->peers[one->streams++] = pair[1];
}

static struct one open_one(void)
{
	struct one one = {.streams = 1};

	one.conn = open_stream_pairs(false, one.peers, 1);
	bnet_readiness_join(&one.conn->ready, one.conn->streams[0]->fd);
	return one;
}

static void close_one(struct one *one)
{
	bnet_conn_unready(one->conn);
	bnet_conn_free(one->conn);
	for (int i = 0; i < one->streams; i++)
		close(one->peers[i]);
	bnet_readiness_end();
}

static void deliver_parts(struct one *one, int stream, void (*between)(struct one *))
{
	struct bnet_wire_data data = {.message = one->sent++, .size = BYTES, .length = BYTES};
	uint8_t bytes[BNET_WIRE_DATA_HEADER + BYTES] = {0};

	bnet_wire_data_encode(bytes, &data);
	check_int(send(one->peers[stream], bytes, BNET_WIRE_DATA_HEADER, 0), BNET_WIRE_DATA_HEADER);
	if (between)
		between(one);
	check_int(send(one->peers[stream], bytes + BNET_WIRE_DATA_HEADER, BYTES, 0), BYTES);
}

static void deliver(struct one *one, int stream)
{
	deliver_parts(one, stream, NULL);
}

static struct bnet_request *expect(struct one *one)
{
	struct bnet_request *request = bnet_request_post(one->conn, into, BYTES);

	check(request != NULL);
	return request;
}

static bool is_done(const struct bnet_request *request)
{
	return atomic_load(&request->done);
}

static void finish(struct bnet_request *request)
{
	while (!is_done(request))
		bnet_progress(request->conn);
	bnet_request_take(request);
}

/* Until the set has been asked and all that it says was read. */
static void settle(struct one *one)
{
	for (int i = 0; i < 10; i++)
		bnet_progress(one->conn);
}

static void what_comes_is_read(void)
{
	struct one one = open_one();

	for (int i = 0; i < 10; i++) {
		struct bnet_request *request = expect(&one);

		settle(&one);
		deliver(&one, 0);
		finish(request);
	}
	close_one(&one);
}

static void what_has_come_before_its_receive_is_read(void)
{
	struct one one = open_one();
	struct bnet_request *first = expect(&one), *second;

	deliver(&one, 0);
	deliver(&one, 0);
	settle(&one);
	check(is_done(first));
	bnet_request_take(first);
	second = expect(&one);
	finish(second);
	close_one(&one);
}

static void the_end_behind_a_message_is_seen(void)
{
	struct one one = open_one();
	struct bnet_request *first = expect(&one);

	expect(&one);
	deliver(&one, 0);
	shutdown(one.peers[0], SHUT_WR);
	settle(&one);
	check(is_done(first));
	check_int(atomic_load(&one.conn->error), -ECONNRESET);
	close_one(&one);
}

static void the_end_before_a_receive_is_seen(void)
{
	struct one one = open_one();
	struct bnet_request *first = expect(&one);

	deliver(&one, 0);
	shutdown(one.peers[0], SHUT_WR);
	while (!is_done(first))
		bnet_progress(one.conn);
	bnet_request_take(first);
	settle(&one);
	expect(&one);
	settle(&one);
	check_int(atomic_load(&one.conn->error), -ECONNRESET);
	close_one(&one);
}

/* A reset makes one event. After it the receiver waits for a repair, no longer than BAGUA_NET_KEEPALIVE. */
static void a_reset_stream_is_looked_after(void)
{
	static struct bnet_config config = {.keepalive = 1, .repair = 1};
	struct one one = open_one();

	one.conn->config = &config;
	one.conn->repairs = true;
	expect(&one);
	settle(&one);
	check_int(send(one.conn->streams[0]->fd, "x", 1, 0), 1); /* closed unread, it makes a reset */
	close(one.peers[0]);
	one.peers[0] = -1;
	settle(&one);
	check_int(atomic_load(&one.conn->error), 0);
	check(atomic_load(&one.conn->alone_us) > 0);
	atomic_store(&one.conn->alone_us, bnet_now_us() - 2000000);
	settle(&one);
	check_int(atomic_load(&one.conn->error), -ETIMEDOUT);
	close_one(&one);
}

/* The stream is as it was, and its sender repairs nothing. */
static void an_error_that_is_no_end_is_told(void)
{
	struct one one = open_one();
	void *nowhere = mmap(NULL, BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	check(nowhere != MAP_FAILED);
	one.conn->repairs = true;
	check(bnet_request_post(one.conn, nowhere, BYTES) != NULL);
	settle(&one);
	deliver_parts(&one, 0, settle); /* the payload goes to its place */
	settle(&one);
	check_int(atomic_load(&one.conn->error), -EFAULT);
	munmap(nowhere, BYTES);
	close_one(&one);
}

static void further_streams_are_read(void)
{
	struct one one = open_one();

	while (one.streams < STREAMS) {
		struct bnet_request *request = expect(&one);

		settle(&one);
		add_stream(&one);
		settle(&one);
		for (int i = 0; i < one.streams; i++) {
			deliver(&one, i);
			finish(request);
			request = expect(&one);
			settle(&one);
		}
		deliver(&one, 0);
		finish(request);
	}
	close_one(&one);
}

/* The set has one edge for all that has come, and one call brings only some of it. */
static void all_of_many_streams_are_read(void)
{
	struct bnet_request *requests[BNET_MAX_STREAMS];
	struct one one = open_one();

	while (one.streams < BNET_MAX_STREAMS)
		add_stream(&one);
	for (int i = 0; i < BNET_RING; i++)
		requests[i] = expect(&one);
	settle(&one);
	for (int i = 0; i < BNET_RING; i++)
		deliver(&one, i);
	for (int i = 0; i < BNET_RING; i++)
		finish(requests[i]);
	close_one(&one);
}

/* It joins with several, and has one left. */
static void a_stream_that_is_left_is_read(void)
{
	struct one one = {.streams = 2};

	one.conn = open_stream_pairs(false, one.peers, 2);
	bnet_readiness_join(&one.conn->ready, one.conn->epoll);
	for (int i = 0; i < 3; i++) {
		struct bnet_request *request = expect(&one);

		settle(&one);
		deliver(&one, 0);
		finish(request);
		if (i == 0)
			close(bnet_conn_drop_stream(one.conn, 1));
	}
	close_one(&one);
}

/* Events of one that has left do not reach another one that has its flag. */
static void flags_are_given_again(void)
{
	struct one left = open_one(), one;
	struct bnet_request *request;

	bnet_conn_unready(left.conn);
	request = expect(&left);
	one = open_one();
	check(one.conn->ready.flag == 1);
	settle(&one);
	deliver(&left, 0);
	expect(&one);
	settle(&one);
	finish(request);
	close(left.peers[0]);
	bnet_conn_free(left.conn);
	close_one(&one);
}

/* ---- many connections, by the public interface ---- */

static struct bnet_client client;
static struct oneself pairs[PAIRS];
static void *receiving[PAIRS];
static char from;

static void receive(int i)
{
	check_int(bnet_client_irecv(&client, pairs[i].recv, into, BYTES, 0, NULL, &receiving[i]), ncclSuccess);
}

static int test(int i)
{
	int done = 0;

	check_int(bnet_client_test(&client, receiving[i], &done, NULL), ncclSuccess);
	return done;
}

static int highest; /* flag */

static int in_the_set(void)
{
	int count = 0;

	highest = 0;
	bnet_engine_lock();
	bnet_list_each(node, &bnet_engine.conns) {
		int flag = bnet_entry(node, struct bnet_conn, node)->ready.flag;

		count += flag != 0;
		highest = flag > highest ? flag : highest;
	}
	bnet_engine_unlock();
	return count;
}

static void test_until(int expected, int count)
{
	while (in_the_set() != expected)
		for (int i = 0; i < count; i++)
			check_int(test(i), 0);
}

static void open_all(void)
{
	for (int i = 0; i < PAIRS; i++) {
		pairs[i] = connect_to_oneself(&client);
		receive(i);
	}
	test_until(PAIRS, PAIRS);
	check_int(highest, PAIRS);
}

static void a_round_of_tests_asks_once(void)
{
	bnet_counters_t before, after;

	open_all();
	for (int i = 0; i < PAIRS; i++)
		check_int(test(i), 0);
	bnet_counters(&before);
	for (int round = 0; round < ROUNDS; round++)
		for (int i = 0; i < PAIRS; i++)
			check_int(test(i), 0);
	bnet_counters(&after);
	check_int(after.receive_calls, before.receive_calls);
	check(after.poll_calls - before.poll_calls <= ROUNDS);
}

static void all_get_their_messages(void)
{
	for (int i = PAIRS; i-- > 0;) {
		void *sending;

		check_int(bnet_client_isend(&client, pairs[i].send, &from, 1, 0, NULL, &sending), ncclSuccess);
		for (int done = 0; !done;)
			check_int(bnet_client_test(&client, sending, &done, NULL), ncclSuccess);
		while (!test(i))
			;
	}
}

static void a_few_are_read_directly(void)
{
	for (int i = 1; i < PAIRS; i++)
		close_to_oneself(&client, pairs[i]);
	/* None where the control thread has looked at it since. */
	check(in_the_set() <= 1);
	receive(0);
	test_until(0, 1);
	close_to_oneself(&client, pairs[0]);
}

static void flags_come_back(void)
{
	open_all();
	for (int i = 0; i < PAIRS; i++)
		close_to_oneself(&client, pairs[i]);
}

int main(void)
{
	setenv("NCCL_SOCKET_IFNAME", "lo", 1);
	setenv("BAGUA_NET_THREADS", "0", 1);
	setenv("BAGUA_NET_NSTREAMS", "1", 1);
	alarm(DEADLINE_S);
	what_comes_is_read();
	what_has_come_before_its_receive_is_read();
	the_end_behind_a_message_is_seen();
	the_end_before_a_receive_is_seen();
	a_reset_stream_is_looked_after();
	an_error_that_is_no_end_is_told();
	further_streams_are_read();
	all_of_many_streams_are_read();
	a_stream_that_is_left_is_read();
	flags_are_given_again();
	check_int(bnet_client_init(&client, bnet_net_table(12), 12, print_warnings), ncclSuccess);
	a_round_of_tests_asks_once();
	all_get_their_messages();
	a_few_are_read_directly();
	flags_come_back();
	check_int(bnet_client_finalize(&client), ncclSuccess);
	return 0;
}
