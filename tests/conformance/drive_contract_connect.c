/* SPDX-License-Identifier: MIT
 *
 * Scenarios about handles, listening, connecting and accepting.
 */
#include "drive_contract.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>

/* ---- handles ---- */

static void handle_bytes(struct contract *c)
{
	unsigned char buffer[2 * NCCL_NET_HANDLE_MAXSIZE];
	void *listen_comm = NULL;
	uint16_t first;
	size_t used;

	contract_load(c);
	used = bnet_client_handle_size(&c->client);
	memset(buffer, 0xee, sizeof(buffer));
	drive_ok(bnet_client_listen(&c->client, c->device, buffer, &listen_comm));
	memcpy(&first, buffer, sizeof(first));
	drive_check(first != AF_INET && first != AF_INET6 && first != AF_UNIX && first != AF_UNSPEC,
		    "the handle begins with an address family, %d", first);
	drive_check(drive_untouched(buffer + used, sizeof(buffer) - used, 0xee) < 0,
		    "listen wrote past the %zu bytes of a handle", used);
	drive_ok(bnet_client_close_listen(&c->client, listen_comm));
	contract_finalize(c);
}

/* Only as many bytes as NCCL of that version carries reach the other side. */
static void handle_copied(struct contract *c)
{
	unsigned char handle[NCCL_NET_HANDLE_MAXSIZE], copy[NCCL_NET_HANDLE_MAXSIZE];
	struct pair pair;
	void *listen_comm;

	contract_load(c);
	listen_comm = contract_listen(c, handle);
	memset(copy, 0x5a, sizeof(copy));
	memcpy(copy, handle, bnet_client_handle_size(&c->client));
	memset(handle, 0, sizeof(handle));
	pair.send = contract_connect(c, copy);
	pair.recv = contract_accept(c, listen_comm);
	drive_ok(bnet_client_close_listen(&c->client, listen_comm));
	contract_exchange(c, pair, 1000);
	contract_close_pair(c, pair);
	contract_finalize(c);
}

/* Another network's handle, or an empty one, is an error, and a sentence names this network and what it received. */
static void expect_refusal(struct contract *c, void *handle, const char *also)
{
	int warnings = drive_log_count(NCCL_LOG_WARN);

	contract_connect_error(c, handle);
	drive_check(drive_log_count(NCCL_LOG_WARN) > warnings, "connect failed without a warning");
	drive_check(drive_log_has(NCCL_LOG_WARN, "BaguaNet", also), "no warning names BaguaNet and \"%s\"", also);
}

static void foreign_handle(struct contract *c)
{
	unsigned char handle[NCCL_NET_HANDLE_MAXSIZE] = {0};
	struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(4711)};
	struct sockaddr_in6 address6 = {.sin6_family = AF_INET6,
					.sin6_port = htons(4711),
					.sin6_addr = IN6ADDR_LOOPBACK_INIT};

	contract_load(c);
	inet_pton(AF_INET, "127.9.8.7", &address.sin_addr);
	memcpy(handle, &address, sizeof(address));
	expect_refusal(c, handle, "127.9.8.7");
	memcpy(handle, &address6, sizeof(address6));
	expect_refusal(c, handle, "::1");
	contract_finalize(c);
}

static void zero_handle(struct contract *c)
{
	unsigned char handle[NCCL_NET_HANDLE_MAXSIZE] = {0};

	contract_load(c);
	expect_refusal(c, handle, "handle");
	contract_finalize(c);
}

/* A garbage handle never crashes and never connects, and a sentence explains it. */
static void garbage_handle(struct contract *c)
{
	unsigned char handle[NCCL_NET_HANDLE_MAXSIZE];
	uint64_t state = 5;

	contract_load(c);
	for (int round = 0; round < 64; round++) {
		for (size_t i = 0; i < sizeof(handle); i++)
			handle[i] = (unsigned char)drive_random(&state);
		expect_refusal(c, handle, "handle");
	}
	contract_finalize(c);
}

/* ---- connecting ---- */

/* connect completes, and messages can be sent, before the other side calls accept. */
static void connect_before_accept(struct contract *c)
{
	unsigned char handle[NCCL_NET_HANDLE_MAXSIZE];
	struct drive_stamp stamp = contract_stamp(1);
	struct region region;
	struct pair pair;
	void *listen_comm, *request;

	contract_load(c);
	listen_comm = contract_listen(c, handle);
	pair.send = contract_connect(c, handle);
	region = contract_map(c, pair.send, 4096);
	drive_fill(region.data, region.size, &stamp);
	request = contract_isend(c, &region, 0, region.size);
	pair.recv = contract_accept(c, listen_comm);
	contract_recv_stamped(c, pair.recv, region.size, 1);
	contract_wait(c, request);
	contract_unmap(c, &region);
	drive_ok(bnet_client_close_listen(&c->client, listen_comm));
	contract_close_pair(c, pair);
	contract_finalize(c);
}

