/* SPDX-License-Identifier: MIT
 *
 * Outbound sockets: one dial for each stream of a sender, from connect through HELLO to WELCOME. The first stream's
 * dial makes the connection usable or fails it; the others only widen it. A dial tries one pair of NIC and address
 * after the other (pair.h), and at last any way that the routing table has. Everything here runs on the control thread
 * or under the engine's lock.
 */
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "control/control.h"
#include "base/counters.h"
#include "engine/engine.h"
#include "base/log.h"
#include "scaling/path.h"
#include "base/socket.h"
#include "transport/worker.h"

/* A socket that is bound to its device and gets no answer is tried once more unbound: the route may be another. Long
 * enough for SYNs that a full backlog dropped, which are sent again after 1, 3 and 7 s. */
#define BOUND_TRY_MS 15000
/* How long a stream other than the first is tried in all. */
#define EXTRA_MS 30000
/* … or one more, after 1 s and 3 s, where another pair is left to try. */
#define PAIR_TRY_MS 4000
/* The peer listens before its handle travels, so a refusal lasts only while its host is short of something. */
#define REFUSED_MS 10000
#define RETRY_MS 100

enum dial_state {
	DIAL_WAITING,    /* to try again */
	DIAL_CONNECTING,
	DIAL_GREETED,    /* HELLO is out */
};

struct dial {
	struct bnet_watch watch; /* deadline: of the current try */
	struct bnet_conn *conn;
	int index;
	enum dial_state state;
	struct bnet_candidate pair;   /* that is being tried */
	int attempts;            /* pairs that it has looked at */
	bool unbound;            /* all have failed: now to the peer's first address, by whatever way there is */
	uint64_t started_ms;
	uint32_t got;
	uint8_t bytes[BNET_WIRE_HANDSHAKE_MAX];
};

static void end_dial(struct dial *dial)
{
	dial->conn->setup.dialing--;
	bnet_list_remove(&dial->watch.node);
	bnet_socket_close(dial->watch.fd);
	free(dial);
}

/* The first stream's failure is the connection's; another one's is a line in the log. */
static void give_up(struct dial *dial, int error, const char *why)
{
	struct bnet_conn *conn = dial->conn;

	if (dial->index == 0) {
		bnet_conn_fail(conn, error, "cannot connect from %s (%s) to %s: %s", conn->dev->name,
			       conn->dev->address, conn->peer, why);
		pthread_cond_broadcast(&bnet_engine.changed);
	} else {
		bnet_info(NCCL_NET, "NET/BaguaNet: no stream %d to %s, going on with %d: %s", dial->index, conn->peer,
			  conn->nstreams, why);
	}
	end_dial(dial);
}

/* The next pair that can be used, or none is left. */
static void choose_pair(struct dial *dial, uint64_t now)
{
	struct bnet_conn *conn = dial->conn;
	int count = bnet_candidate_count(conn);

	while (dial->attempts < count) {
		dial->pair = bnet_candidate_of(conn, dial->index, dial->attempts++);
		if (bnet_candidate_usable(conn, &dial->pair, now))
			return;
	}
	dial->pair = (struct bnet_candidate){.nic = conn->dev->members[0], .peer = &conn->setup.peers[0]};
	dial->unbound = true;
}

static bool pairs_are_left(const struct dial *dial)
{
	return dial->attempts < bnet_candidate_count(dial->conn);
}

static int open_bound(struct dial *dial)
{
	int fd = bnet_socket_open(dial->pair.peer->addr.ss_family), rc;

	if (fd < 0 || dial->unbound)
		return fd;
	rc = bnet_socket_bind_source(fd, dial->pair.nic, dial->pair.peer->local);
	if (rc < 0) {
		bnet_socket_close(fd);
		return rc;
	}
	return fd;
}

