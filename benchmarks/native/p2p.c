/* SPDX-License-Identifier: MIT
 *
 * Point-to-point traffic over an ncclNet table, in the pattern of NCCL's progress thread: per pass each connection
 * posts at most one message and tests only its oldest one; a pass without progress yields the processor. One thread
 * per object, which also connects (NCCL has a second thread for that, but not on the data path).
 */
#include "traffic.h"

#include "common/client.h"

#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#define PAGE 4096

struct lane {
	void *comm;
	void *mhandle;
	char *slots; /* inflight × slot_size */
	void *requests[TRAFFIC_MAX_INFLIGHT];
	uint64_t posted;
	uint64_t done;
	uint64_t limit; /* post no message with this number or a later one */
	uint64_t bytes; /* received since the window opened */
};

struct p2p {
	struct bnet_client client;
	int ndev;    /* of the table */
	int devices; /* used by the lanes, in turn */
	int nap_us;
	int lanes;
	int inflight;
	size_t slot_size;
	void *listeners[TRAFFIC_MAX_LANES];
	struct lane send[TRAFFIC_MAX_LANES];
	struct lane recv[TRAFFIC_MAX_LANES];
	bool ending;  /* from now on only end marks are sent: messages of zero bytes */
	bool coupled; /* a message goes on only when one has come */
};

static _Thread_local char error_text[256];

const char *traffic_error(void)
{
	return error_text;
}

int traffic_fail(int error, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	vsnprintf(error_text, sizeof(error_text), format, args);
	va_end(args);
	return error;
}

int traffic_result(ncclResult_t result, const char *call)
{
	if (result == ncclSuccess)
		return 0;
	return traffic_fail(-EIO, "%s returned ncclResult %d", call, (int)result);
}

void traffic_log(ncclDebugLogLevel level, unsigned long flags, const char *file, int line, const char *format, ...)
{
	va_list args;

	(void)flags;
	(void)file;
	(void)line;
	if (level > NCCL_LOG_WARN && !getenv("TRACK_VERBOSE"))
		return;
	va_start(args, format);
	vfprintf(stderr, format, args);
	va_end(args);
	fputc('\n', stderr);
}

/* ---- setting up and taking down ---- */

int p2p_create(struct p2p **out, const void *table, int version, int devices, int lanes, int inflight, size_t largest)
{
	struct p2p *p2p;
	int err;

	if (lanes < 1 || lanes > TRAFFIC_MAX_LANES || inflight < 1 || inflight > TRAFFIC_MAX_INFLIGHT)
		return traffic_fail(-EINVAL, "%d lanes with %d messages each are out of range", lanes, inflight);
	p2p = calloc(1, sizeof(*p2p));
	if (!p2p)
		return traffic_fail(-ENOMEM, "no memory");
	p2p->devices = devices;
	p2p->lanes = lanes;
	p2p->inflight = inflight;
	p2p->slot_size = (largest + PAGE - 1) / PAGE * PAGE;
	err = traffic_result(bnet_client_init(&p2p->client, table, version, traffic_log), "init");
	if (!err)
		err = traffic_result(bnet_client_devices(&p2p->client, &p2p->ndev), "devices");
	if (!err && (devices < 1 || devices > p2p->ndev))
		err = traffic_fail(-ENODEV, "%d devices of %d", devices, p2p->ndev);
	if (err) {
		free(p2p);
		return err;
	}
	*out = p2p;
	return 0;
}

int p2p_devices(const struct p2p *p2p)
{
	return p2p->ndev;
}

void p2p_set_nap(struct p2p *p2p, int nap_us)
{
	p2p->nap_us = nap_us;
}

void p2p_set_coupled(struct p2p *p2p, bool coupled)
{
	p2p->coupled = coupled;
}

static int device_of(const struct p2p *p2p, int lane)
{
	return lane % p2p->devices;
}

size_t p2p_handle_size(const struct p2p *p2p)
{
	return bnet_client_handle_size(&p2p->client);
}

int p2p_listen(struct p2p *p2p, void *handles)
{
	size_t handle_size = p2p_handle_size(p2p);
	int err = 0;

	memset(handles, 0, (size_t)p2p->lanes * handle_size);
	for (int i = 0; i < p2p->lanes && !err; i++)
		err = traffic_result(bnet_client_listen(&p2p->client, device_of(p2p, i),
							(char *)handles + (size_t)i * handle_size, &p2p->listeners[i]),
				     "listen");
	return err;
}

