/* SPDX-License-Identifier: MIT
 *
 * Streams that are reset while data moves, and others that take their place: every message arrives, whole and once.
 * Both ends and what the control thread does between them are in this thread, in an order that a seed chooses. Every
 * other seed sends without a copy, so that the kernel holds memory of the sends when a stream ends.
 *
 *   test_repair [FIRST_SEED [LAST_SEED]]
 */
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/socket.h"
#include "check.h"
#include "tcp_pair.h"
#include "transport/conn.h"
#include "transport/progress.h"
#include "transport/request.h"
#include "transport/rx.h"
#include "transport/source.h"
#include "transport/retention.h"
#include "transport/tx.h"
#include "transport/zerocopy.h"

#define MOST_STREAMS 4
#define SLOTS 8
#define LARGEST (300 << 10)
#define MESSAGES 60
#define STEPS 2000000
#ifndef SO_ZEROCOPY
#define SO_ZEROCOPY 60 /* missing in kernel headers before Linux 4.14 */
#endif
#define DEADLINE_S 250 /* of the whole program */

static struct bnet_config config = {.min_chunksize = 4096, .max_chunksize = 65536, .keepalive = 120, .repair = 1};
static struct bnet_device device = {.name = "unit", .address = ""};

/* ---- random numbers, the same for a seed ---- */

static uint64_t state;

static uint32_t any(uint32_t below)
{
	state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
	return (uint32_t)(state >> 33) % below;
}

/* ---- both ends ---- */

struct slot {
	struct bnet_request *request;
	unsigned char *memory;
	uint64_t number;
};

static struct {
	struct bnet_conn *sender, *receiver;
	uint32_t serial;
	struct slot sends[SLOTS], receives[SLOTS];
	uint64_t sent, posted, arrived; /* messages */
	uint64_t resets, repairs;
	uint64_t pinned; /* streams that were reset while the kernel held memory of a send */
} ends;

static void open_pair(int pair[2])
{
	int small = 32768;

	open_tcp_pair(pair);
	/* Full sockets, so that slices are cut off. */
	if (any(2))
		setsockopt(pair[0], SOL_SOCKET, SO_SNDBUF, &small, sizeof(small));
	for (int i = 0; i < 2; i++) {
		bnet_fd_opened(pair[i]);
		check_int(fcntl(pair[i], F_SETFL, O_NONBLOCK), 0);
	}
}

static void join(struct bnet_stream *replaces)
{
	struct bnet_stream_start tx = {.serial = ++ends.serial, .replaces = replaces};
	struct bnet_stream_start rx = {.serial = ends.serial, .repairs = replaces ? replaces->serial : 0};
	int pair[2];

	open_pair(pair);
	if (replaces)
		check_int(bnet_source_replace(ends.receiver, &rx), 0);
	tx.position = rx.position;
	if (any(2)) /* its caller comes before the new stream */
		bnet_progress(ends.receiver);
	check_int(bnet_conn_add_stream(ends.receiver, pair[1], &rx), 0);
	if (replaces && any(4) == 0) { /* the answer is lost: it is asked again */
		close(pair[0]);
		join(replaces);
		check_int(bnet_source_replace(ends.receiver, &rx), -ESTALE); /* it was on its way for long */
		return;
	}
	check_int(bnet_conn_add_stream(ends.sender, pair[0], &tx), 0);
}

static void open_ends(int streams)
{
	memset(&ends, 0, sizeof(ends));
	ends.sender = bnet_conn_new(true, &device, &config, false);
	ends.receiver = bnet_conn_new(false, &device, &config, false);
	check(ends.sender && ends.receiver);
	ends.sender->repairs = ends.receiver->repairs = true;
	bnet_zerocopy_start(ends.sender);
	for (int i = 0; i < streams; i++)
		join(NULL);
	atomic_store(&ends.sender->level, streams);
	ends.receiver->gone = true; /* a stream was closed before, as by the scaler */
	for (int i = 0; i < SLOTS; i++) {
		ends.sends[i].memory = malloc(LARGEST);
		ends.receives[i].memory = malloc(LARGEST);
	}
}

static void close_ends(void)
{
	bnet_conn_free(ends.sender);
	bnet_conn_free(ends.receiver);
	for (int i = 0; i < SLOTS; i++) {
		free(ends.sends[i].memory);
		free(ends.receives[i].memory);
	}
}

static bool kernel_can_pin(void)
{
	int one = 1, pair[2];
	bool can;

	open_tcp_pair(pair);
	can = setsockopt(pair[0], SOL_SOCKET, SO_ZEROCOPY, &one, sizeof(one)) == 0;
	close(pair[0]);
	close(pair[1]);
	return can;
}

/* ---- the messages ---- */

static uint64_t size_of(uint64_t number)
{
	static const uint64_t sizes[] = {0, 1, 100, 2048, 2049, 5000, 65536, 100000, LARGEST};

	return sizes[number * 7 % (sizeof(sizes) / sizeof(*sizes))];
}

static unsigned char byte_of(uint64_t number, uint64_t at)
{
	return (unsigned char)(number * 31 + at * 7 + at / 4096);
}

static struct slot *free_slot(struct slot *slots)
{
	for (int i = 0; i < SLOTS; i++)
		if (!slots[i].request)
			return &slots[i];
	return NULL;
}

static void post_send(void)
{
	struct slot *slot = free_slot(ends.sends);
	uint64_t size = size_of(ends.sent);

	if (!slot || ends.sent == MESSAGES)
		return;
	for (uint64_t i = 0; i < size; i++)
		slot->memory[i] = byte_of(ends.sent, i);
	slot->request = bnet_request_post(ends.sender, slot->memory, size);
	check(slot->request != NULL);
	ends.sent++;
}

