/* SPDX-License-Identifier: MIT
 *
 * One rank of drive_net. As in NCCL's proxy, each communicator has a service thread (opens and closes connections,
 * registers memory) and a progress thread (sends, receives, tests). The main thread reads the hub's packets and
 * watches the deadline. A connection belongs to the service thread except while its stage is FLOW_MOVING.
 */
#include "drive_net.h"
#include "drive_net_flow.h"

#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

struct communicator {
	struct rank *rank;
	struct bnet_client client;
	int number;
	struct flow *flows; /* this rank's ends of connections, in order of the connection number */
	int nflows;
	pthread_t service;
	pthread_t progress;
	pthread_mutex_t lock; /* for the condition */
	pthread_cond_t finished;
};

struct rank {
	const struct net_options *options;
	struct communicator *communicators;
	int device; /* as given, or the merged one */
	pthread_t joiner;
	_Atomic bool done;
};

static void send_packet(const struct rank *rank, const struct net_packet *packet)
{
	if (send(rank->options->control, packet, sizeof(*packet), MSG_NOSIGNAL) != (ssize_t)sizeof(*packet))
		drive_fail("the hub is gone: %m");
}

/* ---- the service thread ---- */

static void listen_for(struct communicator *comm, struct flow *flow)
{
	size_t used = bnet_client_handle_size(&comm->client);
	struct net_packet packet = {.kind = NET_PACKET_HANDLE,
				    .to = flow->peer,
				    .communicator = comm->number,
				    .connection = flow->connection};

	memset(packet.handle, 0xee, sizeof(packet.handle));
	drive_ok(bnet_client_listen(&comm->client, comm->rank->device, packet.handle, &flow->listen_comm));
	drive_check(flow->listen_comm, "listen gave no object");
	drive_check(drive_untouched(packet.handle + used, sizeof(packet.handle) - used, 0xee) < 0,
		    "listen wrote past the %zu bytes of a handle", used);
	send_packet(comm->rank, &packet);
}