static bool route_failed(int error)
{
	return error == -ENETUNREACH || error == -EHOSTUNREACH || error == -EADDRNOTAVAIL || error == -EINVAL ||
	       error == -ETIMEDOUT || error == -ENODEV || error == -EACCES;
}

static void try_connect(struct dial *dial, uint64_t now);

/* Who refuses an extra stream may be another host, that has the address of one of the peer's cards on this network. */
static bool pair_failed(const struct dial *dial, int error)
{
	return !dial->unbound &&
	       (route_failed(error) || (dial->index && pairs_are_left(dial) &&
					(error == -ECONNREFUSED || error == -ECONNRESET)));
}

static void next_pair(struct dial *dial, int error, uint64_t now)
{
	const struct bnet_nic *nic = dial->pair.nic;
	char address[BNET_ADDRESS_TEXT];

	bnet_address_text(&dial->pair.peer->addr, address);
	if (bnet_candidate_count(dial->conn) > 1 && bnet_candidate_usable(dial->conn, &dial->pair, now)) {
		if (route_failed(error))
			bnet_candidate_rest(dial->conn, &dial->pair, now);
		bnet_info(NCCL_NET, "NET/BaguaNet: no way from %s (%s) to %s: %s. Streams take other ways", nic->name,
			  nic->address, address, strerror(-error));
	}
	choose_pair(dial, now);
	if (dial->unbound)
		bnet_info(NCCL_NET, "NET/BaguaNet: no way from %s (%s) to %s: %s. Trying without binding to it",
			  dial->conn->dev->name, dial->conn->dev->address, dial->conn->peer, strerror(-error));
	try_connect(dial, now);
}

/* This try has ended with error: another one, by another pair or unbound or later, or the end. */
static void try_failed(struct dial *dial, int error, uint64_t now)
{
	bnet_socket_close(dial->watch.fd);
	dial->watch.fd = -1;
	if (pair_failed(dial, error)) {
		next_pair(dial, error, now);
		return;
	}
	/* bnet_connectors_tick ends it all when BAGUA_NET_CONNECT_TIMEOUT is over. */
	if (route_failed(error) ||
	    ((error == -ECONNREFUSED || error == -ECONNRESET) && now - dial->started_ms < REFUSED_MS)) {
		dial->state = DIAL_WAITING;
		dial->watch.deadline_ms = now + RETRY_MS;
		return;
	}
	give_up(dial, error, error == -ECONNREFUSED ? "nothing listens there: the remote process has ended, or a firewall "
						      "rejects it (BAGUA_NET_PORT_RANGE)"
						    : strerror(-error));
}

static int send_hello(struct dial *dial)
{
	struct bnet_conn *conn = dial->conn;
	struct bnet_wire_hello hello = {
		.version = BNET_WIRE_VERSION,
		.stream = (uint16_t)dial->index,
		.connection = conn->id,
		.listener = bnet_engine.listeners[conn->dev->members[0] - bnet_engine.devices.nics].addr,
	};
	uint8_t bytes[BNET_WIRE_HELLO_MAX];
	size_t size;
	ssize_t n;

	memcpy(hello.token, conn->token, BNET_TOKEN_SIZE);
	size = bnet_wire_hello_encode(bytes, &hello);
	/* A socket that has carried nothing takes this in one piece. */
	n = send(dial->watch.fd, bytes, size, MSG_DONTWAIT | MSG_NOSIGNAL);
	return n == (ssize_t)size ? 0 : n < 0 ? -errno : -EIO;
}

static void connected(struct dial *dial, uint64_t now)
{
	int rc = bnet_socket_error(dial->watch.fd);

	if (rc == 0)
		rc = send_hello(dial);
	if (rc == 0)
		rc = bnet_watch_change(&dial->watch, EPOLLIN | EPOLLRDHUP);
	if (rc < 0) {
		try_failed(dial, rc, now);
		return;
	}
	dial->state = DIAL_GREETED;
	dial->got = 0;
	dial->watch.deadline_ms = dial->started_ms + (uint64_t)bnet_engine.config.connect_timeout * 1000;
}