static void post_receive(void)
{
	struct slot *slot = free_slot(ends.receives);

	if (!slot || ends.posted == MESSAGES)
		return;
	memset(slot->memory, 0xee, LARGEST);
	slot->number = ends.posted++;
	slot->request = bnet_request_post(ends.receiver, slot->memory, LARGEST);
	check(slot->request != NULL);
}

/* A send's memory is its caller's again: what is sent after this would be wrong. */
static void end_sends(void)
{
	for (int i = 0; i < SLOTS; i++) {
		struct slot *slot = &ends.sends[i];

		if (!slot->request || !atomic_load(&slot->request->done))
			continue;
		bnet_request_take(slot->request);
		slot->request = NULL;
		memset(slot->memory, 0xdd, LARGEST);
	}
}

static void end_receives(void)
{
	for (int i = 0; i < SLOTS; i++) {
		struct slot *slot = &ends.receives[i];
		uint64_t size;

		if (!slot->request || !atomic_load(&slot->request->done))
			continue;
		size = bnet_request_take(slot->request);
		slot->request = NULL;
		check_int(size, size_of(slot->number));
		for (uint64_t at = 0; at < size; at++)
			check(slot->memory[at] == byte_of(slot->number, at));
		ends.arrived++;
	}
}

/* ---- what happens to the streams ---- */

/* In the middle of whatever it is doing. Its receiver keeps what it has got. It learns of the reset, or, where this
 * process may arrange that, does not. */
static void reset_one(void)
{
	int streams = atomic_load(&ends.sender->nstreams), silent = 1, fd;
	const struct bnet_stream *stream;

	if (streams == 0)
		return;
	stream = ends.sender->streams[any((uint32_t)streams)];
	fd = stream->fd;
	ends.pinned += !stream->broken && bnet_zerocopy_pending(&stream->zerocopy);
	if (any(3) == 0)
		setsockopt(fd, IPPROTO_TCP, TCP_REPAIR, &silent, sizeof(silent));
	bnet_socket_reset(fd);
	ends.resets++;
}

/* As the control thread does: it looks for streams that have ended although nothing is to be written on them. */
static void repair(void)
{
	const struct bnet_silence_limit patient = {.looks = 0};

	for (int i = atomic_load(&ends.sender->nstreams) - 1; i >= 0; i--) {
		struct bnet_stream *broken = ends.sender->streams[i];

		if (!broken->broken && bnet_delivery_look(&broken->delivery, broken->fd, patient) == BNET_DELIVERY_LOST)
			bnet_tx_break(ends.sender, broken, -ECONNRESET);
		if (!broken->broken)
			continue;
		broken = bnet_conn_take_stream(ends.sender, i);
		bnet_socket_close(broken->fd);
		check_int(bnet_retention_bury(ends.sender, broken), 0);
		join(broken);
		ends.repairs++;
	}
}

static void reap(void)
{
	for (int i = atomic_load(&ends.receiver->nstreams) - 1; i >= 0 && ends.receiver->nstreams > 1; i--)
		if (ends.receiver->streams[i]->in.state == BNET_INCOMING_ENDED && !ends.receiver->streams[i]->in.awaits)
			bnet_socket_close(bnet_conn_drop_stream(ends.receiver, i));
}

static void step(uint32_t every)
{
	switch (any(8)) {
	case 0:
		post_send();
		break;
	case 1:
		if (any(4) == 0)
			post_receive();
		break;
	case 2:
		repair();
		reap();
		break;
	case 3:
	case 4:
		bnet_progress(ends.receiver);
		break;
	default:
		bnet_progress(ends.sender);
	}
	if (any(every) == 0)
		reset_one();
	end_sends();
	end_receives();
}

static bool run(uint64_t seed, int streams, uint32_t every)
{
	int steps = 0;

	state = seed;
	config.zerocopy = seed % 2 == 0;
	open_ends(streams);
	while (ends.arrived < MESSAGES && steps++ < STEPS) {
		step(every);
		if (atomic_load(&ends.sender->error) || atomic_load(&ends.receiver->error)) {
			fprintf(stderr, "seed %llu, %d streams: sender %d, receiver %d\n", (unsigned long long)seed,
				streams, atomic_load(&ends.sender->error), atomic_load(&ends.receiver->error));
			return false;
		}
	}
	if (ends.arrived < MESSAGES)
		fprintf(stderr, "seed %llu, %d streams: %llu of %d messages have arrived\n", (unsigned long long)seed,
			streams, (unsigned long long)ends.arrived, MESSAGES);
	return ends.arrived == MESSAGES;
}

int main(int argc, char **argv)
{
	const uint64_t from = argc > 1 ? strtoull(argv[1], NULL, 0) : 1, to = argc > 2 ? strtoull(argv[2], NULL, 0)
									      : is_nightly() ? 30
									      : is_brief()   ? 4
											     : 10;
	uint64_t resets = 0, repairs = 0, pinned = 0;

	alarm(DEADLINE_S);
	/* Old ones are still to be read while others are in their place. */
	check(run(from, BNET_MAX_STREAMS, 5));
	close_ends();
	for (uint64_t seed = from; seed <= to; seed++)
		for (int streams = 1; streams <= MOST_STREAMS; streams++) {
			check(run(seed, streams, 40 + (uint32_t)seed % 7 * 40));
			resets += ends.resets;
			repairs += ends.repairs;
			pinned += ends.pinned;
			close_ends();
		}
	printf("%llu resets, %llu of them with pinned memory, %llu repairs\n", (unsigned long long)resets,
	       (unsigned long long)pinned, (unsigned long long)repairs);
	check(repairs > 0);
	check(pinned > 0 || argc > 1 || !kernel_can_pin());
	return 0;
}
