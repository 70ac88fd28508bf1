/* SPDX-License-Identifier: MIT
 *
 * One of several streams ends: what is said of it, and what it ends, where nothing is repaired or is to be.
 */
#include <errno.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/descriptors.h"
#include "check.h"
#include "common/clock.h"
#include "engine/engine.h"
#include "handshake/close.h"
#include "handshake/connector_state.h"
#include "tcp_pair.h"
#include "transport/conn.h"
#include "transport/progress.h"
#include "transport/request.h"
#include "wire/wire.h"

#define STREAMS 3
#define BYTES (1 << 20)
#define SMALL 100

static struct bnet_config config = {.min_chunksize = 4096, .max_chunksize = 65536, .keepalive = 120};
static struct bnet_device device = {.name = "unit", .address = ""};
static char from[BYTES], into[BYTES];

/* ---- one end ---- */

struct end {
	struct bnet_conn *conn;
	int peers[STREAMS]; /* -1: reset */
	uint64_t sent;      /* messages to a receiver */
};

static struct end open_end(bool sender)
{
	struct end end = {.conn = bnet_conn_new(sender, &device, &config, false)};

	check(end.conn != NULL);
	for (int i = 0; i < STREAMS; i++) {
		int pair[2];

		open_tcp_pair(pair);
		check_int(bnet_conn_add_stream(end.conn, pair[0], NULL), 0);
		end.peers[i] = pair[1];
	}
	atomic_store(&end.conn->level, STREAMS);
	return end;
}

static void close_end(struct end *end)
{
	bnet_conn_free(end->conn);
	for (int i = 0; i < STREAMS; i++)
		if (end->peers[i] >= 0)
			close(end->peers[i]);
}

static int fd_of(const struct end *end, int stream)
{
	return end->conn->streams[stream]->fd;
}

/* As a middlebox does; this end's kernel knows of it when this returns. */
static void reset(struct end *end, int stream)
{
	const struct linger at_once = {.l_onoff = 1};
	struct pollfd pollfd = {.fd = fd_of(end, stream)};

	check_int(setsockopt(end->peers[stream], SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once)), 0);
	close(end->peers[stream]);
	end->peers[stream] = -1;
	check_int(poll(&pollfd, 1, -1), 1);
	check(pollfd.revents & POLLHUP);
}

/* ---- a sender ---- */

static void the_end_is_said_on_a_stream_that_lives(void)
{
	uint8_t bytes[BNET_WIRE_FRAME_HEADER + 1];
	struct bnet_wire_frame frame;
	struct end end = open_end(true);

	reset(&end, 0);
	bnet_drain_prepare(end.conn);
	check_int(recv(end.peers[1], bytes, sizeof(bytes), 0), BNET_WIRE_FRAME_HEADER);
	bnet_wire_frame_decode(bytes, &frame);
	check_int(frame.type, BNET_WIRE_FRAME_CLOSE);
	close_end(&end);
}

static void a_reset_fails_the_connection(void)
{
	struct end end = open_end(true);
	struct bnet_request *request = bnet_request_post(end.conn, from, BYTES);

	check(request != NULL);
	while (bnet_progress(end.conn))
		;
	reset(&end, 1);
	while (!atomic_load(&end.conn->error)) {
		for (int i = 0; i < STREAMS; i++)
			if (end.peers[i] >= 0)
				(void)!recv(end.peers[i], into, sizeof(into), MSG_DONTWAIT);
		bnet_progress(end.conn);
	}
	check(!atomic_load(&request->done));
	check_int(atomic_load(&end.conn->error), -ECONNRESET);
	close_end(&end);
}

/* The receiver learns of it on a stream that lives. */
static void a_sender_says_that_it_fails(void)
{
	uint8_t bytes[BNET_WIRE_FRAME_HEADER + 1];
	struct bnet_wire_frame frame;
	struct end end = open_end(true);

	bnet_conn_fail(end.conn, -ETIMEDOUT, "as told");
	for (int i = 0; i < STREAMS; i++) {
		check_int(recv(end.peers[i], bytes, sizeof(bytes), 0), BNET_WIRE_FRAME_HEADER);
		bnet_wire_frame_decode(bytes, &frame);
		check_int(frame.type, BNET_WIRE_FRAME_FAILED);
		check_int(recv(end.peers[i], bytes, sizeof(bytes), 0), -1);
		check_int(errno, ECONNRESET);
	}
	close_end(&end);
}

