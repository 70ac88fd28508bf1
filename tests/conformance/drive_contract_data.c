/* SPDX-License-Identifier: MIT
 *
 * Scenarios about messages: sizes, windows, the order of tests, and progress without a call.
 */
#include "drive_contract.h"

#include <sched.h>
#include <string.h>

#define WINDOW NCCL_NET_MAX_REQUESTS
#define UNTOUCHED 0xa5
#define MIB ((size_t)1 << 20)

static void zero_bytes(struct contract *c)
{
	static const size_t sizes[] = {0, 1, 0, 0, 100000, 0, 5, 0};
	struct pair pair;

	contract_load(c);
	pair = contract_pair(c);
	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++)
		contract_exchange(c, pair, sizes[i]);
	contract_close_pair(c, pair);
	contract_finalize(c);
}

/* Sizes around every multiple at which slices may be cut, one message after another on the same streams. */
static void slice_edges(struct contract *c)
{
	static const size_t edges[] = {16, 128, 4096, 65536, 131072, MIB, 3 * MIB};
	struct pair pair;

	contract_load(c);
	pair = contract_pair(c);
	for (size_t i = 0; i < sizeof(edges) / sizeof(edges[0]); i++)
		for (size_t size = edges[i] - 1; size <= edges[i] + 1; size++)
			contract_exchange(c, pair, size);
	contract_close_pair(c, pair);
	contract_finalize(c);
}

/* Both messages have arrived when the receiver first looks. Before them it got small messages that arrived alone. */
static void exchange_two(struct contract *c, struct pair pair, const size_t *sizes)
{
	struct region from = contract_map(c, pair.send, 2 * MIB), to = contract_map(c, pair.recv, 2 * MIB);
	void *sends[2], *receives[2];

	for (int i = 0; i < 2; i++) {
		struct drive_stamp stamp = contract_stamp((uint64_t)i);

		drive_fill(from.data + (size_t)i * MIB, sizes[i], &stamp);
		sends[i] = contract_isend(c, &from, (size_t)i * MIB, sizes[i]);
	}
	for (int i = 0; i < 2; i++)
		receives[i] = contract_irecv(c, &to, (size_t)i * MIB, MIB);
	for (int i = 0; i < 2; i++) {
		struct drive_stamp stamp = contract_stamp((uint64_t)i);
		struct sizes got = contract_wait_both(c, sends[i], receives[i]);

		drive_check(got.received == (int)sizes[i], "%d bytes of %zu received", got.received, sizes[i]);
		drive_check(drive_mismatch(to.data + (size_t)i * MIB, sizes[i], &stamp) < 0, "%zu bytes came out wrong",
			    sizes[i]);
	}
	contract_unmap(c, &from);
	contract_unmap(c, &to);
}

static void small_alone(struct contract *c)
{
	static const size_t together[][2] = {
		{100, 100}, {100, 0},  {0, 100},  {100, MIB}, {MIB, 100}, {2000, 2000},
		{2016, 1},  {1, 4063}, {4063, 1}, {4064, 1},  {4065, 1},  {4096, 4096},
	};
	struct pair pair;

	contract_load(c);
	pair = contract_pair(c);
	for (size_t i = 0; i < sizeof(together) / sizeof(together[0]); i++) {
		for (size_t size = 98; size <= 100; size++)
			contract_exchange(c, pair, size);
		exchange_two(c, pair, together[i]);
	}
	contract_close_pair(c, pair);
	contract_finalize(c);
}

static void receive_larger(struct contract *c)
{
	static const size_t sent[] = {0, 1, 1000, 4097, 300000};
	struct pair pair;
	struct region from, to;

	contract_load(c);
	pair = contract_pair(c);
	from = contract_map(c, pair.send, MIB);
	to = contract_map(c, pair.recv, MIB);
	for (size_t i = 0; i < sizeof(sent) / sizeof(sent[0]); i++) {
		struct drive_stamp stamp = contract_stamp(i);
		struct sizes sizes;
		void *receiving;

		drive_fill(from.data, sent[i], &stamp);
		memset(to.data, UNTOUCHED, to.size);
		receiving = contract_irecv(c, &to, 0, to.size);
		sizes = contract_wait_both(c, contract_isend(c, &from, 0, sent[i]), receiving);
		drive_check(sizes.sent == (int)sent[i] && sizes.received == (int)sent[i],
			    "%zu bytes: %d sent, %d received", sent[i], sizes.sent, sizes.received);
		drive_check(drive_mismatch(to.data, sent[i], &stamp) < 0, "%zu bytes came out wrong", sent[i]);
		drive_check(drive_untouched(to.data + sent[i], to.size - sent[i], UNTOUCHED) < 0,
			    "bytes behind a message of %zu were written", sent[i]);
	}
	contract_unmap(c, &from);
	contract_unmap(c, &to);
	contract_close_pair(c, pair);
	contract_finalize(c);
}