/* The peer never accepts and closes its listen object. Both sides can release everything. */
static void never_accepted(struct contract *c)
{
	unsigned char handle[NCCL_NET_HANDLE_MAXSIZE];
	struct region region;
	void *listen_comm, *comm;

	contract_load(c);
	listen_comm = contract_listen(c, handle);
	comm = contract_connect(c, handle);
	region = contract_map(c, comm, 4096);
	contract_isend(c, &region, 0, region.size);
	drive_ok(bnet_client_close_listen(&c->client, listen_comm));
	contract_unmap(c, &region);
	drive_ok(bnet_client_close_send(&c->client, comm));
	contract_finalize(c);
}

/* accept returns at once if no peer has connected. */
static void accept_polls(struct contract *c)
{
	unsigned char handle[NCCL_NET_HANDLE_MAXSIZE];
	void *listen_comm, *comm = NULL;

	contract_load(c);
	listen_comm = contract_listen(c, handle);
	for (int i = 0; i < 100; i++) {
		drive_ok(bnet_client_accept(&c->client, listen_comm, &comm));
		drive_check(!comm, "accept returned a connection that no peer made");
	}
	drive_ok(bnet_client_close_listen(&c->client, listen_comm));
	contract_finalize(c);
}

/* connect returns at once, although the listener's process is stopped and answers nothing. */
static void connect_polls(struct contract *c)
{
	unsigned char handle[NCCL_NET_HANDLE_MAXSIZE];
	void *comm = NULL;
	int status;

	contract_load(c);
	contract_take(c, handle, sizeof(handle));
	drive_check(kill(c->peer, SIGSTOP) == 0 && waitpid(c->peer, &status, WUNTRACED) == c->peer, "no stop: %m");
	for (int i = 0; i < 100; i++) {
		drive_ok(bnet_client_connect(&c->client, c->device, handle, &comm));
		drive_check(!comm, "connect returned a connection that no peer accepted");
	}
	drive_check(kill(c->peer, SIGCONT) == 0, "no end of the stop: %m");
	comm = contract_connect(c, handle);
	contract_send_stamped(c, comm, 5000, 1);
	drive_ok(bnet_client_close_send(&c->client, comm));
	contract_finalize(c);
}

static void connect_polls_peer(struct contract *c)
{
	void *comm;

	contract_load(c);
	comm = contract_accept_from_peer(c);
	contract_recv_stamped(c, comm, 5000, 1);
	drive_ok(bnet_client_close_recv(&c->client, comm));
	contract_finalize(c);
}

#define ACCEPTS 6

/* One listen object serves several connections, made from copies of one handle. */
static void several_accepts(struct contract *c)
{
	unsigned char handles[ACCEPTS][NCCL_NET_HANDLE_MAXSIZE];
	void *listen_comm, *senders[ACCEPTS] = {NULL}, *receivers[ACCEPTS] = {NULL};
	int opened = 0, seen = 0;

	contract_load(c);
	listen_comm = contract_listen(c, handles[0]);
	for (int i = 1; i < ACCEPTS; i++)
		memcpy(handles[i], handles[0], sizeof(handles[0]));
	while (opened < ACCEPTS) { /* all at once */
		opened = 0;
		for (int i = 0; i < ACCEPTS; i++) {
			if (!senders[i])
				drive_ok(bnet_client_connect(&c->client, c->device, handles[i], &senders[i]));
			opened += senders[i] != NULL;
		}
		sched_yield();
	}
	for (int i = 0; i < ACCEPTS; i++)
		receivers[i] = contract_accept(c, listen_comm);
	drive_ok(bnet_client_close_listen(&c->client, listen_comm));
	for (int i = 0; i < ACCEPTS; i++) { /* the message tells which belongs to which */
		struct region from = contract_map(c, senders[i], 1);

		from.data[0] = (unsigned char)(1 << i);
		contract_wait(c, contract_isend(c, &from, 0, 1));
		contract_unmap(c, &from);
	}
	for (int i = 0; i < ACCEPTS; i++) {
		struct region to = contract_map(c, receivers[i], 1);

		contract_wait(c, contract_irecv(c, &to, 0, 1));
		seen |= to.data[0];
		contract_unmap(c, &to);
	}
	drive_check(seen == (1 << ACCEPTS) - 1, "the connections are mixed up: %#x", (unsigned)seen);
	for (int i = 0; i < ACCEPTS; i++)
		contract_close_pair(c, (struct pair){senders[i], receivers[i]});
	contract_finalize(c);
}