static void try_connect(struct dial *dial, uint64_t now)
{
	struct sockaddr_storage target = bnet_candidate_target(&dial->pair);
	uint64_t timeout = (uint64_t)bnet_engine.config.connect_timeout * 1000;
	int rc = open_bound(dial);

	dial->watch.fd = rc;
	if (rc < 0) {
		dial->watch.fd = -1;
		if (rc == -EMFILE || rc == -ENFILE)
			give_up(dial, rc, "out of descriptors: raise the limit of open files (ulimit -n)");
		else
			try_failed(dial, rc, now);
		return;
	}
	bnet_socket_tune(rc, &bnet_engine.config, dial->conn->setup.traffic_class);
	rc = bnet_socket_connect(dial->watch.fd, &target);
	if (rc == -EINPROGRESS)
		rc = 0;
	if (rc == 0)
		rc = bnet_watch_add(&dial->watch, BNET_WATCH_CONNECTOR, EPOLLOUT);
	if (rc < 0) {
		try_failed(dial, rc, now);
		return;
	}
	dial->state = DIAL_CONNECTING;
	dial->watch.deadline_ms = now + (dial->unbound ? timeout : pairs_are_left(dial) ? PAIR_TRY_MS : BOUND_TRY_MS);
}

int bnet_connector_start(struct bnet_conn *conn, int index)
{
	struct dial *dial = calloc(1, sizeof(*dial));

	if (!dial)
		return -ENOMEM;
	dial->conn = conn;
	dial->index = index;
	dial->started_ms = bnet_now_ms();
	dial->watch.fd = -1;
	bnet_list_add(&bnet_engine.dials, &dial->watch.node);
	conn->setup.dialing++;
	choose_pair(dial, dial->started_ms);
	try_connect(dial, dial->started_ms);
	return 0;
}

/* ---- after WELCOME ---- */

static void welcomed(struct dial *dial, const struct bnet_wire_welcome *welcome)
{
	struct bnet_conn *conn = dial->conn;
	int index = dial->index, rc;

	bnet_watch_remove(&dial->watch);
	rc = bnet_conn_add_stream(conn, dial->watch.fd);
	if (rc < 0) {
		give_up(dial, rc, strerror(-rc));
		return;
	}
	dial->watch.fd = -1;
	end_dial(dial);
	bnet_path_stream_joined(conn, conn->streams[conn->nstreams - 1]);
	if (index)
		return;
	conn->setup.ready = true;
	bnet_path_allow(conn, welcome->max_streams);
	bnet_peer_addresses_add(conn, welcome->addresses, welcome->naddresses);
	bnet_path_spread(conn);
	bnet_path_widen(conn->path);
	bnet_worker_adopt(conn);
	pthread_cond_broadcast(&bnet_engine.changed);
}

static void judged(struct dial *dial, const struct bnet_wire_welcome *welcome)
{
	char why[160];

	switch ((enum bnet_wire_verdict)welcome->verdict) {
	case BNET_WIRE_VERDICT_OK:
		welcomed(dial, welcome);
		return;
	case BNET_WIRE_VERDICT_VERSION:
		snprintf(why, sizeof(why),
			 "it speaks wire version %u, this process version %u: install the same bagua_net on every host",
			 welcome->version, BNET_WIRE_VERSION);
		give_up(dial, -EPROTO, why);
		return;
	case BNET_WIRE_VERDICT_TOKEN:
	case BNET_WIRE_VERDICT_GONE:
		give_up(dial, -ECONNRESET, "the remote communicator is gone");
		return;
	case BNET_WIRE_VERDICT_LIMIT:
		give_up(dial, -EUSERS, "it has no room for another stream");
		return;
	}
	snprintf(why, sizeof(why), "it refused for reason %u, which this version does not know", welcome->verdict);
	give_up(dial, -EPROTO, why);
}