static void expect_truncation(struct contract *c, size_t sent, size_t posted, const char *sent_text,
			      const char *posted_text)
{
	struct pair pair = contract_pair(c);
	struct region from = contract_map(c, pair.send, sent), to = contract_map(c, pair.recv, sent);

	memset(to.data, UNTOUCHED, to.size);
	contract_isend(c, &from, 0, sent);
	drive_check(contract_wait_error(c, contract_irecv(c, &to, 0, posted)) == ncclInvalidUsage,
		    "truncation is not reported as ncclInvalidUsage");
	drive_check(drive_untouched(to.data + posted, to.size - posted, UNTOUCHED) < 0,
		    "it wrote past what was posted");
	drive_check(drive_log_has(NCCL_LOG_WARN, sent_text, posted_text), "no warning names %s and %s bytes", sent_text,
		    posted_text);
	contract_unmap(c, &from);
	contract_unmap(c, &to);
	contract_close_pair(c, pair);
}

static void truncation(struct contract *c)
{
	contract_load(c);
	expect_truncation(c, 5003, 1009, "5003", "1009");
	expect_truncation(c, 3000017, 100003, "3000017", "100003");
	expect_truncation(c, 71, 0, "71", "0");
	contract_finalize(c);
}

/* ---- windows and the order of tests ---- */

struct window {
	struct pair pair;
	struct region from, to;
	size_t stride;
	void *sends[WINDOW], *receives[WINDOW];
};

static size_t window_size(int index)
{
	return index % 5 == 3 ? 0 : (size_t)index * 7001 + 13;
}

/* Posts the whole window of both ends before the first test. */
static void post_window(struct contract *c, struct window *w, bool receives_first)
{
	w->stride = MIB / 4;
	w->pair = contract_pair(c);
	w->from = contract_map(c, w->pair.send, w->stride * WINDOW);
	w->to = contract_map(c, w->pair.recv, w->stride * WINDOW);
	for (int pass = 0; pass < 2; pass++) {
		for (int i = 0; i < WINDOW; i++) {
			struct drive_stamp stamp = contract_stamp((uint64_t)i);
			size_t at = w->stride * (size_t)i, size = window_size(i);

			if ((pass == 0) == receives_first) {
				w->receives[i] = contract_irecv(c, &w->to, at, size);
			} else {
				drive_fill(w->from.data + at, size, &stamp);
				w->sends[i] = contract_isend(c, &w->from, at, size);
			}
		}
	}
}

static void finish_receive(struct contract *c, struct window *w, int i)
{
	struct drive_stamp stamp = contract_stamp((uint64_t)i);
	int got = contract_wait(c, w->receives[i]);

	drive_check(got == (int)window_size(i), "receive %d reports %d bytes", i, got);
	drive_check(drive_mismatch(w->to.data + w->stride * (size_t)i, window_size(i), &stamp) < 0,
		    "message %d came out wrong", i);
}

static void finish_send(struct contract *c, struct window *w, int i)
{
	int got = contract_wait(c, w->sends[i]);

	drive_check(got == (int)window_size(i), "send %d reports %d bytes", i, got);
}

static void close_window(struct contract *c, struct window *w)
{
	contract_unmap(c, &w->from);
	contract_unmap(c, &w->to);
	contract_close_pair(c, w->pair);
}

static void many_posted(struct contract *c)
{
	struct window w;

	contract_load(c);
	for (int first = 0; first < 2; first++) {
		post_window(c, &w, first);
		for (int i = 0; i < WINDOW; i++) {
			finish_receive(c, &w, i);
			finish_send(c, &w, i);
		}
		close_window(c, &w);
	}
	contract_finalize(c);
}

static void any_order(struct contract *c)
{
	struct window w;

	contract_load(c);
	post_window(c, &w, true);
	for (int i = WINDOW - 1; i >= 0; i--)
		finish_receive(c, &w, i);
	for (int i = 0; i < WINDOW; i++)
		finish_send(c, &w, (i * 13 + 5) % WINDOW);
	close_window(c, &w);
	contract_finalize(c);
}

/* Only the last receive is tested, and no send. Both windows complete. */
static void completion_untested(struct contract *c)
{
	struct window w;

	contract_load(c);
	post_window(c, &w, false);
	finish_receive(c, &w, WINDOW - 1);
	for (int i = 0; i < WINDOW; i++)
		finish_send(c, &w, i);
	for (int i = 0; i < WINDOW - 1; i++)
		finish_receive(c, &w, i);
	close_window(c, &w);
	contract_finalize(c);
}

/* ---- progress without a call ---- */

/* Posts everything, then makes no call until the peer has received all of it. */
static void silent_sender(struct contract *c)
{
	struct region region;
	void *requests[8];

	contract_load(c);
	region = contract_map(c, contract_connect_to_peer(c), 8 * MIB);
	for (size_t i = 0; i < 8; i++) {
		struct drive_stamp stamp = contract_stamp(i);

		drive_fill(region.data + i * MIB, MIB, &stamp);
		requests[i] = contract_isend(c, &region, i * MIB, MIB);
	}
	contract_await(c, 'r');
	for (int i = 0; i < 8; i++)
		contract_wait(c, requests[i]);
	contract_unmap(c, &region);
	drive_ok(bnet_client_close_send(&c->client, region.comm));
	contract_finalize(c);
}

