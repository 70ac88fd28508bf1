/* SPDX-License-Identifier: MIT
 *
 * Which streams a receiver reads: the first one directly, so that a small message is found by the next pass, but not
 * where the others keep it busy. In which order it writes a small message, and where a stream goes on that takes
 * another one's place.
 */
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "check.h"
#include "stream_pairs.h"
#include "transport/conn.h"
#include "transport/progress.h"
#include "transport/request.h"
#include "transport/source.h"

#define STREAMS 3
#define BYTES 100
#define QUIET_PASSES 100 /* the others are then asked on some passes only */
#define SOME_PASSES 20

static struct bnet_conn *conn;
static int peers[STREAMS];
static uint64_t posted;
static char into[BYTES];

/* A message that arrives by this stream, and its receive. */
static struct bnet_request *deliver_into(int stream, char *to)
{
	struct bnet_wire_data data = {.message = posted++, .size = BYTES, .length = BYTES};
	uint8_t bytes[BNET_WIRE_DATA_HEADER + BYTES];
	struct bnet_request *request;

	memset(bytes, 'x', sizeof(bytes));
	bnet_wire_data_encode(bytes, &data);
	check_int(send(peers[stream], bytes, sizeof(bytes), 0), sizeof(bytes));
	request = bnet_request_post(conn, to, BYTES);
	check(request != NULL);
	return request;
}

static struct bnet_request *deliver(int stream)
{
	return deliver_into(stream, into);
}

static bool is_done(const struct bnet_request *request)
{
	return atomic_load(&request->done);
}

/* Nothing is left of earlier messages, such as one that was only peeked at. */
static void settle(int passes)
{
	struct bnet_request *request = bnet_request_post(conn, into, BYTES);
	struct bnet_wire_data data = {.message = posted++, .size = 0, .length = 0};
	uint8_t bytes[BNET_WIRE_DATA_HEADER];

	check(request != NULL);
	for (int i = 0; i < passes; i++)
		bnet_progress(conn);
	bnet_wire_data_encode(bytes, &data);
	check_int(send(peers[0], bytes, sizeof(bytes), 0), sizeof(bytes));
	while (!is_done(request))
		bnet_progress(conn);
	bnet_request_take(request);
}

static void the_first_is_not_read_where_others_bring_something(void)
{
	for (int i = 1; i < STREAMS; i++) {
		struct bnet_request *request;
		uint64_t in_vain;

		settle(1);
		request = deliver(i);
		in_vain = atomic_load(&conn->counts.receive_again);
		while (!is_done(request))
			check(bnet_progress(conn) || is_done(request));
		check_int(atomic_load(&conn->counts.receive_again), in_vain);
		bnet_request_take(request);
	}
}

static void the_first_is_read_by_the_next_pass(void)
{
	for (int i = 0; i < SOME_PASSES; i++) {
		struct bnet_request *request;

		settle(QUIET_PASSES + i);
		request = deliver(0);
		bnet_progress(conn);
		check(is_done(request));
		bnet_request_take(request);
	}
}

static void the_first_is_read_while_others_bring_something(void)
{
	struct bnet_request *first, *others[SOME_PASSES];

	settle(1);
	others[0] = deliver(1);
	while (!is_done(others[0]))
		bnet_progress(conn);
	first = deliver(0);
	for (int i = 1; i < SOME_PASSES; i++) {
		others[i] = deliver(1);
		bnet_progress(conn);
	}
	check(is_done(first));
	while (!is_done(others[SOME_PASSES - 1]))
		bnet_progress(conn);
	bnet_request_take(first);
	for (int i = 0; i < SOME_PASSES; i++)
		bnet_request_take(others[i]);
}

/* ---- the order of writing ---- */

static char *boundary; /* from here on the first write is a fault */
static size_t before;  /* bytes of the message in front of it */
static volatile sig_atomic_t faults, missing;

static void on_fault(int number)
{
	(void)number;
	faults++;
	for (size_t i = 1; i <= before; i++)
		missing += boundary[-(ssize_t)i] != 'x';
	if (mprotect(boundary, (size_t)sysconf(_SC_PAGESIZE), PROT_READ | PROT_WRITE) != 0)
		_exit(1);
}

/* When a byte is written, all bytes of the message in front of it are in place. */
static void a_small_message_is_written_from_its_beginning(void)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE);
	char *pages = mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	check(pages != MAP_FAILED);
	boundary = pages + page;
	signal(SIGSEGV, on_fault);
	for (before = 1; before < BYTES; before++) {
		struct bnet_request *request;

		memset(pages, 0, 2 * page);
		check_int(mprotect(boundary, page, PROT_NONE), 0);
		faults = missing = 0;
		request = deliver_into(0, boundary - before);
		while (!is_done(request))
			bnet_progress(conn);
		check_int(faults, 1);
		check_int(missing, 0);
		check(boundary[(ssize_t)(BYTES - before) - 1] == 'x' && boundary[BYTES - before] == 0);
		bnet_request_take(request);
	}
	signal(SIGSEGV, SIG_DFL);
	munmap(pages, 2 * page);
}

/* A stream that takes the place of one which itself had been replaced, and on which nothing was sent, goes on where
 * that one did, also when the receiver had no memory for the first try. */
static void a_replacement_s_position_is_not_forgotten(void)
{
	struct bnet_stream *last = conn->streams[STREAMS - 1];

	last->serial = 5;
	last->in.repairs = 4;
	last->position = 1000;
	for (uint32_t serial = 6; serial < 8; serial++) {
		struct bnet_stream_start start = {.serial = serial, .repairs = 4};

		check_int(bnet_source_replace(conn, &start), 0);
		check_int(start.position, 1000);
	}
}

int main(void)
{
	conn = open_stream_pairs(false, peers, STREAMS);
	the_first_is_not_read_where_others_bring_something();
	the_first_is_read_by_the_next_pass();
	the_first_is_read_while_others_bring_something();
	a_small_message_is_written_from_its_beginning();
	a_replacement_s_position_is_not_forgotten();
	bnet_conn_free(conn);
	for (int i = 0; i < STREAMS; i++)
		close(peers[i]);
	return 0;
}
