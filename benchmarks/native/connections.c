/* SPDX-License-Identifier: MIT
 *
 * Many connections over an ncclNet table: what it takes to make them, to have them, and to end them. Every call is
 * timed, since a call that takes long holds up all other connections of NCCL's thread: it waits for a lock, or it does
 * too much. One thread per object, as in p2p.c, which does not time its calls and so carries more.
 */
#include "traffic.h"

#include "common/client.h"

#include <sched.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/resource.h>

/* A message of an end of a connection: one is outstanding at a time. */
struct end {
	void *comm;
	void *mhandle;
	void *request;
	char *slot;
	bool last; /* of a sender: the end mark was sent; of a receiver: it has arrived */
};

struct many {
	struct bnet_client client;
	int count; /* of connections from this rank, and of those to it */
	size_t size;
	void **listeners;
	struct end *sends, *receives;
	char *memory; /* the ends' slots */
	struct many_calls calls;
	long waits; /* voluntary switches of this thread until the last call */
	uint64_t moved;
};

/* ---- timed calls ---- */

static long switches(void)
{
	struct rusage usage;

	getrusage(RUSAGE_THREAD, &usage);
	return usage.ru_nvcsw;
}

static void begin_calls(struct many *many)
{
	many->calls = (struct many_calls){.count = 0};
	many->waits = switches();
}

/* Keeps the duration of a call that began at `start`. A thread that waits gives its processor up, one that is only
 * interrupted does not. */
static void count_call(struct many *many, double start)
{
	double took = traffic_now() - start;
	long waits = switches();

	many->calls.count++;
	if (took > many->calls.longest)
		many->calls.longest = took;
	if (waits != many->waits && took > many->calls.longest_wait)
		many->calls.longest_wait = took;
	many->waits = waits;
}