/* Reads no further than the WELCOME's end. */
static void read_welcome(struct dial *dial, uint64_t now)
{
	struct bnet_wire_welcome welcome;
	struct bnet_wire_frame frame;
	uint32_t want = BNET_WIRE_FRAME_HEADER;

	while (dial->got < want) {
		ssize_t n = recv(dial->watch.fd, dial->bytes + dial->got, want - dial->got, MSG_DONTWAIT);

		if (n < 0 && (errno == EAGAIN || errno == EINTR))
			return;
		if (n <= 0) {
			try_failed(dial, n == 0 ? -ECONNRESET : -errno, now);
			return;
		}
		dial->got += (uint32_t)n;
		if (dial->got < BNET_WIRE_FRAME_HEADER)
			continue;
		bnet_wire_frame_decode(dial->bytes, &frame);
		if (!bnet_wire_frame_is_welcome(&frame)) {
			give_up(dial, -EPROTO, "what listens there does not speak BaguaNet's protocol");
			return;
		}
		want = BNET_WIRE_FRAME_HEADER + frame.length;
	}
	if (bnet_wire_welcome_decode(dial->bytes + BNET_WIRE_FRAME_HEADER, dial->got - BNET_WIRE_FRAME_HEADER, &welcome) < 0 ||
	    welcome.connection != dial->conn->id) {
		give_up(dial, -EPROTO, "its answer is damaged");
		return;
	}
	judged(dial, &welcome);
}

void bnet_connector_ready(struct bnet_watch *watch, uint32_t events)
{
	struct dial *dial = (struct dial *)watch;
	uint64_t now = bnet_now_ms();

	(void)events;
	if (dial->state == DIAL_CONNECTING)
		connected(dial, now);
	else
		read_welcome(dial, now);
}

static void warn_if_slow(struct dial *dial, uint64_t now)
{
	struct bnet_setup *setup = &dial->conn->setup;

	if (dial->index || now < setup->warn_at_ms)
		return;
	setup->warn_at_ms = now + (now - setup->started_ms);
	bnet_warn("NET/BaguaNet: still connecting from %s (%s) to %s after %llu s: is that address reachable, and its port "
		  "open in the firewall (BAGUA_NET_PORT_RANGE)? Giving up at %lld s (BAGUA_NET_CONNECT_TIMEOUT)",
		  dial->conn->dev->name, dial->conn->dev->address, dial->conn->peer,
		  (unsigned long long)(now - setup->started_ms) / 1000,
		  (long long)bnet_engine.config.connect_timeout);
}

/* A further stream is no matter of life and death, and while it is tried nothing is learnt of its path. */
static uint64_t patience_ms(const struct dial *dial)
{
	uint64_t limit = (uint64_t)bnet_engine.config.connect_timeout * 1000;

	return dial->index && limit > EXTRA_MS ? EXTRA_MS : limit;
}

void bnet_connectors_tick(uint64_t now)
{
	bnet_list_each(node, &bnet_engine.dials) {
		struct dial *dial = bnet_entry(node, struct dial, watch.node);

		warn_if_slow(dial, now);
		if (now - dial->started_ms >= patience_ms(dial))
			give_up(dial, -ETIMEDOUT,
				dial->index ? "no answer" : "no answer within BAGUA_NET_CONNECT_TIMEOUT");
		else if (now < dial->watch.deadline_ms)
			continue;
		else if (dial->state == DIAL_WAITING)
			try_connect(dial, now);
		else
			try_failed(dial, -ETIMEDOUT, now);
	}
}

void bnet_connectors_cancel(const struct bnet_conn *conn)
{
	bnet_list_each(node, &bnet_engine.dials) {
		struct dial *dial = bnet_entry(node, struct dial, watch.node);

		if (dial->conn == conn)
			end_dial(dial);
	}
}