/* The answer to a HELLO has come too late, and was not read. */
static void a_stream_that_is_not_waited_for_ends_in_order(void)
{
	struct end end = open_end(true);
	struct bnet_connector *late = calloc(1, sizeof(*late));
	struct pollfd answered;
	int pair[2];
	char byte;

	check(late != NULL);
	open_tcp_pair(pair);
	bnet_watch_init(&late->watch, bnet_fd_opened(pair[0]));
	bnet_list_add(&end.conn->setup.connectors, &late->siblings);
	late->conn = end.conn;
	late->index = STREAMS;
	late->state = BNET_CONNECTOR_HELLO_SENT;
	check_int(send(pair[1], "welcome", 7, 0), 7);
	answered = (struct pollfd){.fd = pair[0], .events = POLLIN};
	check_int(poll(&answered, 1, -1), 1);
	bnet_connector_give_up(late, -ETIMEDOUT, "no answer");
	check_int(recv(pair[1], &byte, 1, 0), 0);
	close(pair[1]);
	close_end(&end);
}

/* ---- a receiver ---- */

static void deliver(struct end *end, int stream, size_t bytes)
{
	struct bnet_wire_data data = {.message = end->sent++, .size = SMALL, .length = SMALL};
	uint8_t frame[BNET_WIRE_DATA_HEADER + SMALL] = {0};

	bnet_wire_data_encode(frame, &data);
	check_int(send(end->peers[stream], frame, bytes, 0), (ssize_t)bytes);
}

static void deliver_whole(struct end *end, int stream)
{
	deliver(end, stream, BNET_WIRE_DATA_HEADER + SMALL);
}

static void say(const struct end *end, int stream, enum bnet_wire_frame_type type)
{
	const struct bnet_wire_frame frame = {.type = type};
	uint8_t bytes[BNET_WIRE_FRAME_HEADER];

	bnet_wire_frame_encode(bytes, &frame);
	check_int(send(end->peers[stream], bytes, sizeof(bytes), 0), sizeof(bytes));
}

static struct bnet_request *expect(struct end *end)
{
	struct bnet_request *request = bnet_request_post(end->conn, into, SMALL);

	check(request != NULL);
	return request;
}

static bool receive(struct end *end, struct bnet_request *request)
{
	while (!atomic_load(&request->done) && !atomic_load(&end->conn->error))
		bnet_progress(end->conn);
	if (!atomic_load(&request->done))
		return false;
	bnet_request_take(request);
	return true;
}

/* The stream with an outstanding message has ended and was dropped. All others wait for the receive of a later one, and
 * what they say behind it is not read. */
static void what_an_ended_stream_lacks_is_missed(void)
{
	struct end end = open_end(false);
	struct bnet_request *request = expect(&end);

	shutdown(end.peers[2], SHUT_WR);
	while (!atomic_load(&end.conn->reap))
		bnet_progress(end.conn);
	close(bnet_conn_drop_stream(end.conn, 2));
	end.sent++; /* the message that was lost */
	for (int i = 0; i < 2; i++)
		deliver_whole(&end, i);
	check(!receive(&end, request));
	check_int(atomic_load(&end.conn->error), -ECONNRESET);
	close_end(&end);
}

/* As where a sender closes while a stream joins. */
static void the_reset_of_a_stream_without_a_frame_is_none(void)
{
	struct end end = open_end(false);
	struct bnet_request *request = expect(&end);

	say(&end, 0, BNET_WIRE_FRAME_CLOSE);
	reset(&end, 2);
	for (int i = 0; i < 2; i++)
		shutdown(end.peers[i], SHUT_WR);
	check(!receive(&end, request));
	check_int(atomic_load(&end.conn->error), -ESHUTDOWN);
	close_end(&end);
}