/* The listen object is gone; its process and another listen object are not. connect fails: no hang, and no connection
 * to the other listen object. */
static void stale_handle(struct contract *c)
{
	unsigned char handle[NCCL_NET_HANDLE_MAXSIZE], other_handle[NCCL_NET_HANDLE_MAXSIZE];
	struct pair pair;
	void *listen_comm, *other;

	contract_load(c);
	pair = contract_pair(c);
	other = contract_listen(c, other_handle);
	listen_comm = contract_listen(c, handle);
	drive_ok(bnet_client_close_listen(&c->client, listen_comm));
	contract_connect_error(c, handle);
	contract_exchange(c, pair, 1000);
	drive_ok(bnet_client_close_listen(&c->client, other));
	contract_close_pair(c, pair);
	contract_finalize(c);
}

/* ---- a listener that is gone ---- */

static void listener_gone(struct contract *c)
{
	unsigned char handle[NCCL_NET_HANDLE_MAXSIZE];

	contract_take(c, handle, sizeof(handle));
	contract_kill_peer(c);
	setenv("BAGUA_NET_CONNECT_TIMEOUT", "2", 1);
	contract_load(c);
	contract_connect_error(c, handle);
	drive_check(drive_log_count(NCCL_LOG_WARN) > 0, "connect failed without a warning");
	contract_finalize(c);
}

static void listener_gone_peer(struct contract *c)
{
	unsigned char handle[NCCL_NET_HANDLE_MAXSIZE];

	contract_load(c);
	contract_listen(c, handle);
	contract_give(c, handle, sizeof(handle));
	contract_await(c, 'x'); /* until it is killed */
}

/* ---- contexts ---- */

static void contexts(struct contract *c)
{
	struct contract other;
	struct pair one, two;

	contract_load(c);
	other = *c;
	contract_load(&other);
	drive_check(c->client.ctx && other.client.ctx && c->client.ctx != other.client.ctx,
		    "contexts are not distinct");
	one = contract_pair(c);
	two = contract_pair(&other);
	contract_exchange(c, one, 100000);
	contract_exchange(&other, two, 100000);
	contract_close_pair(c, one);
	contract_finalize(c);
	contract_exchange(&other, two, 100000);
	contract_close_pair(&other, two);
	two = contract_pair(&other);
	contract_exchange(&other, two, 1000);
	contract_close_pair(&other, two);
	contract_finalize(&other);
}

/* A second init does not disturb the first one's connections. */
static void init_twice(struct contract *c)
{
	struct contract again;
	struct pair pair;

	contract_load(c);
	pair = contract_pair(c);
	again = *c;
	contract_load(&again);
	contract_exchange(c, pair, 100000);
	contract_close_pair(c, pair);
	contract_finalize(&again);
	contract_finalize(c);
}

/* ---- the log ---- */

/* One line at init, one for each end of a connection, none for a message. */
static void log_lines(struct contract *c)
{
	char version[16];
	struct pair pair;
	int before;

	contract_load(c);
	snprintf(version, sizeof(version), "net API v%d", c->source.api);
	drive_check(drive_log_has(NCCL_LOG_INFO, "NET/BaguaNet: version ", version), "no line says what has started");
	drive_check(drive_log_count_of(NCCL_LOG_INFO, "NET/BaguaNet: version ") == 1, "several lines do");
	drive_check(drive_log_has(NCCL_LOG_INFO, "streams ", "progress "), "nor how");

	before = drive_log_count(NCCL_LOG_INFO);
	pair = contract_pair(c);
	drive_check(drive_log_has(NCCL_LOG_INFO, "sends to ", "stream"), "no line for the sending end");
	drive_check(drive_log_has(NCCL_LOG_INFO, "receives from ", " over "), "no line for the receiving end");
	drive_check(drive_log_count(NCCL_LOG_INFO) == before + 2, "%d lines for a connection, 2 were expected",
		    drive_log_count(NCCL_LOG_INFO) - before);

	for (int i = 0; i < 100; i++)
		contract_exchange(c, pair, (size_t)i * 1000);
	drive_check(drive_log_count(NCCL_LOG_INFO) == before + 2, "messages are logged");
	contract_close_pair(c, pair);
	contract_finalize(c);
	drive_check(drive_log_count(NCCL_LOG_WARN) == 0, "an ordinary life warns");
}