static int lane_open(struct p2p *p2p, struct lane *lane)
{
	size_t size = (size_t)p2p->inflight * p2p->slot_size;

	lane->slots = aligned_alloc(PAGE, size);
	if (!lane->slots)
		return traffic_fail(-ENOMEM, "no memory for %zu bytes of buffers", size);
	memset(lane->slots, 1, size); /* real pages instead of the shared zero page */
	return traffic_result(bnet_client_reg(&p2p->client, lane->comm, lane->slots, size, NCCL_PTR_HOST,
					      &lane->mhandle),
			      "regMr");
}

/* One round of connects and accepts for the ends that are not connected; *missing: their number afterwards. */
static int connect_pass(struct p2p *p2p, char *handles, int *missing)
{
	size_t handle_size = p2p_handle_size(p2p);
	int err = 0;

	*missing = 0;
	for (int i = 0; i < p2p->lanes && !err; i++) {
		struct lane *send = &p2p->send[i];
		struct lane *recv = &p2p->recv[i];

		if (!send->comm)
			err = traffic_result(bnet_client_connect(&p2p->client, device_of(p2p, i),
								 handles + (size_t)i * handle_size, &send->comm),
					     "connect");
		if (!err && !recv->comm)
			err = traffic_result(bnet_client_accept(&p2p->client, p2p->listeners[i], &recv->comm),
					     "accept");
		*missing += !send->comm + !recv->comm;
	}
	return err;
}

int p2p_connect(struct p2p *p2p, const void *peer_handles, double timeout_s)
{
	size_t size = (size_t)p2p->lanes * p2p_handle_size(p2p);
	double deadline = traffic_now() + timeout_s;
	char *handles = malloc(size); /* the table may keep the state of a connect in the handle */
	int missing = 1;
	int err = 0;

	if (!handles)
		return traffic_fail(-ENOMEM, "no memory");
	memcpy(handles, peer_handles, size);
	while (missing && !err) {
		err = connect_pass(p2p, handles, &missing);
		if (!err && missing && traffic_now() > deadline)
			err = traffic_fail(-ETIMEDOUT, "%d of %d ends not connected after %.0f s", missing,
					   2 * p2p->lanes, timeout_s);
		sched_yield();
	}
	for (int i = 0; i < p2p->lanes && !err; i++) {
		err = lane_open(p2p, &p2p->send[i]);
		if (!err)
			err = lane_open(p2p, &p2p->recv[i]);
	}
	free(handles);
	return err;
}

static void lane_deregister(struct p2p *p2p, struct lane *lane)
{
	if (lane->mhandle)
		bnet_client_dereg(&p2p->client, lane->comm, lane->mhandle);
	free(lane->slots);
}

/* In NCCL's order: all memory, then the connections. */
void p2p_destroy(struct p2p *p2p)
{
	if (!p2p)
		return;
	for (int i = 0; i < p2p->lanes; i++) {
		lane_deregister(p2p, &p2p->send[i]);
		lane_deregister(p2p, &p2p->recv[i]);
	}
	for (int i = 0; i < p2p->lanes; i++) {
		if (p2p->send[i].comm)
			bnet_client_close_send(&p2p->client, p2p->send[i].comm);
		if (p2p->recv[i].comm)
			bnet_client_close_recv(&p2p->client, p2p->recv[i].comm);
		if (p2p->listeners[i])
			bnet_client_close_listen(&p2p->client, p2p->listeners[i]);
	}
	bnet_client_finalize(&p2p->client);
	free(p2p);
}

/* ---- one step of a lane ---- */

static char *slot_of(const struct p2p *p2p, const struct lane *lane, uint64_t number)
{
	return lane->slots + number % (uint64_t)p2p->inflight * p2p->slot_size;
}

static void **request_of(const struct p2p *p2p, struct lane *lane, uint64_t number)
{
	return &lane->requests[number % (uint64_t)p2p->inflight];
}

static bool lane_may_post(const struct p2p *p2p, const struct lane *lane)
{
	return lane->posted < lane->limit && lane->posted - lane->done < (uint64_t)p2p->inflight;
}