/* Some time after the sender's end its host has forgotten the streams, and resets what asks for them. */
static void what_is_reset_after_an_orderly_close_is_not_waited_for(void)
{
	struct end end = open_end(false);

	end.conn->repairs = true;
	say(&end, 0, BNET_WIRE_FRAME_CLOSE);
	for (int i = 0; i < STREAMS; i++)
		reset(&end, i); /* without an end in order: those are none that are waited for in any case */
	check(!receive(&end, expect(&end)));
	check_int(atomic_load(&end.conn->error), -ESHUTDOWN);
	close_end(&end);
}

/* Its sender has closed it, and this kernel's next probe has found nobody there. No other stream will come in its
 * place: it is freed. */
static void a_reset_behind_the_end_of_a_stream_is_none(void)
{
	struct end end = open_end(false);

	end.conn->repairs = true;
	deliver_whole(&end, 1);
	shutdown(end.peers[1], SHUT_WR);
	reset(&end, 1);
	check(receive(&end, expect(&end)));
	expect(&end);
	while (!atomic_load(&end.conn->reap) && !end.conn->streams[1]->broken)
		bnet_progress(end.conn);
	check_int(end.conn->streams[1]->in.state, BNET_INCOMING_ENDED);
	check(!end.conn->streams[1]->broken);
	close_end(&end);
}

/* Its sender may have written on it, and then asks for its place. */
static void a_reset_stream_that_brought_nothing_is_waited_for(void)
{
	struct end end = open_end(false);

	end.conn->repairs = true;
	reset(&end, 1);
	expect(&end);
	while (!end.conn->streams[1]->broken)
		bnet_progress(end.conn);
	check(end.conn->streams[1]->in.state != BNET_INCOMING_ENDED);
	close_end(&end);
}

/* The peer's host was last heard long ago, since nobody had anything to send. */
uint32_t __wrap_bnet_socket_unheard_ms(int fd);

uint32_t __wrap_bnet_socket_unheard_ms(int fd)
{
	(void)fd;
	return 200000;
}

static void the_wait_for_repair_begins_where_a_reset_is_seen(void)
{
	struct end end = open_end(false);

	end.conn->repairs = true;
	for (int i = 0; i < STREAMS; i++)
		reset(&end, i);
	expect(&end);
	while (!atomic_load(&end.conn->alone_us))
		bnet_progress(end.conn);
	check(bnet_now_us() - atomic_load(&end.conn->alone_us) < UINT64_C(60000000));
	check_int(atomic_load(&end.conn->error), 0);
	close_end(&end);
}

static void a_sender_that_fails_is_believed(void)
{
	struct end end = open_end(false);
	struct bnet_request *request = expect(&end);

	say(&end, 2, BNET_WIRE_FRAME_FAILED);
	check(!receive(&end, request));
	check_int(atomic_load(&end.conn->error), -ECONNRESET);
	close_end(&end);
}

static void a_message_that_is_cut_off_fails_the_connection(void)
{
	struct end end = open_end(false);
	struct bnet_request *request = expect(&end);

	deliver(&end, 1, BNET_WIRE_DATA_HEADER + SMALL / 2);
	reset(&end, 1);
	check(!receive(&end, request));
	check_int(atomic_load(&end.conn->error), -ECONNRESET);
	close_end(&end);
}

int main(void)
{
	alarm(100);
	a_reset_fails_the_connection();
	the_end_is_said_on_a_stream_that_lives();
	a_sender_says_that_it_fails();
	a_stream_that_is_not_waited_for_ends_in_order();
	what_an_ended_stream_lacks_is_missed();
	the_reset_of_a_stream_without_a_frame_is_none();
	what_is_reset_after_an_orderly_close_is_not_waited_for();
	a_reset_behind_the_end_of_a_stream_is_none();
	a_reset_stream_that_brought_nothing_is_waited_for();
	the_wait_for_repair_begins_where_a_reset_is_seen();
	a_sender_that_fails_is_believed();
	a_message_that_is_cut_off_fails_the_connection();
	return 0;
}
