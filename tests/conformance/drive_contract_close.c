/* SPDX-License-Identifier: MIT
 *
 * Scenarios about releasing things: deregMr, close, finalize, dlclose, and leaks.
 */
#include "drive_contract.h"

#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>

#define MIB ((size_t)1 << 20)
#define UNTOUCHED 0xa5

/* ---- deregMr quiesces ---- */

/* Maps other memory at the region's address and fills it. */
static void reuse_address(const struct region *region)
{
	void *again = mmap(region->data, region->size, PROT_READ | PROT_WRITE,
			   MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);

	drive_check(again == region->data, "cannot map there again: %m");
	memset(again, UNTOUCHED, region->size);
}

/* Receives are outstanding and the peer is sending. After deregMr the memory is not written any more. */
static void dereg_receiving(struct contract *c)
{
	struct region region;

	contract_load(c);
	region = contract_map(c, contract_accept_from_peer(c), 8 * MIB);
	for (size_t i = 0; i < 8; i++) {
		void *request = contract_irecv(c, &region, i * MIB, MIB);

		if (i == 0)
			contract_wait(c, request); /* the stream is running */
	}
	contract_unmap(c, &region);
	reuse_address(&region);
	contract_tell(c, 'd');
	contract_await(c, 's');
	drive_check(drive_untouched(region.data, region.size, UNTOUCHED) < 0, "memory was written after deregMr");
	drive_ok(bnet_client_close_recv(&c->client, region.comm));
	drive_check(drive_untouched(region.data, region.size, UNTOUCHED) < 0, "memory was written by close");
	contract_finalize(c);
}

/* Sends while the connection outlives the other side's deregMr. An error is accepted as well. */
static void dereg_receiving_peer(struct contract *c)
{
	struct region region;
	void *request = NULL, *last = NULL;

	contract_load(c);
	region = contract_map(c, contract_connect_to_peer(c), 8 * MIB);
	memset(region.data, 0x11, region.size);
	for (size_t i = 0; i < 8; i++) {
		if (bnet_client_isend(&c->client, region.comm, region.data + i * MIB, MIB, 0, region.mhandle,
				      &request) != ncclSuccess)
			break;
		last = request;
	}
	contract_await(c, 'd');
	for (int round = 0; last && round < 200; round++) { /* not a wait: further chances to do harm */
		int done = 0, size;

		if (bnet_client_test(&c->client, last, &done, &size) != ncclSuccess || done)
			break;
		contract_nap();
	}
	contract_tell(c, 's');
	contract_unmap(c, &region);
	drive_ok(bnet_client_close_send(&c->client, region.comm));
	contract_finalize(c);
}

#define LARGE (4 * MIB)

/* Sends are outstanding and the peer does not receive. The memory is unmapped, and other memory at its address is never
 * sent. */
static void dereg_sending(struct contract *c)
{
	struct region region;

	contract_load(c);
	region = contract_map(c, contract_connect_to_peer(c), 8 * LARGE);
	for (size_t i = 0; i < 8; i++) {
		struct drive_stamp stamp = contract_stamp(i);

		drive_fill(region.data + i * LARGE, LARGE, &stamp);
		contract_isend(c, &region, i * LARGE, LARGE);
	}
	contract_unmap(c, &region);
	reuse_address(&region);
	contract_tell(c, 'd');
	contract_await(c, 'r');
	drive_ok(bnet_client_close_send(&c->client, region.comm));
	contract_finalize(c);
}

/* The message is either the one that was sent, or does not arrive. */
static void dereg_sending_peer(struct contract *c)
{
	struct region region;
	int done = 0, size, tries = 0;
	struct drive_stamp stamp = contract_stamp(0);
	void *request;

	contract_load(c);
	region = contract_map(c, contract_accept_from_peer(c), LARGE);
	contract_await(c, 'd');
	request = contract_irecv(c, &region, 0, LARGE);
	while (!done && tries++ < 200 && bnet_client_test(&c->client, request, &done, &size) == ncclSuccess)
		contract_nap();
	drive_check(!done || drive_mismatch(region.data, LARGE, &stamp) < 0, "memory was sent after deregMr");
	contract_tell(c, 'r');
	contract_unmap(c, &region);
	drive_ok(bnet_client_close_recv(&c->client, region.comm));
	contract_finalize(c);
}

/* ---- close returns success and loses nothing ---- */

static void close_outstanding(struct contract *c)
{
	struct pair pair;
	struct region from, to;

	contract_load(c);
	for (int round = 0; round < 4; round++) {
		pair = contract_pair(c);
		from = contract_map(c, pair.send, 8 * MIB);
		to = contract_map(c, pair.recv, 8 * MIB);
		for (size_t i = 0; i < 8; i++) {
			if (round & 1)
				contract_isend(c, &from, i * MIB, MIB);
			if (round & 2)
				contract_irecv(c, &to, i * MIB, MIB);
		}
		contract_unmap(c, &from);
		contract_unmap(c, &to);
		contract_close_pair(c, pair);
	}
	contract_finalize(c);
}