/* A NULL request means that the table cannot take the message now: the next pass tries again. */
static int post_send(struct p2p *p2p, struct lane *lane, size_t size)
{
	char *slot = slot_of(p2p, lane, lane->posted);
	void **request = request_of(p2p, lane, lane->posted);
	int err;

	traffic_stamp(slot, size, lane->posted);
	err = traffic_result(bnet_client_isend(&p2p->client, lane->comm, slot, size, 0, lane->mhandle, request),
			     "isend");
	if (!err && *request)
		lane->posted++;
	return err;
}

static int post_recv(struct p2p *p2p, struct lane *lane, size_t size)
{
	char *slot = slot_of(p2p, lane, lane->posted);
	void **request = request_of(p2p, lane, lane->posted);
	int err;

	err = traffic_result(bnet_client_irecv(&p2p->client, lane->comm, slot, size, 0, lane->mhandle, request),
			     "irecv");
	if (!err && *request)
		lane->posted++;
	return err;
}

/* *done: the oldest message is complete, and *size is its length. */
static int test_oldest(struct p2p *p2p, struct lane *lane, int *done, int *size)
{
	int err;

	*done = 0;
	if (lane->done == lane->posted)
		return 0;
	err = traffic_result(bnet_client_test(&p2p->client, *request_of(p2p, lane, lane->done), done, size), "test");
	if (!err && *done)
		lane->done++;
	return err;
}

/* The end marks do not wait for others'. */
static bool may_pass_on(const struct p2p *p2p, const struct lane *lane)
{
	const struct lane *from = &p2p->recv[lane - p2p->send];

	return !p2p->coupled || p2p->ending || lane->posted < from->done + (uint64_t)p2p->inflight;
}

static int send_step(struct p2p *p2p, struct lane *lane, size_t size, bool *moved)
{
	uint64_t posted = lane->posted;
	int done = 0;
	int unused = 0;
	int err = 0;

	if (lane_may_post(p2p, lane) && may_pass_on(p2p, lane))
		err = post_send(p2p, lane, p2p->ending ? 0 : size);
	if (!err)
		err = test_oldest(p2p, lane, &done, &unused);
	*moved |= done || lane->posted != posted;
	return err;
}

/* The first end mark fixes the number of messages: `inflight` marks follow each other, one for each receive that is
 * posted ahead. */
static int recv_step(struct p2p *p2p, struct lane *lane, size_t size, bool *moved)
{
	uint64_t posted = lane->posted;
	int done = 0;
	int got = 0;
	int err = 0;

	if (lane_may_post(p2p, lane))
		err = post_recv(p2p, lane, size);
	if (!err)
		err = test_oldest(p2p, lane, &done, &got);
	*moved |= done || lane->posted != posted;
	if (err || !done)
		return err;
	if (got == 0) {
		if (lane->limit == UINT64_MAX)
			lane->limit = lane->done - 1 + (uint64_t)p2p->inflight;
		return 0;
	}
	lane->bytes += (uint64_t)got;
	return traffic_check(slot_of(p2p, lane, lane->done - 1), (size_t)got, lane->done - 1);
}

/* ---- streaming ---- */

/* After a pass that moved nothing: yield as NCCL's thread does, or sleep. */
static void rest(const struct p2p *p2p)
{
	struct timespec nap = {.tv_nsec = p2p->nap_us * 1000L};

	if (p2p->nap_us)
		nanosleep(&nap, NULL);
	else
		sched_yield();
}

static int stream_pass(struct p2p *p2p, size_t size)
{
	bool moved = false;
	int err = 0;

	for (int i = 0; i < p2p->lanes && !err; i++) {
		err = send_step(p2p, &p2p->send[i], size, &moved);
		if (!err)
			err = recv_step(p2p, &p2p->recv[i], size, &moved);
	}
	if (!moved)
		rest(p2p);
	return err;
}

static int stream_until(struct p2p *p2p, size_t size, double end, double *now)
{
	int err = 0;

	do {
		err = stream_pass(p2p, size);
		*now = traffic_now();
	} while (!err && *now < end);
	return err;
}

