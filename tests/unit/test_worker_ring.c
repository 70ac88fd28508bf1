/* SPDX-License-Identifier: MIT
 *
 * A post wakes a sleeping worker: nothing else moves the data here, since the control thread looks only every ten
 * seconds and a caller with a worker makes no passes for large messages.
 */
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "bagua_net.h"
#include "engine/engine.h"
#include "oneself.h"

#define DEADLINE_S 250
#define BYTES (1 << 20)
#define ROUNDS 50
#define QUIET_YIELDS 500

static char from[BYTES], into[BYTES];

/* ---- interposed: the worker's sleep; a pass does not sleep ---- */

static _Atomic bool asleep;
static _Atomic int wakes;

int epoll_wait(int fd, struct epoll_event *events, int count, int timeout_ms)
{
	const bool worker = timeout_ms != 0 && fd != bnet_engine.epoll;
	int n;

	if (worker)
		atomic_store(&asleep, true);
	n = (int)syscall(SYS_epoll_pwait, fd, events, count, timeout_ms, NULL, 8);
	if (worker) {
		atomic_store(&asleep, false);
		atomic_fetch_add(&wakes, 1);
	}
	return n;
}

/* … and nothing that is still under way wakes it again: it stays asleep while others run. */
static void await_sleep(void)
{
	int seen = -1;

	for (int same = 0; same < QUIET_YIELDS; sched_yield()) {
		bool stays = atomic_load(&asleep) && atomic_load(&wakes) == seen;

		same = stays ? same + 1 : 0;
		seen = atomic_load(&wakes);
	}
}

/* ---- the test ---- */

static void await(const struct bnet_client *client, void *request)
{
	for (int done = 0; !done; sched_yield())
		check_int(bnet_client_test(client, request, &done, NULL), ncclSuccess);
}

static void exchange(const struct bnet_client *client, struct oneself ends, void *send_mr, void *recv_mr)
{
	void *sending, *receiving;

	await_sleep();
	check_int(bnet_client_irecv(client, ends.recv, into, BYTES, 0, recv_mr, &receiving), ncclSuccess);
	await_sleep();
	check_int(bnet_client_isend(client, ends.send, from, BYTES, 0, send_mr, &sending), ncclSuccess);
	check(sending && receiving);
	await(client, receiving);
	await(client, sending);
}

int main(void)
{
	struct bnet_client client;
	bnet_counters_t counters;
	struct oneself ends;
	void *send_mr, *recv_mr;

	setenv("NCCL_SOCKET_IFNAME", "lo", 1);
	setenv("BAGUA_NET_THREADS", "1", 1);
	setenv("BAGUA_NET_NSTREAMS", "1", 1); /* with more streams the worker naps, and then finds the post by itself */
	setenv("BAGUA_NET_CONTROL_TICK", "10000", 1);
	alarm(DEADLINE_S);
	check_int(bnet_client_init(&client, bnet_net_table(12), 12, print_warnings), ncclSuccess);
	ends = connect_to_oneself(&client);
	check_int(bnet_client_reg(&client, ends.send, from, BYTES, NCCL_PTR_HOST, &send_mr), ncclSuccess);
	check_int(bnet_client_reg(&client, ends.recv, into, BYTES, NCCL_PTR_HOST, &recv_mr), ncclSuccess);
	for (int i = 0; i < ROUNDS; i++)
		exchange(&client, ends, send_mr, recv_mr);
	bnet_counters(&counters);
	check_int(counters.takeovers, 0);
	check_int(bnet_client_dereg(&client, ends.send, send_mr), ncclSuccess);
	check_int(bnet_client_dereg(&client, ends.recv, recv_mr), ncclSuccess);
	close_to_oneself(&client, ends);
	check_int(bnet_client_finalize(&client), ncclSuccess);
	return 0;
}