/* The peer is dead. deregMr, close and finalize still succeed. */
static void close_dead_peer(struct contract *c)
{
	struct region from, to;
	void *send, *recv;

	contract_load(c);
	recv = contract_accept_from_peer(c);
	send = contract_connect_to_peer(c);
	from = contract_map(c, send, 8 * MIB);
	to = contract_map(c, recv, 8 * MIB);
	for (size_t i = 0; i < 8; i++) {
		contract_isend(c, &from, i * MIB, MIB);
		contract_irecv(c, &to, i * MIB, MIB);
	}
	contract_kill_peer(c);
	contract_unmap(c, &from);
	contract_unmap(c, &to);
	drive_ok(bnet_client_close_send(&c->client, send));
	drive_ok(bnet_client_close_recv(&c->client, recv));
	contract_finalize(c);
}

static void close_dead_peer_peer(struct contract *c)
{
	contract_load(c);
	contract_connect_to_peer(c);
	contract_accept_from_peer(c);
	contract_await(c, 'x'); /* until it is killed */
}

/* Sends that test reported as done arrive, although their process closes and ends at once and the receiver posts only
 * after that. */
static void close_keeps_sent(struct contract *c)
{
	void *comm;

	contract_load(c);
	comm = contract_accept_from_peer(c);
	contract_join_peer(c);
	for (uint64_t i = 0; i < 8; i++)
		contract_recv_stamped(c, comm, 1024 * (size_t)i, i);
	drive_ok(bnet_client_close_recv(&c->client, comm));
	contract_finalize(c);
}

static void close_keeps_sent_peer(struct contract *c)
{
	void *comm;

	contract_load(c);
	comm = contract_connect_to_peer(c);
	for (uint64_t i = 0; i < 8; i++)
		contract_send_stamped(c, comm, 1024 * (size_t)i, i);
	drive_ok(bnet_client_close_send(&c->client, comm));
	contract_finalize(c);
}

/* The same with more than the buffers hold; the receiver has posted its receives. */
static void close_keeps_large(struct contract *c)
{
	void *comm;

	contract_load(c);
	comm = contract_accept_from_peer(c);
	for (uint64_t i = 0; i < 8; i++)
		contract_recv_stamped(c, comm, 2 * MIB + 7, i);
	drive_ok(bnet_client_close_recv(&c->client, comm));
	contract_finalize(c);
}

static void close_keeps_large_peer(struct contract *c)
{
	void *comm;

	contract_load(c);
	comm = contract_connect_to_peer(c);
	for (uint64_t i = 0; i < 8; i++)
		contract_send_stamped(c, comm, 2 * MIB + 7, i);
	drive_ok(bnet_client_close_send(&c->client, comm));
	contract_finalize(c);
}

#define MANY 64
#define BUFFERED ((size_t)128 << 10) /* less than a kernel lets any socket buffer */

/* A message that is sent waits in the sender's large buffer, since the receiver's small one has taken little of it. */
static void use_large_send_buffer(void)
{
	setenv("BAGUA_NET_NSTREAMS", "1", 1); /* so that the whole message waits for one small buffer */
	setenv("BAGUA_NET_SNDBUF", "208K", 1);
	setenv("BAGUA_NET_NOTSENT_LOWAT", "0", 1);
}

static void use_small_receive_buffer(void)
{
	setenv("BAGUA_NET_NSTREAMS", "1", 1);
	setenv("BAGUA_NET_RCVBUF", "32K", 1);
}

/* The peer is stopped with everything unread. 64 closes and finalize return nevertheless, and in the end, at the latest
 * after BAGUA_NET_KEEPALIVE, nothing is left of the connections. That without repairs they share one budget is shown by
 * test_close_budget.c. */
static void close_budget(struct contract *c)
{
	void *comms[MANY];
	int descriptors, status;

	use_large_send_buffer();
	setenv("BAGUA_NET_KEEPALIVE", "3", 1);
	descriptors = contract_count_descriptors();
	contract_load(c);
	for (int i = 0; i < MANY; i++)
		comms[i] = contract_connect_to_peer(c);
	contract_await(c, 'a');
	drive_check(kill(c->peer, SIGSTOP) == 0 && waitpid(c->peer, &status, WUNTRACED) == c->peer, "no stop: %m");
	for (uint64_t i = 0; i < MANY; i++)
		contract_send_stamped(c, comms[i], BUFFERED, i);
	for (int i = 0; i < MANY; i++)
		drive_ok(bnet_client_close_send(&c->client, comms[i]));
	contract_finalize(c);
	while (contract_count_descriptors() > descriptors)
		contract_nap();
	contract_kill_peer(c);
}

