/* SPDX-License-Identifier: MIT
 *
 * Scenarios about sends without a copy: who owns the memory, and until when. Both ends are in this process. The
 * receiver has a small window and posts nothing, so that most of a message stays in the sender's socket.
 */
#include "drive_contract.h"

#include <stdlib.h>
#include <string.h>

/* Fits into the sender's buffer, but not into the receiver's. */
#define QUEUED ((size_t)128 << 10)
#define GARBAGE 0xa5
#define LOOKS 1000

static struct pair narrow_pair(struct contract *c, const char *zerocopy)
{
	setenv("BAGUA_NET_ZEROCOPY", zerocopy, 1);
	setenv("BAGUA_NET_NSTREAMS", "1", 1);
	setenv("BAGUA_NET_MIN_NSTREAMS", "1", 1);
	setenv("BAGUA_NET_SNDBUF", "208K", 1);
	setenv("BAGUA_NET_RCVBUF", "32K", 1);
	setenv("BAGUA_NET_NOTSENT_LOWAT", "0", 1);
	contract_load(c);
	return contract_pair(c);
}

static unsigned char message[QUEUED], other[QUEUED];

/* The message to send. Registered is either it or another region. */
static struct region stamped(struct contract *c, struct pair pair, void *registered)
{
	struct region region = {.data = message, .size = QUEUED, .comm = pair.send};
	struct drive_stamp stamp = contract_stamp(0);

	drive_fill(message, QUEUED, &stamp);
	drive_ok(bnet_client_reg(&c->client, pair.send, registered, QUEUED, NCCL_PTR_HOST, &region.mhandle));
	return region;
}

static bool is_done(struct contract *c, void *request)
{
	int done = 0, size;

	drive_ok(bnet_client_test(&c->client, request, &done, &size));
	return done;
}

/* The whole message is in the sender's socket. */
static void await_queued(struct contract *c, void *request)
{
	while (contract_counters(c).bytes_sent < QUEUED)
		drive_check(!is_done(c, request), "done before it was sent");
}

/* The memory is in use after everything has been sent, and free when the peer has it. */
static void zerocopy_waits(struct contract *c)
{
	struct pair pair = narrow_pair(c, "1");
	struct region from = stamped(c, pair, message), to = contract_map(c, pair.recv, QUEUED);
	struct drive_stamp stamp = contract_stamp(0);
	void *sending = contract_isend(c, &from, 0, QUEUED), *receiving;

	await_queued(c, sending);
	for (int look = 0; look < LOOKS; look++)
		drive_check(!is_done(c, sending), "done while the kernel needs the memory");
	drive_check(contract_counters(c).zerocopy_calls > 0, "it was copied");
	receiving = contract_irecv(c, &to, 0, QUEUED);
	while (!is_done(c, sending))
		is_done(c, receiving);
	memset(from.data, GARBAGE, QUEUED);
	contract_wait(c, receiving);
	drive_check(drive_mismatch(to.data, QUEUED, &stamp) < 0, "the received bytes are not those that were sent");
	drive_ok(bnet_client_dereg(&c->client, pair.send, from.mhandle));
	contract_unmap(c, &to);
	contract_close_pair(c, pair);
	contract_finalize(c);
}

/* The kernel has its own copy, so the memory is free at once. */
static void zerocopy_never(struct contract *c)
{
	struct pair pair = narrow_pair(c, "0");
	struct region from = stamped(c, pair, message), to = contract_map(c, pair.recv, QUEUED);
	struct drive_stamp stamp = contract_stamp(0);

	contract_wait(c, contract_isend(c, &from, 0, QUEUED));
	memset(from.data, GARBAGE, QUEUED);
	contract_wait(c, contract_irecv(c, &to, 0, QUEUED));
	drive_check(drive_mismatch(to.data, QUEUED, &stamp) < 0, "the received bytes are not those that were sent");
	drive_check(contract_counters(c).zerocopy_calls == 0, "it was not copied");
	drive_ok(bnet_client_dereg(&c->client, pair.send, from.mhandle));
	contract_unmap(c, &to);
	contract_close_pair(c, pair);
	contract_finalize(c);
}

/* The memory is given up while the kernel needs it: by deregMr, or by close if another region is registered. Bytes that
 * are written there afterwards never arrive. */
static void give_up(struct contract *c, bool closes)
{
	struct pair pair = narrow_pair(c, "1");
	struct region from = stamped(c, pair, closes ? other : message), to = contract_map(c, pair.recv, QUEUED);
	struct drive_stamp stamp = contract_stamp(0);
	ssize_t came;

	await_queued(c, contract_isend(c, &from, 0, QUEUED));
	drive_ok(bnet_client_dereg(&c->client, pair.send, from.mhandle));
	if (closes)
		drive_ok(bnet_client_close_send(&c->client, pair.send));
	memset(from.data, GARBAGE, QUEUED);
	contract_wait_error(c, contract_irecv(c, &to, 0, QUEUED));
	came = drive_mismatch(to.data, QUEUED, &stamp);
	drive_check(came >= 0 && drive_untouched(to.data + came, QUEUED - (size_t)came, 0) < 0,
		    "memory was sent after it was given up");
	if (!closes)
		drive_ok(bnet_client_close_send(&c->client, pair.send));
	contract_unmap(c, &to);
	drive_ok(bnet_client_close_recv(&c->client, pair.recv));
	contract_finalize(c);
}

static void zerocopy_dereg(struct contract *c)
{
	give_up(c, false);
}

static void zerocopy_close(struct contract *c)
{
	give_up(c, true);
}

const struct scenario contract_zerocopy_scenarios[] = {
	{"zerocopy_waits", zerocopy_waits, NULL, 0},
	{"zerocopy_never", zerocopy_never, NULL, 0},
	{"zerocopy_dereg", zerocopy_dereg, NULL, 0},
	{"zerocopy_close", zerocopy_close, NULL, 0},
	{NULL, NULL, NULL, 0},
};