/* From v11 on NCCL says what a communicator will do; each end's line repeats it. */
static void log_intent(struct contract *c)
{
	ncclNetAttr_t attr = {
		.sendCommAttr = {.maxConcurrentPeers = 3, .maxFlowsPerPeer = 2},
		.recvCommAttr = {.maxConcurrentPeers = 1, .maxFlowsPerPeer = 1},
		.op = 1 << 4,
		.algo = UINT32_MAX,
		.proto = UINT32_MAX,
	};
	struct pair pair;

	contract_load(c);
	if (c->source.api == 11)
		drive_ok(((const ncclNet_v11_t *)c->client.raw)->setNetAttr(c->client.ctx, &attr));
	else
		drive_ok(((const ncclNet_v12_t *)c->client.raw)->setNetAttr(c->client.ctx, &attr));
	pair = contract_pair(c);
	drive_check(drive_log_has(NCCL_LOG_INFO, "sends to ", "; NCCL says: AllReduce, up to 3 peers, 2 flows each"),
		    "the sending end's line does not say it");
	drive_check(drive_log_has(NCCL_LOG_INFO, "receives from ", "; NCCL says: AllReduce, up to 1 peer, 1 flow each"),
		    "the receiving end's line does not say it");
	contract_exchange(c, pair, 1000);
	contract_close_pair(c, pair);
	contract_finalize(c);
}

/* ---- properties ---- */

static void properties(struct contract *c)
{
	ncclNetProperties_v12_t props;
	int count = 0;

	contract_load(c);
	drive_check(strcmp(bnet_client_name(&c->client), "BaguaNet") == 0, "the network is called %s",
		    bnet_client_name(&c->client));
	drive_ok(bnet_client_devices(&c->client, &count));
	drive_check(count > 0, "no device");
	for (int dev = 0; dev < count; dev++) {
		drive_ok(bnet_client_properties(&c->client, dev, &props));
		drive_check(props.name && props.name[0], "device %d has no name", dev);
		drive_check(props.ptrSupport == NCCL_PTR_HOST, "device %d: pointers %d", dev, props.ptrSupport);
		drive_check(props.speed > 0, "device %d: speed %d", dev, props.speed);
		drive_check(props.maxComms > 0, "device %d: maxComms %d", dev, props.maxComms);
		drive_check(c->source.api < 5 || props.maxRecvs == 1, "device %d: maxRecvs %d", dev, props.maxRecvs);
		if (c->source.api >= 9) {
			drive_check(props.vProps.ndevs == 1 && props.vProps.devs[0] == dev, "device %d: vProps", dev);
			drive_check(props.maxP2pBytes > 0 && props.maxP2pBytes <= NCCL_MAX_NET_SIZE_BYTES,
				    "device %d: maxP2pBytes", dev);
		}
		if (c->source.api >= 12)
			drive_check(props.railId == -1 && props.planeId == -1, "device %d: rail or plane", dev);
	}
	drive_check(bnet_client_properties(&c->client, count, &props) != ncclSuccess, "device %d exists too", count);
	contract_finalize(c);
}

/* A bad value is refused, and the log names the variable, the value and the range. */
static void bad_config(struct contract *c)
{
	const void *raw;

	setenv("BAGUA_NET_NSTREAMS", "6543", 1);
	raw = drive_open(&c->source, &c->library);
	drive_check(bnet_client_init(&c->client, raw, c->source.api, drive_logger) != ncclSuccess, "init took it");
	drive_check(drive_log_has(NCCL_LOG_WARN, "BAGUA_NET_NSTREAMS", "6543"), "no warning names variable and value");
	drive_check(drive_log_has(NCCL_LOG_WARN, "BAGUA_NET_NSTREAMS", "64"), "no warning names the range");
}

const struct scenario contract_connect_scenarios[] = {
	{"properties", properties, NULL, 0},
	{"bad_config", bad_config, NULL, 0},
	{"handle_bytes", handle_bytes, NULL, 0},
	{"handle_copied", handle_copied, NULL, 0},
	{"foreign_handle", foreign_handle, NULL, 0},
	{"zero_handle", zero_handle, NULL, 0},
	{"garbage_handle", garbage_handle, NULL, 0},
	{"connect_before_accept", connect_before_accept, NULL, 0},
	{"never_accepted", never_accepted, NULL, 0},
	{"accept_polls", accept_polls, NULL, 5},
	{"connect_polls", connect_polls, connect_polls_peer, 5},
	{"several_accepts", several_accepts, NULL, 0},
	{"stale_handle", stale_handle, NULL, 0},
	{"listener_gone", listener_gone, listener_gone_peer, 0},
	{"contexts", contexts, NULL, 11},
	{"init_twice", init_twice, NULL, 0},
	{"log_lines", log_lines, NULL, 0},
	{"log_intent", log_intent, NULL, 11},
	{NULL, NULL, NULL, 0},
};