#define timed(many, name, ...)                                                          \
	({                                                                              \
		double timed_start = traffic_now();                                     \
		int timed_err = traffic_result(bnet_client_##name(__VA_ARGS__), #name); \
		count_call((many), timed_start);                                        \
		timed_err;                                                              \
	})

/* ---- making them ---- */

static void raise_descriptor_limit(void)
{
	struct rlimit limit;

	if (getrlimit(RLIMIT_NOFILE, &limit) < 0)
		return;
	limit.rlim_cur = limit.rlim_max;
	setrlimit(RLIMIT_NOFILE, &limit);
}

static int allocate(struct many *many)
{
	size_t ends = (size_t)many->count;

	many->listeners = calloc(ends, sizeof(*many->listeners));
	many->sends = calloc(ends, sizeof(*many->sends));
	many->receives = calloc(ends, sizeof(*many->receives));
	many->memory = calloc(2 * ends, many->size);
	if (!many->listeners || !many->sends || !many->receives || !many->memory)
		return traffic_fail(-ENOMEM, "no memory");
	for (size_t i = 0; i < ends; i++) {
		many->sends[i].slot = many->memory + i * many->size;
		many->receives[i].slot = many->memory + (ends + i) * many->size;
	}
	return 0;
}

static void release(struct many *many)
{
	free(many->listeners);
	free(many->sends);
	free(many->receives);
	free(many->memory);
	free(many);
}

int many_create(struct many **out, const void *table, int version, int count, size_t size)
{
	struct many *many;
	int err;

	if (count < 1 || count > MANY_MOST || size < MANY_LEAST_SIZE)
		return traffic_fail(-EINVAL, "%d connections with messages of %zu bytes are out of range", count, size);
	many = calloc(1, sizeof(*many));
	if (!many)
		return traffic_fail(-ENOMEM, "no memory");
	many->count = count;
	many->size = size;
	raise_descriptor_limit();
	err = allocate(many);
	if (!err)
		err = traffic_result(bnet_client_init(&many->client, table, version, traffic_log), "init");
	if (err) {
		release(many);
		return err;
	}
	*out = many;
	return 0;
}

size_t many_handle_size(const struct many *many)
{
	return bnet_client_handle_size(&many->client);
}

int many_listen(struct many *many, void *handles, struct many_calls *out)
{
	size_t handle_size = many_handle_size(many);
	double start = traffic_now();
	int err = 0;

	memset(handles, 0, (size_t)many->count * handle_size);
	begin_calls(many);
	for (int i = 0; i < many->count && !err; i++)
		err = timed(many, listen, &many->client, 0, (char *)handles + (size_t)i * handle_size,
			    &many->listeners[i]);
	*out = many->calls;
	out->began = start;
	out->ended = traffic_now();
	return err;
}

static int accept_one(struct many *many, int i)
{
	int err = timed(many, accept, &many->client, many->listeners[i], &many->receives[i].comm);

	/* NCCL closes a listen object after its accept. */
	if (err || !many->receives[i].comm)
		return err;
	err = timed(many, close_listen, &many->client, many->listeners[i]);
	many->listeners[i] = NULL;
	return err;
}

/* A call for each end from `from` to `to` that is not connected; *missing: their number afterwards. */
static int connect_pass(struct many *many, char *handles, int from, int to, int *missing)
{
	size_t handle_size = many_handle_size(many);
	int err = 0;

	*missing = 0;
	for (int i = from; i < to && !err; i++) {
		if (!many->sends[i].comm)
			err = timed(many, connect, &many->client, 0, handles + (size_t)i * handle_size,
				    &many->sends[i].comm);
		if (!err && !many->receives[i].comm)
			err = accept_one(many, i);
		*missing += !many->sends[i].comm + !many->receives[i].comm;
	}
	return err;
}

static int connect_some(struct many *many, char *handles, int from, int to, double deadline)
{
	int missing = 1;
	int err = 0;

	while (missing && !err) {
		err = connect_pass(many, handles, from, to, &missing);
		if (!err && missing && traffic_now() > deadline)
			err = traffic_fail(-ETIMEDOUT, "%d of %d ends not connected in time", missing, 2 * (to - from));
		if (missing)
			sched_yield();
	}
	return err;
}

int many_connect(struct many *many, const void *peer_handles, int together, double timeout_s, struct many_calls *out)
{
	size_t size = (size_t)many->count * many_handle_size(many);
	char *handles = malloc(size); /* the table may keep the state of a connect in the handle */
	double start = traffic_now();
	int err = 0;

	if (!handles)
		return traffic_fail(-ENOMEM, "no memory");
	memcpy(handles, peer_handles, size);
	begin_calls(many);
	for (int i = 0; i < many->count && !err; i += together)
		err = connect_some(many, handles, i, i + together < many->count ? i + together : many->count,
				   start + timeout_s);
	*out = many->calls;
	out->began = start;
	out->ended = traffic_now();
	free(handles);
	return err;
}

/* ---- having them ---- */

static int register_end(struct many *many, struct end *end)
{
	return traffic_result(bnet_client_reg(&many->client, end->comm, end->slot, many->size, NCCL_PTR_HOST,
					      &end->mhandle),
			      "regMr");
}

int many_register(struct many *many)
{
	int err = 0;

	for (int i = 0; i < many->count && !err; i++) {
		err = register_end(many, &many->sends[i]);
		if (!err)
			err = register_end(many, &many->receives[i]);
	}
	return err;
}

/* Tests what is outstanding; without that posts the next message, or at the end an empty one. */
static int send_step(struct many *many, struct end *end, bool ending, bool *moved)
{
	int done = 0, size = 0, err;

	if (end->request) {
		err = timed(many, test, &many->client, end->request, &done, &size);
		if (done)
			end->request = NULL;
		*moved |= done;
		return err;
	}
	if (end->last)
		return 0;
	err = timed(many, isend, &many->client, end->comm, end->slot, ending ? 0 : many->size, 0, end->mhandle,
		    &end->request);
	end->last = ending && end->request;
	return err;
}

static int receive_step(struct many *many, struct end *end, bool *moved)
{
	int done = 0, size = 0, err;

	if (end->last)
		return 0;
	if (!end->request)
		return timed(many, irecv, &many->client, end->comm, end->slot, many->size, 0, end->mhandle,
			     &end->request);
	err = timed(many, test, &many->client, end->request, &done, &size);
	if (err || !done)
		return err;
	*moved = true;
	end->request = NULL;
	end->last = size == 0;
	many->moved += size != 0;
	return size == 0 || (size_t)size == many->size ? 0
						       : traffic_fail(-EBADMSG, "%d bytes of %zu", size, many->size);
}

static int move_pass(struct many *many, bool ending)
{
	bool moved = false;
	int err = 0;

	for (int i = 0; i < many->count && !err; i++) {
		err = send_step(many, &many->sends[i], ending, &moved);
		if (!err)
			err = receive_step(many, &many->receives[i], &moved);
	}
	if (!moved)
		sched_yield();
	return err;
}

static int move_until(struct many *many, double end)
{
	int err = 0;

	while (!err && traffic_now() < end)
		err = move_pass(many, false);
	return err;
}

static bool all_ended(const struct many *many)
{
	for (int i = 0; i < many->count; i++)
		if (!many->sends[i].last || many->sends[i].request || !many->receives[i].last)
			return false;
	return true;
}

int many_move(struct many *many, double warm_up_s, double window_s, struct many_calls *calls,
	      struct traffic_window *out)
{
	struct traffic_usage before;
	double opened;
	int err = move_until(many, traffic_now() + warm_up_s);

	begin_calls(many);
	many->moved = 0;
	before = traffic_usage_now();
	opened = traffic_now();
	if (!err)
		err = move_until(many, opened + window_s);
	*calls = many->calls;
	calls->began = opened;
	calls->ended = traffic_now();
	*out = (struct traffic_window){
		.bytes = many->moved * many->size,
		.seconds = calls->ended - opened,
		.used = traffic_usage_since(&before),
	};
	if (!err)
		err = move_until(many, calls->ended + TRAFFIC_TAIL_S);
	while (!err && !all_ended(many))
		err = move_pass(many, true);
	return err;
}

/* ---- ending them ---- */

static int deregister_end(struct many *many, struct end *end)
{
	return end->mhandle ? timed(many, dereg, &many->client, end->comm, end->mhandle) : 0;
}

/* In NCCL's order: all memory, then the connections. */
int many_close(struct many *many, struct many_calls *out)
{
	double start = traffic_now();
	int err = 0;

	begin_calls(many);
	for (int i = 0; i < many->count && !err; i++) {
		err = deregister_end(many, &many->sends[i]);
		if (!err)
			err = deregister_end(many, &many->receives[i]);
	}
	for (int i = 0; i < many->count && !err; i++) {
		if (many->sends[i].comm)
			err = timed(many, close_send, &many->client, many->sends[i].comm);
		if (!err && many->receives[i].comm)
			err = timed(many, close_recv, &many->client, many->receives[i].comm);
		if (!err && many->listeners[i])
			err = timed(many, close_listen, &many->client, many->listeners[i]);
	}
	*out = many->calls;
	out->began = start;
	out->ended = traffic_now();
	bnet_client_finalize(&many->client);
	release(many);
	return err;
}
