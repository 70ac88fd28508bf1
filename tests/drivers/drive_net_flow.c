/* SPDX-License-Identifier: MIT
 *
 * One end of a connection in drive_net. Used by the progress thread of its communicator.
 */
#include "drive_net_flow.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GUARD_BYTES 64 /* behind every posted buffer; must stay untouched */
#define UNTOUCHED 0xa5

/* ---- sizes: half below 4 KiB, one in 500 up to the limit, zero among them ---- */

static size_t random_size(uint64_t *state, size_t limit)
{
	uint64_t kind = drive_random(state) % 1000;
	size_t size;

	if (kind < 50)
		size = 0;
	else if (kind < 500)
		size = drive_random(state) % 4096;
	else if (kind < 980)
		size = 4096 + drive_random(state) % 12288;
	else if (kind < 998)
		size = drive_random(state) % (256 << 10);
	else
		size = drive_random(state) % ((uint64_t)limit + 1);
	return size < limit ? size : limit;
}

size_t net_message_size(const struct net_options *options, int communicator, int connection, uint64_t message)
{
	uint64_t state = drive_mix(options->seed ^ drive_mix((uint64_t)communicator << 32 | (uint64_t)connection));

	if (options->nsizes)
		return options->sizes[message % (uint64_t)options->nsizes];
	state = drive_mix(state ^ message);
	return random_size(&state, options->max_size);
}

/* ---- life ---- */

void flow_init(struct flow *flow, const struct net_options *options, const struct bnet_client *client, int communicator,
	       int connection, bool sending)
{
	*flow = (struct flow){.options = options,
			      .client = client,
			      .communicator = communicator,
			      .connection = connection,
			      .sending = sending,
			      .peer = sending ? net_receiver(options, connection) : net_sender(options, connection),
			      .nslots = options->outstanding,
			      .stride = (options->max_size + GUARD_BYTES + 4095) / 4096 * 4096};
	flow->random = drive_mix(options->seed ^ (uint64_t)(connection * 2 + sending));
	flow->slots = calloc((size_t)flow->nslots, sizeof(*flow->slots));
	drive_check(flow->slots, "out of memory");
}

void flow_free(struct flow *flow)
{
	free(flow->slots);
}

void flow_describe(const struct flow *flow)
{
	static const char *const stages[] = {"opening", "moving", "finished", "closed"};
	uint64_t posted = atomic_load(&flow->posted), completed = atomic_load(&flow->completed);

	fprintf(stderr, "communicator %d connection %d, %s rank %d: %s, %llu of %d messages posted, %llu completed\n",
		flow->communicator, flow->connection, flow->sending ? "to" : "from", flow->peer,
		stages[atomic_load(&flow->stage)], (unsigned long long)posted, flow->options->messages,
		(unsigned long long)completed);
}

/* ---- posting ---- */

static struct drive_stamp stamp_of(const struct flow *flow, uint64_t message)
{
	int sender = net_sender(flow->options, flow->connection);

	return (struct drive_stamp){.sender = (uint32_t)(flow->communicator * NET_MAX_PROCS + sender),
				    .connection = (uint32_t)flow->connection,
				    .message = message};
}

static unsigned char *slot_buffer(const struct flow *flow, int slot)
{
	return flow->base + flow->stride * (size_t)slot;
}

static int free_slot(const struct flow *flow)
{
	for (int slot = 0; slot < flow->nslots; slot++)
		if (!flow->slots[slot].request)
			return slot;
	return -1;
}

/* *request may hold anything on entry: NULL, a stale pointer, or NCCL's "completion is optional" mark. */
static void *prefilled_request(struct flow *flow)
{
	static char stale;
	void *const values[] = {NULL, &stale, (void *)NCCL_NET_OPTIONAL_RECV_COMPLETION};

	return values[drive_random(&flow->random) % 3];
}

static size_t posted_size(struct flow *flow, size_t sent)
{
	size_t room = flow->options->max_size - sent;

	if (!flow->options->posted_larger || flow->sending)
		return sent;
	return sent + random_size(&flow->random, room);
}