static bool lanes_finished(const struct p2p *p2p)
{
	for (int i = 0; i < p2p->lanes; i++) {
		const struct lane *send = &p2p->send[i];
		const struct lane *recv = &p2p->recv[i];

		if (send->done < send->limit || recv->done < recv->limit)
			return false;
	}
	return true;
}

static int stream_drain(struct p2p *p2p, size_t size)
{
	int err = 0;

	p2p->ending = true;
	for (int i = 0; i < p2p->lanes; i++)
		p2p->send[i].limit = p2p->send[i].posted + (uint64_t)p2p->inflight;
	while (!err && !lanes_finished(p2p))
		err = stream_pass(p2p, size);
	return err;
}

static void count_from_here(struct p2p *p2p)
{
	for (int i = 0; i < p2p->lanes; i++)
		p2p->recv[i].bytes = 0;
}

static void count_lanes(const struct p2p *p2p, struct traffic_window *out)
{
	out->bytes = 0;
	out->slowest = UINT64_MAX;
	for (int i = 0; i < p2p->lanes; i++) {
		uint64_t bytes = p2p->recv[i].bytes;

		out->bytes += bytes;
		if (bytes < out->slowest)
			out->slowest = bytes;
	}
}

int p2p_stream(struct p2p *p2p, size_t size, double warm_up_s, double window_s, struct traffic_window *out)
{
	double start = traffic_now() + warm_up_s;
	struct traffic_usage before;
	double opened, closed, now;
	int err;

	p2p->ending = false;
	for (int i = 0; i < p2p->lanes; i++)
		p2p->send[i].limit = p2p->recv[i].limit = UINT64_MAX;
	err = stream_until(p2p, size, start, &opened);
	count_from_here(p2p);
	before = traffic_usage_now();
	if (!err)
		err = stream_until(p2p, size, opened + window_s, &closed);
	if (err)
		return err;
	out->seconds = closed - opened;
	out->used = traffic_usage_since(&before);
	count_lanes(p2p, out);
	err = stream_until(p2p, size, closed + TRAFFIC_TAIL_S, &now);
	return err ? err : stream_drain(p2p, size);
}

/* ---- idle ---- */

int p2p_idle(struct p2p *p2p, double window_s, struct traffic_window *out)
{
	(void)p2p; /* only the transport's own threads can be busy */
	traffic_idle(window_s, out);
	return 0;
}

/* ---- ping-pong ---- */

static int post_until_taken(struct p2p *p2p, struct lane *lane, size_t size,
			    int (*post)(struct p2p *, struct lane *, size_t))
{
	uint64_t posted = lane->posted;
	int err = 0;

	while (!err && lane->posted == posted)
		err = post(p2p, lane, size);
	return err;
}

/* Tests both directions until neither has anything outstanding: a transport may do all its work inside test. */
static int wait_all(struct p2p *p2p, struct lane *send, struct lane *recv, size_t size)
{
	int got = (int)size;
	int done = 0;
	int unused = 0;
	int err = 0;

	for (;;) {
		err = test_oldest(p2p, send, &done, &unused);
		if (!err)
			err = test_oldest(p2p, recv, &done, &got);
		if (err || (send->done == send->posted && recv->done == recv->posted))
			break;
		sched_yield();
	}
	if (!err && (size_t)got != size)
		err = traffic_fail(-EBADMSG, "%d bytes received where %zu were sent", got, size);
	return err ? err : traffic_check(slot_of(p2p, recv, recv->done - 1), size, recv->done - 1);
}

static int round_trip(struct p2p *p2p, int first, size_t size)
{
	struct lane *send = &p2p->send[0];
	struct lane *recv = &p2p->recv[0];
	int err = post_until_taken(p2p, recv, size, post_recv);

	if (!err && !first)
		err = wait_all(p2p, send, recv, size);
	if (!err)
		err = post_until_taken(p2p, send, size, post_send);
	return err ? err : wait_all(p2p, send, recv, size);
}

int p2p_pingpong(struct p2p *p2p, int first, size_t size, int warm_up, int rounds, double *half_us)
{
	int err = 0;

	for (int i = -warm_up; i < rounds && !err; i++) {
		double start = traffic_now();

		err = round_trip(p2p, first, size);
		if (first && i >= 0)
			half_us[i] = (traffic_now() - start) * 1e6 / 2;
	}
	return err;
}