static void silent_sender_peer(struct contract *c)
{
	void *comm;

	contract_load(c);
	comm = contract_accept_from_peer(c);
	for (uint64_t i = 0; i < 8; i++)
		contract_recv_stamped(c, comm, MIB, i);
	contract_tell(c, 'r');
	drive_ok(bnet_client_close_recv(&c->client, comm));
	contract_finalize(c);
}

/* The receiver posts everything, then makes no call until the peer's sends are done. They exceed any buffer. */
static void silent_receiver(struct contract *c)
{
	struct region region;
	void *requests[8];

	contract_load(c);
	region = contract_map(c, contract_accept_from_peer(c), 32 * MIB);
	for (size_t i = 0; i < 8; i++)
		requests[i] = contract_irecv(c, &region, i * 4 * MIB, 4 * MIB);
	contract_tell(c, 'p');
	contract_await(c, 's');
	for (size_t i = 0; i < 8; i++) {
		struct drive_stamp stamp = contract_stamp(i);

		contract_wait(c, requests[i]);
		drive_check(drive_mismatch(region.data + i * 4 * MIB, 4 * MIB, &stamp) < 0, "message %zu is wrong", i);
	}
	contract_unmap(c, &region);
	drive_ok(bnet_client_close_recv(&c->client, region.comm));
	contract_finalize(c);
}

static void silent_receiver_peer(struct contract *c)
{
	void *comm;

	contract_load(c);
	comm = contract_connect_to_peer(c);
	contract_await(c, 'p');
	for (uint64_t i = 0; i < 8; i++)
		contract_send_stamped(c, comm, 4 * MIB, i);
	contract_tell(c, 's');
	drive_ok(bnet_client_close_send(&c->client, comm));
	contract_finalize(c);
}

/* ---- the request pointer and the size pointer ---- */

/* Posts until the network asks to be called again, or a hundred times. *request is written each time. */
static void request_written(struct contract *c)
{
	static char stale;
	struct pair pair;
	struct region from, to;
	void *sends[100], *receives[100];
	int sent = 0, received = 0;

	contract_load(c);
	pair = contract_pair(c);
	from = contract_map(c, pair.send, 4096);
	to = contract_map(c, pair.recv, 100 * 64);
	for (void *request = &stale; received < 100 && request; request = received % 2 ? &stale : (void *)1) {
		drive_ok(
			bnet_client_irecv(&c->client, pair.recv, to.data + received * 64, 64, 0, to.mhandle, &request));
		drive_check(request != &stale && request != (void *)1, "irecv left *request as it was");
		if (!request)
			break;
		receives[received++] = request;
	}
	for (void *request = &stale; sent < received; request = &stale) {
		drive_ok(bnet_client_isend(&c->client, pair.send, from.data, 64, 0, from.mhandle, &request));
		drive_check(request != &stale, "isend left *request as it was");
		if (!request)
			break;
		sends[sent++] = request;
	}
	drive_check(received >= WINDOW && sent >= WINDOW, "only %d receives and %d sends fit", received, sent);
	for (int i = 0; i < sent; i++) {
		contract_wait(c, sends[i]);
		contract_wait(c, receives[i]);
	}
	contract_unmap(c, &from);
	contract_unmap(c, &to);
	contract_close_pair(c, pair);
	contract_finalize(c);
}

static void null_size(struct contract *c)
{
	struct pair pair;
	struct region from, to;
	void *sending, *receiving;
	int sent = 0, received = 0;

	contract_load(c);
	pair = contract_pair(c);
	from = contract_map(c, pair.send, 4096);
	to = contract_map(c, pair.recv, 4096);
	sending = contract_isend(c, &from, 0, 4096);
	receiving = contract_irecv(c, &to, 0, 4096);
	while (!sent || !received) {
		if (!sent)
			drive_ok(bnet_client_test(&c->client, sending, &sent, NULL));
		if (!received)
			drive_ok(bnet_client_test(&c->client, receiving, &received, NULL));
		sched_yield();
	}
	contract_unmap(c, &from);
	contract_unmap(c, &to);
	contract_close_pair(c, pair);
	contract_finalize(c);
}

const struct scenario contract_data_scenarios[] = {
	{"zero_bytes", zero_bytes, NULL, 0},
	{"slice_edges", slice_edges, NULL, 0},
	{"small_alone", small_alone, NULL, 0},
	{"receive_larger", receive_larger, NULL, 0},
	{"truncation", truncation, NULL, 0},
	{"many_posted", many_posted, NULL, 0},
	{"any_order", any_order, NULL, 0},
	{"completion_untested", completion_untested, NULL, 0},
	{"silent_sender", silent_sender, silent_sender_peer, 0},
	{"silent_receiver", silent_receiver, silent_receiver_peer, 0},
	{"request_written", request_written, NULL, 0},
	{"null_size", null_size, NULL, 0},
	{NULL, NULL, NULL, 0},
};
