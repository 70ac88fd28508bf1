/* SPDX-License-Identifier: MIT
 *
 * The lease of a trial: a path that is idle does not keep its lease, and is not refused by it.
 */
#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <unistd.h>

#include "bagua_net.h"
#include "device/lease.h"
#include "engine/engine.h"
#include "oneself.h"
#include "scaling/path.h"

#define DEADLINE_S 100
#define BYTES (64 << 10)

static struct bnet_client client;
static char data[BYTES], into[BYTES];

static void finish(void *request)
{
	for (int done = 0; !done; sched_yield())
		check_int(bnet_client_test(&client, request, &done, NULL), ncclSuccess);
}

static void exchange(struct oneself ends)
{
	void *send, *receive;

	check_int(bnet_client_irecv(&client, ends.recv, into, BYTES, 0, NULL, &receive), ncclSuccess);
	check_int(bnet_client_isend(&client, ends.send, data, BYTES, 0, NULL, &send), ncclSuccess);
	finish(send);
	finish(receive);
}

/* All connections of a test go to the same host. */
static struct bnet_path *the_path(void)
{
	check(!bnet_list_empty(&bnet_engine.paths));
	return bnet_entry(bnet_engine.paths.next, struct bnet_path, node);
}

/* Has the path ask for the lease at the end of a window, while data moves over these connections. True: it is given. */
static bool take_lease(const struct oneself *ends, int count)
{
	bool asked = false, given = false, answered = false;

	while (!answered) {
		struct bnet_path *path;
		struct bnet_window *window;

		for (int i = 0; i < count; i++)
			exchange(ends[i]);
		bnet_engine_lock();
		path = the_path();
		window = &path->scaler.window;
		answered = asked && !path->asking && !window->asks;
		given = answered && !window->refused;
		if (!asked && !path->asking && !window->asks) {
			path->scaler.settled_us = UINT64_MAX; /* nothing else is measured or asked */
			*window = (struct bnet_window){.marked = 1, .asks = BNET_ASKS_LEASE};
			asked = true;
		}
		bnet_engine_unlock();
	}
	return given;
}

static void an_idle_path_gives_its_lease_back(void)
{
	struct oneself ends = connect_to_oneself(&client);
	const struct bnet_device *device;
	int lease;

	while (!take_lease(&ends, 1))
		; /* a path of another process has it */
	bnet_engine_lock();
	device = the_path()->dev;
	bnet_engine_unlock();
	while ((lease = bnet_lease_take(device)) == -EADDRINUSE)
		usleep(1000);
	check(lease >= 0);
	close(lease);
	close_to_oneself(&client, ends);
}

static uint64_t asker_of(const struct bnet_path *path)
{
	uint64_t asker;

	bnet_engine_lock();
	asker = path->asker;
	bnet_engine_unlock();
	return asker;
}

/* The peer gives the lease to a connection. Those of a path are sampled in an order that changes as they rest. */
static void a_path_is_not_refused_by_its_own_lease(void)
{
	struct oneself ends[2] = {connect_to_oneself(&client), connect_to_oneself(&client)};
	uint64_t asker;

	take_lease(ends, 2);
	asker = asker_of(the_path());
	for (int i = 0; i < 2; i++) {
		struct bnet_conn *conn = ends[i].send;

		bnet_engine_lock();
		bnet_list_remove(&conn->of_path);
		bnet_list_add(&the_path()->moving, &conn->of_path);
		bnet_engine_unlock();
		take_lease(ends, 2);
		check_int((long long)asker_of(the_path()), (long long)asker);
	}
	for (int i = 0; i < 2; i++)
		close_to_oneself(&client, ends[i]);
}

int main(void)
{
	setenv("NCCL_SOCKET_IFNAME", "lo", 1);
	alarm(DEADLINE_S);
	check_int(bnet_client_init(&client, bnet_net_table(12), 12, print_warnings), ncclSuccess);
	an_idle_path_gives_its_lease_back();
	a_path_is_not_refused_by_its_own_lease();
	check_int(bnet_client_finalize(&client), ncclSuccess);
	return 0;
}