static void close_budget_peer(struct contract *c)
{
	use_small_receive_buffer();
	contract_load(c);
	for (int i = 0; i < MANY; i++)
		contract_accept_from_peer(c);
	contract_tell(c, 'a');
	contract_await(c, 'x'); /* until it is killed */
}

/* The bytes are in the sender's large buffer, and the receiver's small one has taken few of them, when the sender's
 * process closes and ends. It ends although nobody reads them, and all of them arrive after that. */
static void exit_budget(struct contract *c)
{
	void *comms[MANY];

	use_small_receive_buffer();
	contract_load(c);
	for (int i = 0; i < MANY; i++)
		comms[i] = contract_accept_from_peer(c);
	contract_join_peer(c);
	for (uint64_t i = 0; i < MANY; i++) {
		contract_recv_stamped(c, comms[i], BUFFERED, i);
		drive_ok(bnet_client_close_recv(&c->client, comms[i]));
	}
	contract_finalize(c);
}

static void exit_budget_peer(struct contract *c)
{
	void *comms[MANY];

	use_large_send_buffer();
	contract_load(c);
	for (int i = 0; i < MANY; i++)
		comms[i] = contract_connect_to_peer(c);
	for (uint64_t i = 0; i < MANY; i++)
		contract_send_stamped(c, comms[i], BUFFERED, i);
	for (int i = 0; i < MANY; i++)
		drive_ok(bnet_client_close_send(&c->client, comms[i]));
	contract_finalize(c);
}

/* ---- nothing is left ---- */

static void *return_at_once(void *unused)
{
	return unused;
}

static void nothing_left(struct contract *c)
{
	pthread_t thread;
	int threads, descriptors;

	/* A sanitizer starts its background thread with the program's first thread. */
	drive_check(pthread_create(&thread, NULL, return_at_once, NULL) == 0, "cannot start a thread");
	pthread_join(thread, NULL);
	threads = contract_count_threads();
	descriptors = contract_count_descriptors();
	for (int round = 0; round < 3; round++) {
		struct pair pairs[4];

		contract_load(c);
		for (int i = 0; i < 4; i++) {
			pairs[i] = contract_pair(c);
			contract_exchange(c, pairs[i], 200000);
		}
		for (int i = 0; i < 4; i++)
			contract_close_pair(c, pairs[i]);
		contract_finalize(c);
		while (contract_count_threads() > threads || contract_count_descriptors() > descriptors)
			contract_nap();
	}
}

/* ---- dlclose ---- */

/* NCCL may unload the library right after the last close, while sent bytes are still in flight. */
static void dlclose_draining(struct contract *c)
{
	void *comm;

	contract_load(c);
	comm = contract_connect_to_peer(c);
	for (uint64_t i = 0; i < 8; i++)
		contract_send_stamped(c, comm, 4096, i);
	drive_ok(bnet_client_close_send(&c->client, comm));
	contract_finalize(c);
	dlclose(c->library);
	contract_tell(c, 'c');
	contract_await(c, 'r');
	contract_load(c);
	comm = contract_connect_to_peer(c);
	contract_send_stamped(c, comm, 100000, 9);
	drive_ok(bnet_client_close_send(&c->client, comm));
	contract_finalize(c);
	dlclose(c->library);
}

static void dlclose_draining_peer(struct contract *c)
{
	void *comm;

	contract_load(c);
	comm = contract_accept_from_peer(c);
	contract_await(c, 'c');
	for (uint64_t i = 0; i < 8; i++)
		contract_recv_stamped(c, comm, 4096, i);
	drive_ok(bnet_client_close_recv(&c->client, comm));
	contract_tell(c, 'r');
	comm = contract_accept_from_peer(c);
	contract_recv_stamped(c, comm, 100000, 9);
	drive_ok(bnet_client_close_recv(&c->client, comm));
	contract_finalize(c);
}

const struct scenario contract_close_scenarios[] = {
	{"dereg_receiving", dereg_receiving, dereg_receiving_peer, 0},
	{"dereg_sending", dereg_sending, dereg_sending_peer, 0},
	{"close_outstanding", close_outstanding, NULL, 0},
	{"close_dead_peer", close_dead_peer, close_dead_peer_peer, 0},
	{"close_keeps_sent", close_keeps_sent, close_keeps_sent_peer, 0},
	{"close_keeps_large", close_keeps_large, close_keeps_large_peer, 0},
	{"close_budget", close_budget, close_budget_peer, 0},
	{"exit_budget", exit_budget, exit_budget_peer, 0},
	{"nothing_left", nothing_left, NULL, 0},
	{"dlclose_draining", dlclose_draining, dlclose_draining_peer, 0},
	{NULL, NULL, NULL, 0},
};