/* The buffer of a connection is registered once, as NCCL does with its protocol buffers. */
static void start_moving(struct communicator *comm, struct flow *flow)
{
	flow->base = mmap(NULL, flow->stride * (size_t)flow->nslots, PROT_READ | PROT_WRITE,
			  MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (flow->base == MAP_FAILED)
		drive_fail("mmap: %m");
	drive_ok(bnet_client_reg(&comm->client, flow->comm, flow->base, flow->stride * (size_t)flow->nslots,
				 NCCL_PTR_HOST, &flow->mhandle));
	atomic_store_explicit(&flow->stage, FLOW_MOVING, memory_order_release);
}

/* One attempt to open the connection; true once it is open. */
static bool try_open(struct communicator *comm, struct flow *flow)
{
	if (flow->sending) {
		if (!atomic_load_explicit(&flow->have_handle, memory_order_acquire))
			return false;
		drive_ok(bnet_client_connect(&comm->client, comm->rank->device, flow->handle, &flow->comm));
	} else {
		drive_ok(bnet_client_accept(&comm->client, flow->listen_comm, &flow->comm));
	}
	if (!flow->comm)
		return false;
	if (flow->listen_comm)
		drive_ok(bnet_client_close_listen(&comm->client, flow->listen_comm));
	start_moving(comm, flow);
	return true;
}

/* Staggered: a connection opens once the one before it has moved a tenth of its messages. */
static bool may_open(const struct communicator *comm, int index)
{
	if (!comm->rank->options->stagger || index == 0)
		return true;
	return atomic_load(&comm->flows[index - 1].completed) >= (uint64_t)comm->rank->options->messages / 10;
}

static void open_connections(struct communicator *comm)
{
	int opened = 0;

	while (opened < comm->nflows) {
		opened = 0;
		for (int i = 0; i < comm->nflows; i++) {
			if (atomic_load(&comm->flows[i].stage) != FLOW_NEW)
				opened++;
			else if (may_open(comm, i))
				opened += try_open(comm, &comm->flows[i]);
		}
		sched_yield();
	}
}

/* Before NCCL 2.12 connect and accept may block, and every rank connects to all its peers before it accepts. */
static void open_connections_v4(struct communicator *comm)
{
	for (int pass = 0; pass < 2; pass++)
		for (int i = 0; i < comm->nflows; i++)
			while (comm->flows[i].sending == (pass == 0) && !try_open(comm, &comm->flows[i]))
				sched_yield();
}

static void close_connection(struct communicator *comm, struct flow *flow)
{
	const struct bnet_client *client = &comm->client;

	drive_ok(bnet_client_dereg(client, flow->comm, flow->mhandle));
	if (comm->rank->options->unmap && munmap(flow->base, flow->stride * (size_t)flow->nslots) != 0)
		drive_fail("munmap: %m");
	drive_ok(flow->sending ? bnet_client_close_send(client, flow->comm)
			       : bnet_client_close_recv(client, flow->comm));
	if (!comm->rank->options->unmap && munmap(flow->base, flow->stride * (size_t)flow->nslots) != 0)
		drive_fail("munmap: %m");
	atomic_store(&flow->stage, FLOW_CLOSED);
}

/* Each connection is closed as soon as it has moved everything, while others still move data. */
static void close_connections(struct communicator *comm)
{
	for (int i = 0; i < comm->nflows; i++) {
		pthread_mutex_lock(&comm->lock);
		while (atomic_load(&comm->flows[i].stage) != FLOW_FINISHED)
			pthread_cond_wait(&comm->finished, &comm->lock);
		pthread_mutex_unlock(&comm->lock);
		close_connection(comm, &comm->flows[i]);
	}
}

static void *service_main(void *arg)
{
	struct communicator *comm = arg;

	for (int i = 0; i < comm->nflows; i++)
		if (!comm->flows[i].sending)
			listen_for(comm, &comm->flows[i]);
	if (comm->client.version == 4)
		open_connections_v4(comm);
	else
		open_connections(comm);
	close_connections(comm);
	return NULL;
}

/* ---- the progress thread ---- */

static void *progress_main(void *arg)
{
	struct communicator *comm = arg;
	int finished = 0;

	while (finished < comm->nflows) {
		for (int i = 0; i < comm->nflows; i++) {
			struct flow *flow = &comm->flows[i];

			if (atomic_load_explicit(&flow->stage, memory_order_acquire) != FLOW_MOVING)
				continue;
			if (!flow_step(flow))
				continue;
			finished++;
			pthread_mutex_lock(&comm->lock);
			atomic_store(&flow->stage, FLOW_FINISHED);
			pthread_cond_signal(&comm->finished);
			pthread_mutex_unlock(&comm->lock);
		}
		sched_yield();
	}
	return NULL;
}

/* ---- the main thread ---- */

static void create_flows(struct communicator *comm)
{
	const struct net_options *options = comm->rank->options;

	comm->flows = calloc((size_t)options->connections, sizeof(*comm->flows));
	drive_check(comm->flows, "out of memory");
	for (int c = 0; c < options->connections; c++) {
		bool sending = net_sender(options, c) == options->rank;

		if (sending || net_receiver(options, c) == options->rank)
			flow_init(&comm->flows[comm->nflows++], options, &comm->client, comm->number, c, sending);
	}
}

static void choose_device(struct rank *rank, const struct bnet_client *client)
{
	const int devs[] = {0, 1, 2, 3, 4, 5, 6, 7};

	rank->device = rank->options->device;
	if (rank->options->merge)
		drive_ok(bnet_client_make_v_device(client, devs, rank->options->merge, &rank->device));
}

/* v11 and later have a context for each communicator; before v11 NCCL calls init once per process. */
static void create_communicators(struct rank *rank)
{
	const struct net_options *options = rank->options;
	void *library;
	const void *raw = drive_open(&options->source, &library);

	rank->communicators = calloc((size_t)options->communicators, sizeof(*rank->communicators));
	drive_check(rank->communicators, "out of memory");
	for (int k = 0; k < options->communicators; k++) {
		struct communicator *comm = &rank->communicators[k];

		comm->rank = rank;
		comm->number = k;
		pthread_mutex_init(&comm->lock, NULL);
		pthread_cond_init(&comm->finished, NULL);
		if (k == 0 || options->source.api >= 11)
			drive_ok(bnet_client_init(&comm->client, raw, options->source.api, drive_logger));
		else
			comm->client = rank->communicators[0].client;
		choose_device(rank, &comm->client);
		create_flows(comm);
	}
}

static void *run_communicators(void *arg)
{
	struct rank *rank = arg;
	int count = rank->options->communicators;

	for (int k = 0; k < count; k++) {
		struct communicator *comm = &rank->communicators[k];

		drive_check(pthread_create(&comm->service, NULL, service_main, comm) == 0 &&
				    pthread_create(&comm->progress, NULL, progress_main, comm) == 0,
			    "cannot start a thread");
	}
	for (int k = 0; k < count; k++) {
		pthread_join(rank->communicators[k].progress, NULL);
		pthread_join(rank->communicators[k].service, NULL);
	}
	atomic_store(&rank->done, true);
	shutdown(rank->options->control, SHUT_RD); /* wakes the main thread */
	return NULL;
}

static struct flow *find_flow(const struct rank *rank, int communicator, int connection)
{
	struct communicator *comm = &rank->communicators[communicator];

	for (int i = 0; i < comm->nflows; i++)
		if (comm->flows[i].connection == connection)
			return &comm->flows[i];
	drive_fail("a packet for connection %d, which is not of this rank", connection);
}

__attribute__((noreturn)) static void report_stuck(const struct rank *rank)
{
	for (int k = 0; k < rank->options->communicators; k++)
		for (int i = 0; i < rank->communicators[k].nflows; i++)
			flow_describe(&rank->communicators[k].flows[i]);
	drive_fail("not finished after %d s", rank->options->deadline);
}

static void read_packets(struct rank *rank)
{
	double deadline = drive_now() + rank->options->deadline;
	struct pollfd fd = {.fd = rank->options->control, .events = POLLIN};
	struct net_packet packet;

	while (!atomic_load(&rank->done)) {
		double left = deadline - drive_now();

		if (left <= 0 || poll(&fd, 1, (int)(left * 1000) + 1) == 0)
			report_stuck(rank);
		if (recv(fd.fd, &packet, sizeof(packet), 0) == (ssize_t)sizeof(packet)) {
			struct flow *flow = find_flow(rank, packet.communicator, packet.connection);

			memcpy(flow->handle, packet.handle, sizeof(flow->handle));
			atomic_store_explicit(&flow->have_handle, true, memory_order_release);
		} else if (!atomic_load(&rank->done)) {
			drive_fail("the hub is gone");
		}
	}
}

static void report_result(const struct rank *rank, double seconds)
{
	struct net_packet packet = {.kind = NET_PACKET_RESULT, .seconds = seconds};

	for (int k = 0; k < rank->options->communicators; k++) {
		const struct communicator *comm = &rank->communicators[k];

		for (int i = 0; i < comm->nflows; i++) {
			packet.retries += comm->flows[i].retries;
			if (comm->flows[i].sending)
				continue;
			packet.messages += atomic_load(&comm->flows[i].completed);
			packet.bytes += comm->flows[i].bytes;
		}
	}
	send_packet(rank, &packet);
}

/* The hub hangs up when all ranks have reported. This end reads no more, so that only that is an event. */
static void await_others(const struct rank *rank)
{
	struct pollfd fd = {.fd = rank->options->control};

	if (rank->options->together && poll(&fd, 1, rank->options->deadline * 1000) != 1)
		drive_fail("the other ranks have not finished after %d s", rank->options->deadline);
}

static void destroy_communicators(struct rank *rank)
{
	for (int k = 0; k < rank->options->communicators; k++) {
		struct communicator *comm = &rank->communicators[k];

		drive_ok(bnet_client_finalize(&comm->client));
		for (int i = 0; i < comm->nflows; i++)
			flow_free(&comm->flows[i]);
		free(comm->flows);
		pthread_mutex_destroy(&comm->lock);
		pthread_cond_destroy(&comm->finished);
	}
	free(rank->communicators);
}

int net_rank_main(const struct net_options *options)
{
	struct rank rank = {.options = options};
	double start = drive_now();
	char name[32];

	snprintf(name, sizeof(name), "rank %d", options->rank);
	drive_name(name);
	drive_log_verbose(options->verbose);
	create_communicators(&rank);
	drive_check(pthread_create(&rank.joiner, NULL, run_communicators, &rank) == 0, "cannot start a thread");
	read_packets(&rank);
	pthread_join(rank.joiner, NULL);
	report_result(&rank, drive_now() - start);
	await_others(&rank);
	destroy_communicators(&rank);
	return 0;
}
