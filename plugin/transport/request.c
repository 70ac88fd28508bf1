/* SPDX-License-Identifier: MIT
 *
 * See request.h.
 */
#include "transport/request.h"

#include <errno.h>

#include "base/recorder.h"
#include "common/clock.h"

/* To read the clock twice takes a hundredth of a small message's time, so one of four is timed, at random: what a job
 * sends repeats itself. */
static bool is_timed(uint64_t number)
{
	return number * UINT64_C(0x9e3779b97f4a7c15) >> 62 == 0;
}

struct bnet_request *bnet_request_post(struct bnet_conn *conn, void *data, uint64_t size)
{
	uint64_t number = atomic_load_explicit(&conn->posted, memory_order_relaxed);
	struct bnet_request *request = &conn->ring[number % BNET_RING];
	int32_t before;

	if (atomic_load_explicit(&request->busy, memory_order_relaxed))
		return NULL;
	if (!conn->sender && bnet_reassembly_reserve(&request->reassembly, size) < 0) {
		bnet_conn_own(conn); /* only owners drop streams, and failing walks them */
		bnet_conn_fail(conn, -ENOMEM, "no memory for a receive of %llu bytes", (unsigned long long)size);
		bnet_conn_disown(conn);
		return NULL;
	}
	request->data = data;
	request->capacity = size;
	request->posted_us = is_timed(number) || bnet_recording_is_on() ? bnet_now_us() : 0;
	atomic_store_explicit(&request->size, size, memory_order_relaxed);
	atomic_store_explicit(&request->number, number, memory_order_relaxed);
	request->left = size ? size : 1;
	atomic_store_explicit(&request->known, false, memory_order_relaxed);
	/* After the number: who sees the slot in use again sees its new number; bnet_request_find relies on it. */
	atomic_store_explicit(&request->done, false, memory_order_release);
	atomic_store_explicit(&request->busy, true, memory_order_relaxed);
	atomic_fetch_add_explicit(&conn->posted_bytes, size, memory_order_relaxed);
	atomic_store_explicit(&conn->posted, number + 1, memory_order_release);
	/* Sequentially consistent, as is the control thread's look at it after it has set wake_on_post: one of
	 * the two sees the other. */
	before = (int32_t)atomic_fetch_add(&conn->outstanding, 1);
	atomic_store_explicit(&conn->light, size <= BNET_LIGHT && before == 0, memory_order_relaxed);
	return request;
}

uint64_t bnet_request_take(struct bnet_request *request)
{
	uint64_t size = atomic_load_explicit(&request->size, memory_order_relaxed);

	atomic_store_explicit(&request->busy, false, memory_order_release);
	return size;
}

struct bnet_request *bnet_request_find(struct bnet_conn *conn, uint64_t message)
{
	struct bnet_request *request = &conn->ring[message % BNET_RING];

	if (message >= atomic_load_explicit(&conn->posted, memory_order_acquire))
		return NULL;
	/* The poster may be reusing the slot of a finished message: it writes the number first and takes `done` back
	 * after that. So `done` is read first. Either it is still set, or the number read after it is the new one. */
	if (atomic_load_explicit(&request->done, memory_order_acquire) ||
	    atomic_load_explicit(&request->number, memory_order_relaxed) != message)
		return NULL;
	return request;
}

static void time_message(struct bnet_conn *conn, const struct bnet_request *request)
{
	const uint64_t number = atomic_load_explicit(&request->number, memory_order_relaxed), now = bnet_now_us();

	if (is_timed(number))
		bnet_count_latency(&conn->latencies, now - request->posted_us);
	if (bnet_recording_is_on())
		bnet_record(&(struct bnet_event){
			.kind = BNET_EVENT_MESSAGE,
			.begin_us = request->posted_us,
			.end_us = now,
			.connection = conn->id,
			.sender = conn->sender,
			.message = number,
			.bytes = atomic_load_explicit(&request->size, memory_order_relaxed),
		});
}

static void complete(struct bnet_conn *conn, struct bnet_request *request)
{
	if (request->posted_us)
		time_message(conn, request);
	/* The control thread that sees nothing outstanding sees what was written for it. */
	atomic_fetch_sub_explicit(&conn->outstanding, 1, memory_order_release);
	atomic_store_explicit(&request->done, true, memory_order_release);
}

void bnet_request_sent(struct bnet_conn *conn, struct bnet_request *request, uint64_t bytes)
{
	request->left -= bytes;
	if (request->left)
		return;
	bnet_conn_count(conn, messages_sent, 1);
	complete(conn, request);
}

void bnet_request_received(struct bnet_conn *conn, struct bnet_request *request)
{
	bnet_conn_count(conn, messages_received, 1);
	complete(conn, request);
}
