/* SPDX-License-Identifier: MIT
 *
 * One of several streams is reset. If nothing is under way on it, nobody notices; if bytes are missing, or no other
 * stream can go on, the connection fails.
 */
#include <errno.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <poll.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "check.h"
#include "handshake/close.h"
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

/* ---- interposed: a socket that is full ---- */

static int full = -1;

ssize_t sendmsg(int fd, const struct msghdr *message, int flags)
{
	if (fd == full) {
		errno = EAGAIN;
		return -1;
	}
	return syscall(SYS_sendmsg, fd, message, flags);
}

/* ---- one end ---- */

struct end {
	struct bnet_conn *conn;
	int peers[STREAMS]; /* -1: reset */
	uint64_t sent, received;
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
	end.conn->says_failed = true;
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

static struct bnet_request *post(struct end *end, uint64_t size)
{
	struct bnet_request *request = bnet_request_post(end->conn, from, size);

	check(request != NULL);
	return request;
}

static int queued(int fd)
{
	int bytes = 0;

	check_int(ioctl(fd, SIOCOUTQ, &bytes), 0);
	return bytes;
}

/* Takes what has come, without looking at it. */
static void swallow(struct end *end)
{
	for (int i = 0; i < STREAMS; i++) {
		ssize_t n = end->peers[i] < 0 ? 0 : recv(end->peers[i], into, sizeof(into), MSG_DONTWAIT);

		end->received += n > 0 ? (uint64_t)n : 0;
	}
}

static void await_acknowledged(struct end *end)
{
	for (int i = 0; i < STREAMS; i++)
		while (end->peers[i] >= 0 && queued(fd_of(end, i)))
			swallow(end);
}

static bool finish(struct end *end, struct bnet_request *request)
{
	while (!atomic_load(&request->done) && !atomic_load(&end->conn->error)) {
		bnet_progress(end->conn);
		swallow(end);
	}
	if (!atomic_load(&request->done))
		return false;
	bnet_request_take(request);
	await_acknowledged(end);
	swallow(end);
	return true;
}

static uint64_t wire_bytes(const struct end *end)
{
	return atomic_load(&end->conn->counts.bytes_sent) +
	       atomic_load(&end->conn->counts.slices_sent) * BNET_WIRE_DATA_HEADER;
}

static void nothing_is_lost_with_an_idle_stream(int stream)
{
	struct end end = open_end(true);

	check(finish(&end, post(&end, BYTES)));
	reset(&end, stream);
	for (int i = 0; i < 3; i++)
		check(finish(&end, post(&end, i ? BYTES : SMALL)));
	check_int(atomic_load(&end.conn->error), 0);
	check_int(atomic_load(&end.conn->counts.bytes_sent), 3 * BYTES + SMALL);
	check_int(end.received, wire_bytes(&end));
	check(atomic_load(&end.conn->reap));
	close_end(&end);
}

/* Those above the level take what comes back, and no new slice. */
static void inactive_streams_go_on(void)
{
	struct end end = open_end(true);

	atomic_store(&end.conn->level, 1);
	check(finish(&end, post(&end, BYTES)));
	reset(&end, 0);
	check(finish(&end, post(&end, SMALL)));
	check_int(end.received, wire_bytes(&end));
	close_end(&end);
}

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

static void all_but_one_may_be_reset(void)
{
	struct end end = open_end(true);

	check(finish(&end, post(&end, BYTES)));
	reset(&end, 0);
	reset(&end, 2);
	check(finish(&end, post(&end, BYTES)));
	check_int(end.received, wire_bytes(&end));
	close_end(&end);
}

static void without_another_stream_the_connection_fails(void)
{
	struct end end = open_end(true);

	check(finish(&end, post(&end, BYTES)));
	for (int i = 0; i < STREAMS; i++)
		reset(&end, i);
	check(!finish(&end, post(&end, BYTES)));
	check_int(atomic_load(&end.conn->error), -ECONNRESET);
	close_end(&end);
}

static void with_bytes_missing_the_connection_fails(void)
{
	struct end end = open_end(true);
	struct bnet_request *request = post(&end, BYTES);
	int stream = 0;

	while (bnet_progress(end.conn))
		;
	while (stream < STREAMS && queued(fd_of(&end, stream)) == 0)
		stream++;
	check(stream < STREAMS);
	reset(&end, stream);
	check(!finish(&end, request));
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

/* A slice that was claimed and found no room, while the others have gone on to the next message. */
static void an_older_slice_goes_behind_no_later_message(void)
{
	struct end end = open_end(true);
	struct bnet_request *first, *second;

	check(finish(&end, post(&end, BYTES)));
	atomic_store(&end.conn->level, 1);
	full = fd_of(&end, 0);
	first = post(&end, SMALL + 4096);
	second = post(&end, BYTES);
	bnet_progress(end.conn);
	check(end.conn->streams[0]->out.request == first);
	atomic_store(&end.conn->level, STREAMS);
	check(finish(&end, second));
	check(!atomic_load(&first->done));
	reset(&end, 0);
	full = -1;
	check(!finish(&end, first));
	check_int(atomic_load(&end.conn->error), -ECONNRESET);
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

/* Passes in which nothing comes: until the streams' ends are seen. */
static void look(struct end *end)
{
	for (int i = 0; i < 1000 && !atomic_load(&end->conn->error); i++)
		bnet_progress(end->conn);
}

static void an_idle_stream_is_not_missed(int stream)
{
	struct end end = open_end(false);
	struct bnet_request *request = expect(&end);

	deliver_whole(&end, stream);
	check(receive(&end, request));
	request = expect(&end);
	reset(&end, stream);
	look(&end);
	check_int(atomic_load(&end.conn->error), 0);
	check(atomic_load(&end.conn->reap));
	deliver_whole(&end, (stream + 1) % STREAMS);
	check(receive(&end, request));
	close_end(&end);
}

/* The stream with an outstanding message has ended and was dropped. All others wait for the receive of a later one, and
 * what they say behind it is not read. */
static void what_an_ended_stream_lacks_is_missed(void)
{
	struct end end = open_end(false);
	struct bnet_request *request = expect(&end);

	reset(&end, 0);
	look(&end);
	check_int(atomic_load(&end.conn->error), 0);
	close(bnet_conn_drop_stream(end.conn, 0));
	end.sent++; /* the message that was lost */
	for (int i = 1; i < STREAMS; i++)
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

static void without_probes_nothing_is_left_to_the_sender(void)
{
	struct end end = open_end(false);
	struct bnet_request *request = expect(&end);

	config.keepalive = 0;
	deliver_whole(&end, 1);
	check(receive(&end, request));
	request = expect(&end);
	reset(&end, 1);
	check(!receive(&end, request));
	config.keepalive = 120;
	close_end(&end);
}

static void what_came_before_the_reset_is_read(void)
{
	struct end end = open_end(false);
	struct bnet_request *request;

	deliver_whole(&end, 1);
	while (queued(end.peers[1]))
		sched_yield();
	reset(&end, 1);
	request = expect(&end);
	check(receive(&end, request));
	look(&end);
	check_int(atomic_load(&end.conn->error), 0);
	close_end(&end);
}

static void a_sender_that_fails_is_believed(void)
{
	struct end end = open_end(false);
	struct bnet_request *request = expect(&end);

	reset(&end, 1);
	look(&end);
	check_int(atomic_load(&end.conn->error), 0);
	say(&end, 2, BNET_WIRE_FRAME_FAILED);
	check(!receive(&end, request));
	check_int(atomic_load(&end.conn->error), -ECONNRESET);
	close_end(&end);
}

/* It would say nothing. */
static void with_an_older_sender_the_connection_fails(void)
{
	struct end end = open_end(false);
	struct bnet_request *request = expect(&end);

	end.conn->says_failed = false;
	deliver_whole(&end, 1);
	check(receive(&end, request));
	request = expect(&end);
	reset(&end, 1);
	check(!receive(&end, request));
	check_int(atomic_load(&end.conn->error), -ECONNRESET);
	close_end(&end);
}

static void a_message_that_is_cut_off_fails_the_connection(void)
{
	struct end end = open_end(false);
	struct bnet_request *request = expect(&end);

	deliver(&end, 1, BNET_WIRE_DATA_HEADER + SMALL / 2);
	look(&end);
	reset(&end, 1);
	check(!receive(&end, request));
	check_int(atomic_load(&end.conn->error), -ECONNRESET);
	close_end(&end);
}

static void the_last_one_fails_the_connection(void)
{
	struct end end = open_end(false);
	struct bnet_request *request = expect(&end);

	for (int i = 0; i < STREAMS; i++) {
		check_int(atomic_load(&end.conn->error), 0);
		deliver_whole(&end, i);
		check(receive(&end, request));
		request = expect(&end);
		reset(&end, i);
		look(&end);
	}
	check(!receive(&end, request));
	check_int(atomic_load(&end.conn->error), -ECONNRESET);
	close_end(&end);
}

int main(void)
{
	alarm(100);
	for (int i = 0; i < STREAMS; i++)
		nothing_is_lost_with_an_idle_stream(i);
	inactive_streams_go_on();
	the_end_is_said_on_a_stream_that_lives();
	all_but_one_may_be_reset();
	without_another_stream_the_connection_fails();
	with_bytes_missing_the_connection_fails();
	a_sender_says_that_it_fails();
	an_older_slice_goes_behind_no_later_message();
	for (int i = 0; i < STREAMS; i++)
		an_idle_stream_is_not_missed(i);
	what_an_ended_stream_lacks_is_missed();
	the_reset_of_a_stream_without_a_frame_is_none();
	without_probes_nothing_is_left_to_the_sender();
	what_came_before_the_reset_is_read();
	a_sender_that_fails_is_believed();
	with_an_older_sender_the_connection_fails();
	a_message_that_is_cut_off_fails_the_connection();
	the_last_one_fails_the_connection();
	return 0;
}