/* Posts the next message in a free slot; false when the network asks to be called again. */
static bool post(struct flow *flow, int slot)
{
	uint64_t message = atomic_load_explicit(&flow->posted, memory_order_relaxed);
	size_t sent = net_message_size(flow->options, flow->communicator, flow->connection, message);
	size_t size = posted_size(flow, sent);
	unsigned char *buffer = slot_buffer(flow, slot);
	struct drive_stamp stamp = stamp_of(flow, message);
	void *request = prefilled_request(flow);

	if (flow->sending) {
		drive_fill(buffer, size, &stamp);
		drive_ok(bnet_client_isend(flow->client, flow->comm, buffer, size, 0, flow->mhandle, &request));
	} else {
		memset(buffer, UNTOUCHED, size + GUARD_BYTES);
		drive_ok(bnet_client_irecv(flow->client, flow->comm, buffer, size, 0, flow->mhandle, &request));
	}
	if (!request) {
		flow->retries++;
		return false;
	}
	flow->slots[slot] = (struct flow_slot){.request = request, .message = message, .posted = size};
	flow->queue[flow->queued++] = slot;
	atomic_store_explicit(&flow->posted, message + 1, memory_order_relaxed);
	return true;
}

static void post_all(struct flow *flow)
{
	while (flow->queued < flow->nslots &&
	       atomic_load_explicit(&flow->posted, memory_order_relaxed) < (uint64_t)flow->options->messages)
		if (!post(flow, free_slot(flow)))
			return;
}

/* ---- testing ---- */

static void check_received(struct flow *flow, int slot, size_t sent)
{
	const struct flow_slot *done = &flow->slots[slot];
	const unsigned char *buffer = slot_buffer(flow, slot);
	struct drive_stamp stamp = stamp_of(flow, done->message);
	ssize_t wrong = drive_mismatch(buffer, sent, &stamp);

	if (wrong >= 0)
		drive_fail("communicator %d connection %d message %llu of %zu bytes (%zu posted): wrong from byte %zd",
			   flow->communicator, flow->connection, (unsigned long long)done->message, sent, done->posted,
			   wrong);
	wrong = drive_untouched(buffer + sent, done->posted - sent + GUARD_BYTES, UNTOUCHED);
	if (wrong >= 0)
		drive_fail("communicator %d connection %d message %llu of %zu bytes (%zu posted): byte %zu behind it "
			   "was written",
			   flow->communicator, flow->connection, (unsigned long long)done->message, sent, done->posted,
			   sent + (size_t)wrong);
	flow->bytes += sent;
}

/* Tests the request at a place of the queue. True: it was done. */
static bool test_queued(struct flow *flow, int place)
{
	int slot = flow->queue[place], done = 0, size = -1;
	bool ask_size = drive_random(&flow->random) % 16 != 0;
	size_t sent = net_message_size(flow->options, flow->communicator, flow->connection, flow->slots[slot].message);

	drive_ok(bnet_client_test(flow->client, flow->slots[slot].request, &done, ask_size ? &size : NULL));
	if (!done)
		return false;
	if (ask_size && size != (int)sent)
		drive_fail("communicator %d connection %d message %llu: test says %d bytes, %zu were sent",
			   flow->communicator, flow->connection, (unsigned long long)flow->slots[slot].message, size,
			   sent);
	if (!flow->sending)
		check_received(flow, slot, sent);
	flow->slots[slot].request = NULL;
	memmove(&flow->queue[place], &flow->queue[place + 1],
		(size_t)(flow->queued - place - 1) * sizeof(flow->queue[0]));
	flow->queued--;
	atomic_fetch_add_explicit(&flow->completed, 1, memory_order_relaxed);
	return true;
}

bool flow_step(struct flow *flow)
{
	switch (flow->options->order) {
	case NET_OLDEST:
		post_all(flow);
		while (flow->queued && test_queued(flow, 0))
			;
		break;
	case NET_RANDOM:
		post_all(flow);
		if (flow->queued)
			test_queued(flow, (int)(drive_random(&flow->random) % (uint64_t)flow->queued));
		break;
	case NET_REVERSE: /* posts a full window and tests only the newest request, then the one before it, and so on */
		if (!flow->queued)
			post_all(flow);
		while (flow->queued && test_queued(flow, flow->queued - 1))
			;
		break;
	}
	return atomic_load_explicit(&flow->completed, memory_order_relaxed) == (uint64_t)flow->options->messages;
}
