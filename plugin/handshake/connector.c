/* SPDX-License-Identifier: MIT
 *
 * See connector.h.
 */
#include "handshake/connector.h"

#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "common/clock.h"
#include "base/counters.h"
#include "base/log.h"
#include "base/socket.h"
#include "handshake/candidate.h"
#include "handshake/failure.h"
#include "handshake/replacement.h"
#include "wire/wire.h"

/* A socket that is bound to its device and gets no answer is tried once more unbound, since the route may be another.
 * This is long enough for SYNs that a full backlog dropped, which are sent again after 1, 3 and 7 s. */
#define BOUND_TRY_MS 15000
/* The time limit for a stream other than the first. */
#define EXTRA_MS 30000
/* The limits for a stream on trial, whose siblings were answered: for an answer to its SYN, which is sent again after
 * 1 s, and in all, since the peer's control thread may be late; round trips come on top. */
#define TRIAL_SYN_MS 1500
#define TRIAL_MS 5000
#define TRIAL_RTTS 20
/* The time limit for a try while another pair is left: SYNs are sent again after 1 s and 3 s. */
#define PAIR_TRY_MS 4000
/* A pause, which grows by as much each time. */
#define RETRY_MS 100
#define MAX_RETRY_MS 1000
/* Made or given up at a time, each in some 40 µs: those who need the engine's lock wait meanwhile. */
#define TRIES 32
/* For the answer to its HELLO: the peer's control thread may be late. */
#define REPAIR_HELLO_MS 5000
#define MAX_REPAIR_RETRY_MS 10000
/* A pass takes some microseconds. The engine's lock is held meanwhile, so that the owner word may only be tried. */
#define OWN_TRIES 1000

enum state {
	WAITING, /* to try again */
	CONNECTING,
	ANSWERED, /* one beside another stream: for the connection's owner word, at each tick */
	HELLO_SENT,
};

struct connector {
	struct bnet_watch watch;   /* deadline: of the current try */
	struct bnet_node siblings; /* in its connection's list */
	struct bnet_conn *conn;
	int index;
	bool trial;
	struct bnet_stream *replaces; /* the broken stream that it takes the place of; NULL: of none */
	uint32_t beside;              /* of a silent one, by its serial, as soon as the peer has answered; 0: of none */
	uint32_t silent;              /* … if that one has been silent for so many looks then */
	bool home;                    /* … or of one that has not the pair of its own, on that pair only */
	bool counted;                 /* the connection is opening streams meanwhile */
	uint32_t serial;              /* of the stream in the last HELLO; 0: none was sent */
	enum bnet_failure failure;    /* of the last try */
	bool refused;                 /* in this round, on the pair that the stream had */
	uint64_t failing_since_ms;    /* … and of all since then */
	enum state state;
	struct bnet_candidate pair; /* being tried */
	int attempts;               /* pairs looked at so far */
	bool unbound;               /* all have failed: now to the peer's first address, by any route */
	uint64_t started_ms;
	uint64_t retries;
	uint32_t got;
	uint8_t bytes[BNET_WIRE_HANDSHAKE_MAX];
};

/* Does it open the connection? */
static bool is_first(const struct connector *connector)
{
	return connector->index == 0 && !connector->replaces && !connector->beside;
}

static void end(struct connector *connector)
{
	connector->conn->setup.connecting -= connector->counted;
	bnet_list_remove(&connector->watch.node);
	bnet_list_remove(&connector->siblings);
	bnet_watch_close(&connector->watch);
	free(connector);
}

/* The failure of the first stream fails the connection, as does that of one that takes the place of a broken one; that of
 * another one is a line in the log. */
static void give_up(struct connector *connector, int error, const char *why)
{
	struct bnet_conn *conn = connector->conn;

	if (is_first(connector)) {
		bnet_conn_fail(conn, error, "cannot connect from %s (%s) to %s: %s", conn->dev->name,
			       conn->dev->address, conn->peer, why);
		pthread_cond_broadcast(&bnet_engine.changed);
	} else if (connector->replaces) {
		bnet_replacement_failed(conn, why);
	} else if (connector->home) {
		if (bnet_failure_of_route(error) || bnet_failure_refused(error))
			bnet_candidate_failed(conn, &connector->pair, bnet_now_ms());
	} else if (connector->beside) {
		bnet_info(NCCL_NET,
			  "NET/BaguaNet: a stream to %s is silent, and another one in its place gets no further: %s",
			  conn->peer, why);
	} else {
		bnet_info(NCCL_NET, "NET/BaguaNet: no stream %d to %s, going on with %d: %s", connector->index,
			  conn->peer, conn->nstreams, why);
	}
	end(connector);
}

/* The next usable pair, or unbound when none is left. */
static void choose_pair(struct connector *connector, uint64_t now)
{
	struct bnet_conn *conn = connector->conn;
	int count = bnet_candidate_count(conn);

	while (connector->attempts < count) {
		connector->pair = bnet_candidate_of(conn, connector->index, connector->attempts++);
		if (connector->home || bnet_candidate_usable(conn, &connector->pair, now))
			return;
	}
	connector->pair = (struct bnet_candidate){.nic = conn->dev->members[0], .peer = &conn->setup.peers[0]};
	connector->unbound = true;
}

static bool pairs_are_left(const struct connector *connector)
{
	return connector->attempts < bnet_candidate_count(connector->conn);
}

static int open_bound(struct connector *connector)
{
	int fd = bnet_socket_open(connector->pair.peer->ss_family), rc;

	if (fd < 0 || connector->unbound)
		return fd;
	rc = bnet_socket_bind_source(fd, &connector->pair.nic->addr,
				     bnet_candidate_interface(connector->conn, &connector->pair));
	if (rc < 0) {
		bnet_socket_close(fd);
		return rc;
	}
	return fd;
}

/* What the first stream's tries have met, for those who wait for it. */
static void note(struct connector *connector, int error, uint64_t now)
{
	struct bnet_setup *setup = &connector->conn->setup;

	if (!is_first(connector))
		return;
	setup->last_error = error;
	if (!bnet_failure_refused(error))
		setup->refused_since_ms = 0;
	else if (!setup->refused_since_ms)
		setup->refused_since_ms = now;
}

static void try_connect(struct connector *connector, uint64_t now);

/* The refusal of an extra stream may come from another host, which has the address of one of the peer's NICs on this
 * network. */
static bool pair_failed(const struct connector *connector, int error)
{
	return !connector->unbound && !connector->home &&
	       (bnet_failure_of_route(error) ||
		(!is_first(connector) && pairs_are_left(connector) && bnet_failure_refused(error)));
}

static void next_pair(struct connector *connector, int error, uint64_t now)
{
	const struct bnet_nic *nic = connector->pair.nic;
	char address[BNET_ADDRESS_TEXT];

	bnet_address_text(connector->pair.peer, address);
	if (bnet_candidate_usable(connector->conn, &connector->pair, now)) {
		/* The only pair carries the first stream, whatever happens to another one. */
		if (bnet_failure_of_route(error) && (bnet_candidate_count(connector->conn) > 1 || is_first(connector)))
			bnet_candidate_failed(connector->conn, &connector->pair, now);
		if (bnet_candidate_count(connector->conn) > 1)
			bnet_info(NCCL_NET, "NET/BaguaNet: no way from %s (%s) to %s: %s. Streams take other ways",
				  nic->name, nic->address, address, strerror(-error));
	}
	choose_pair(connector, now);
	if (connector->unbound)
		bnet_info(NCCL_NET, "NET/BaguaNet: no way from %s (%s) to %s: %s. Trying without binding to it",
			  connector->conn->dev->name, connector->conn->dev->address, connector->conn->peer,
			  strerror(-error));
	try_connect(connector, now);
}

/* While a stream is left, the peer is there. */
static bool is_hopeless(const struct connector *connector, uint64_t now)
{
	if (bnet_replacement_any_living(connector->conn))
		return false;
	return (connector->failure == BNET_FAILURE_REFUSED &&
		now - connector->failing_since_ms >= BNET_REPAIR_REFUSED_MS) ||
	       bnet_replacement_has_waited(connector->conn);
}

/* All pairs have failed: from the first one again, later. */
static void replace_later(struct connector *connector, int error, uint64_t now)
{
	uint64_t pause = ++connector->retries * RETRY_MS;
	char text[BNET_EXPLANATION];

	if (is_hopeless(connector, now)) {
		give_up(connector, error, bnet_failure_explain(error, connector->conn->setup.local, text));
		return;
	}
	if (connector->home && error != -EUSERS)
		bnet_candidate_failed(connector->conn, &connector->pair, now);
	connector->attempts = 0;
	connector->refused = false;
	connector->unbound = connector->home = false;
	choose_pair(connector, now);
	connector->state = WAITING;
	connector->watch.deadline_ms = now + (pause < MAX_REPAIR_RETRY_MS ? pause : MAX_REPAIR_RETRY_MS);
}

/* Is it the replacement of a stream on another pair than that one's? Another host may have that address. */
static bool is_elsewhere(const struct connector *connector)
{
	return connector->replaces && bnet_candidate_count(connector->conn) > 1 &&
	       (connector->attempts > 1 || connector->unbound || connector->home);
}

/* All pairs have failed. A failure of another kind than the last one, as of a link that goes down while the peer is
 * awaited, is waited for from now on. */
static void note_failure(struct connector *connector, int error, uint64_t now)
{
	const bool by_a_stranger = is_elsewhere(connector) && bnet_failure_refused(error) && !connector->refused;
	enum bnet_failure failure = by_a_stranger ? BNET_FAILURE_NO_HOST : bnet_failure_of(error);

	if (failure != connector->failure)
		connector->failing_since_ms = now;
	connector->failure = failure;
}

/* The present try has failed: tries another pair, or unbound, or later, or gives up. */
static void try_failed(struct connector *connector, int error, uint64_t now)
{
	char text[BNET_EXPLANATION];

	/* Its end in order would be the sender's, were the stream in place there. */
	if (connector->state == HELLO_SENT && (connector->replaces || is_first(connector)))
		bnet_socket_reset(connector->watch.fd);
	bnet_watch_close(&connector->watch);
	note(connector, error, now);
	connector->refused |= error == -ECONNREFUSED && !is_elsewhere(connector);
	if (pair_failed(connector, error)) {
		next_pair(connector, error, now);
		return;
	}
	note_failure(connector, error, now);
	if (connector->replaces) {
		replace_later(connector, error, now);
		return;
	}
	if (!connector->beside &&
	    now - connector->failing_since_ms <
		    bnet_failure_patience_ms(connector->failure, connector->conn->setup.local, connector->index > 0)) {
		uint64_t pause = ++connector->retries * RETRY_MS;

		connector->state = WAITING;
		connector->watch.deadline_ms = now + (pause < MAX_RETRY_MS ? pause : MAX_RETRY_MS);
		return;
	}
	give_up(connector, error,
		connector->beside ? strerror(-error) : bnet_failure_explain(error, connector->conn->setup.local, text));
}

static int send_hello(struct connector *connector)
{
	struct bnet_conn *conn = connector->conn;
	const struct bnet_listener *listener = &bnet_engine.listeners[conn->dev->members[0] - bnet_engine.devices.nics];
	struct bnet_wire_hello hello = {
		.version = BNET_WIRE_VERSION,
		.stream = (uint16_t)(is_first(connector) ? 0
				     : connector->index  ? connector->index
							 : 1),
		.connection = conn->id,
		.features = conn->config->repair ? BNET_WIRE_FEATURE_REPAIR : 0,
		.serial = conn->serials + 1,
		.repairs = connector->replaces   ? connector->replaces->serial
			   : is_first(connector) ? connector->serial
						 : 0,
	};
	uint8_t bytes[BNET_WIRE_HELLO_MAX];
	size_t size;
	ssize_t n;

	memcpy(hello.token, conn->token, BNET_TOKEN_SIZE);
	if (listener->fd >= 0)
		hello.listener = listener->addr;
	size = bnet_wire_hello_encode(bytes, &hello);
	/* A socket that has carried nothing takes this in one piece. */
	n = send(connector->watch.fd, bytes, size, MSG_DONTWAIT | MSG_NOSIGNAL);
	if (n != (ssize_t)size)
		return n < 0 ? -errno : -EIO;
	connector->serial = ++conn->serials;
	return 0;
}

static void said_hello(struct connector *connector)
{
	connector->state = HELLO_SENT;
	connector->got = 0;
	if (!connector->replaces)
		connector->failure = BNET_FAILURE_NONE; /* it was reached: what is lost again begins anew */
	if (is_first(connector))
		connector->conn->setup.refused_since_ms = 0;
	connector->watch.deadline_ms =
		connector->replaces ? bnet_now_ms() + REPAIR_HELLO_MS
				    : connector->started_ms + (uint64_t)bnet_engine.config.connect_timeout * 1000;
}

/* The peer is there, and the stream is still silent: this one replaces it. 0; -EBUSY: its owner is; -ENOENT: it is not any
 * more, and the connector is gone. */
static int take_place(struct connector *connector)
{
	struct bnet_conn *conn = connector->conn;

	if (!connector->beside)
		return 0;
	for (int i = 0; !bnet_conn_try_own(conn); i++)
		if (i == OWN_TRIES)
			return -EBUSY;
	connector->replaces = bnet_replacement_retire_living(conn, connector->beside, connector->silent);
	bnet_conn_disown(conn);
	connector->beside = 0;
	connector->counted = true;
	conn->setup.connecting++;
	if (connector->replaces)
		return 0;
	end(connector);
	return -ENOENT;
}

static void connected(struct connector *connector, uint64_t now)
{
	int rc = bnet_socket_error(connector->watch.fd);

	if (rc == 0)
		rc = take_place(connector);
	if (rc == -ENOENT)
		return;
	if (rc == -EBUSY) {
		connector->state = ANSWERED;
		rc = bnet_watch_change(&connector->watch, 0);
		if (rc == 0)
			return;
	}
	if (rc == 0)
		rc = send_hello(connector);
	if (rc == -EAGAIN)
		return; /* a caller looks before it is connected */
	if (rc == 0 && bnet_watch_is_on(&connector->watch))
		rc = bnet_watch_change(&connector->watch, EPOLLIN | EPOLLRDHUP);
	if (rc < 0)
		try_failed(connector, rc, now);
	else
		said_hello(connector);
}

static bool is_watched(const struct connector *connector)
{
	return connector->watch.fd < 0 || bnet_watch_is_on(&connector->watch);
}

/* The control thread is to know when it is connected, or when the WELCOME comes. */
static void watch(struct connector *connector, uint64_t now)
{
	int rc = 0;

	if (!is_watched(connector))
		rc = bnet_watch_add(&connector->watch, BNET_WATCH_CONNECTOR,
				    connector->state == HELLO_SENT ? EPOLLIN | EPOLLRDHUP : EPOLLOUT);
	if (rc < 0)
		try_failed(connector, rc, now);
}

static void try_connect(struct connector *connector, uint64_t now)
{
	struct sockaddr_storage target = bnet_candidate_target(&connector->pair);
	uint64_t timeout = (uint64_t)bnet_engine.config.connect_timeout * 1000;
	int rc = open_bound(connector);

	connector->watch.fd = rc;
	if (rc < 0) {
		connector->watch.fd = -1;
		if ((rc == -EMFILE || rc == -ENFILE) && !connector->replaces)
			give_up(connector, rc, "out of descriptors: raise the limit of open files (ulimit -n)");
		else
			try_failed(connector, rc, now);
		return;
	}
	bnet_socket_tune(rc, &bnet_engine.config, connector->conn->setup.traffic_class);
	/* Before connect, since what bbr or dctcp sets up at its start stays; after it, since connect chooses what the
	 * route names. */
	bnet_socket_choose_congestion(connector->watch.fd, &bnet_engine.config, connector->conn->setup.local);
	rc = bnet_socket_connect(connector->watch.fd, &target);
	bnet_socket_choose_congestion(connector->watch.fd, &bnet_engine.config, connector->conn->setup.local);
	/* On this machine it is connected by now, though connect does not say so. */
	if (connector->beside && (rc == 0 || rc == -EINPROGRESS))
		rc = -EAGAIN;
	else if (rc == 0 || rc == -EINPROGRESS)
		rc = send_hello(connector);
	if (rc < 0 && rc != -EAGAIN) {
		try_failed(connector, rc, now);
		return;
	}
	connector->state = CONNECTING;
	connector->watch.deadline_ms = now + (connector->replaces || connector->beside ? PAIR_TRY_MS
					      : connector->unbound                     ? timeout
					      : pairs_are_left(connector)              ? PAIR_TRY_MS
										       : BOUND_TRY_MS);
	if (rc == 0)
		said_hello(connector);
	/* The caller goes on with the first one, and until the next tick no event wakes the control thread for it. */
	if (!is_first(connector))
		watch(connector, now);
}

static int start(const struct connector *wanted)
{
	struct bnet_conn *conn = wanted->conn;
	struct connector *connector = malloc(sizeof(*connector));

	if (!connector)
		return -ENOMEM;
	*connector = *wanted;
	connector->started_ms = bnet_now_ms();
	bnet_watch_init(&connector->watch, -1);
	bnet_list_add(&bnet_engine.connectors, &connector->watch.node);
	bnet_list_add(&conn->setup.connectors, &connector->siblings);
	connector->counted = !connector->beside;
	conn->setup.connecting += connector->counted;
	choose_pair(connector, connector->started_ms);
	try_connect(connector, connector->started_ms);
	return 0;
}

int bnet_connector_start(struct bnet_conn *conn, int index, bool trial)
{
	return start(&(struct connector){.conn = conn, .index = index, .trial = trial});
}

int bnet_connector_replace(struct bnet_conn *conn, struct bnet_stream *broken)
{
	return start(&(struct connector){.conn = conn, .index = broken->dialed, .replaces = broken});
}

int bnet_connector_beside(struct bnet_conn *conn, const struct bnet_stream *silent)
{
	bnet_list_each(node, &conn->setup.connectors)
		if (bnet_entry(node, struct connector, siblings)->beside == silent->serial)
			return 0;
	return start(&(struct connector){.conn = conn,
					 .index = silent->dialed,
					 .beside = silent->serial,
					 .silent = silent->delivery.silent});
}

int bnet_connector_home(struct bnet_conn *conn, const struct bnet_stream *away)
{
	const struct bnet_candidate pair = bnet_candidate_of(conn, away->dialed, 0);

	if (!bnet_candidate_is_due(conn, &pair, bnet_now_ms()))
		return 0;
	bnet_list_each(node, &conn->setup.connectors) {
		const struct connector *other = bnet_entry(node, struct connector, siblings);

		if (other->beside || other->replaces)
			return 0;
	}
	return start(&(struct connector){.conn = conn, .index = away->dialed, .beside = away->serial, .home = true});
}

/* ---- after WELCOME ---- */

static bool welcomed(struct connector *connector, const struct bnet_wire_welcome *welcome, struct bnet_joined *joined)
{
	struct bnet_conn *conn = connector->conn;
	bool first = is_first(connector);
	const struct bnet_stream_start start = {
		.serial = connector->serial,
		.dialed = connector->index,
		.away = connector->attempts != 1 || connector->unbound,
		.replaces = connector->replaces,
		.position = welcome->position,
	};
	int fd, rc;

	if (connector->replaces && !welcome->repaired) {
		give_up(connector, -EPROTO, "its answer is damaged");
		return false;
	}
	if (first)
		conn->repairs = conn->config->repair && welcome->features & BNET_WIRE_FEATURE_REPAIR;
	fd = bnet_watch_remove(&connector->watch);
	rc = bnet_conn_add_stream(conn, fd, &start);
	if (rc < 0) {
		bnet_socket_close(fd);
		give_up(connector, rc, strerror(-rc));
		return false;
	}
	atomic_store_explicit(&conn->alone_us, 0, memory_order_relaxed);
	if (connector->replaces)
		bnet_replacement_done(conn, connector->replaces, connector->home ? connector->pair.nic : NULL);
	end(connector);
	if (first) {
		conn->setup.ready = true;
		conn->setup.peer_keepalive = welcome->keepalive;
		bnet_peer_addresses_add(conn, welcome->addresses, welcome->naddresses);
	}
	*joined = (struct bnet_joined){
		.conn = conn,
		.stream = conn->streams[conn->nstreams - 1],
		.first = first,
		.most = welcome->max_streams,
	};
	return true;
}

static bool judged(struct connector *connector, const struct bnet_wire_welcome *welcome, struct bnet_joined *joined)
{
	char why[160];

	if (welcome->verdict != BNET_WIRE_VERDICT_OK && welcome->verdict != BNET_WIRE_VERDICT_LIMIT &&
	    is_elsewhere(connector)) {
		try_failed(connector, -ECONNREFUSED, bnet_now_ms());
		return false;
	}
	switch ((enum bnet_wire_verdict)welcome->verdict) {
	case BNET_WIRE_VERDICT_OK:
		return welcomed(connector, welcome, joined);
	case BNET_WIRE_VERDICT_VERSION:
		snprintf(why, sizeof(why),
			 "it speaks wire version %u, this process version %u: install the same bagua_net on every host",
			 welcome->version, BNET_WIRE_VERSION);
		give_up(connector, -EPROTO, why);
		return false;
	case BNET_WIRE_VERDICT_TOKEN:
	case BNET_WIRE_VERDICT_GONE:
		give_up(connector, -ECONNRESET, "the remote communicator is gone");
		return false;
	case BNET_WIRE_VERDICT_LIMIT:
		if (connector->replaces) {
			try_failed(connector, -EUSERS, bnet_now_ms());
			return false;
		}
		give_up(connector, -EUSERS, "it has no room for another stream");
		return false;
	}
	snprintf(why, sizeof(why), "it refused for reason %u, which this version does not know", welcome->verdict);
	give_up(connector, -EPROTO, why);
	return false;
}

/* Reads no further than the WELCOME's end. */
static bool read_welcome(struct connector *connector, uint64_t now, struct bnet_joined *joined)
{
	struct bnet_wire_welcome welcome;
	struct bnet_wire_frame frame;
	uint32_t want = BNET_WIRE_FRAME_HEADER;

	while (connector->got < want) {
		ssize_t n = recv(connector->watch.fd, connector->bytes + connector->got, want - connector->got,
				 MSG_DONTWAIT);

		if (n < 0 && (errno == EAGAIN || errno == EINTR))
			return false;
		if (n <= 0) {
			try_failed(connector, n == 0 ? -ECONNRESET : -errno, now);
			return false;
		}
		connector->got += (uint32_t)n;
		if (connector->got < BNET_WIRE_FRAME_HEADER)
			continue;
		bnet_wire_frame_decode(connector->bytes, &frame);
		if (!bnet_wire_frame_is_welcome(&frame)) {
			if (is_elsewhere(connector)) {
				try_failed(connector, -ECONNREFUSED, now);
				return false;
			}
			give_up(connector, -EPROTO, "what listens there does not speak BaguaNet's protocol");
			return false;
		}
		want = BNET_WIRE_FRAME_HEADER + frame.length;
	}
	if (bnet_wire_welcome_decode(connector->bytes + BNET_WIRE_FRAME_HEADER, connector->got - BNET_WIRE_FRAME_HEADER,
				     &welcome) < 0 ||
	    welcome.connection != connector->conn->id) {
		give_up(connector, -EPROTO, "its answer is damaged");
		return false;
	}
	return judged(connector, &welcome, joined);
}

bool bnet_connector_ready(struct bnet_watch *watch, struct bnet_joined *joined)
{
	struct connector *connector = (struct connector *)watch;
	uint64_t now = bnet_now_ms();

	if (connector->state == HELLO_SENT)
		return read_welcome(connector, now, joined);
	connected(connector, now);
	return false;
}

bool bnet_connector_look(struct bnet_conn *conn, struct bnet_joined *joined)
{
	struct connector *connector;

	if (bnet_list_empty(&conn->setup.connectors))
		return false;
	connector = bnet_entry(conn->setup.connectors.next, struct connector, siblings);
	return connector->state != WAITING && bnet_connector_ready(&connector->watch, joined);
}

static void warn_if_slow(struct connector *connector, uint64_t now)
{
	struct bnet_setup *setup = &connector->conn->setup;

	if (!is_first(connector) || now < setup->warn_at_ms)
		return;
	setup->warn_at_ms = now + (now - setup->started_ms);
	bnet_warn_visibly(
		"NET/BaguaNet: still connecting from %s (%s) to %s after %llu s%s%s: is that address reachable from this "
		"interface (NCCL_SOCKET_IFNAME), and its port open in the firewall (BAGUA_NET_PORT_RANGE)? Giving up at %lld s "
		"(BAGUA_NET_CONNECT_TIMEOUT)",
		connector->conn->dev->name, connector->conn->dev->address, connector->conn->peer,
		(unsigned long long)(now - setup->started_ms) / 1000, setup->last_error ? ", last " : "",
		setup->last_error ? strerror(-setup->last_error) : "", (long long)bnet_engine.config.connect_timeout);
}

/* The slowest of its siblings' at present. */
static uint64_t rtt_ms(const struct bnet_conn *conn)
{
	uint32_t rtt_us = 0;

	for (int i = 0; i < conn->nstreams; i++)
		if (conn->streams[i]->estimator.last.rtt_us > rtt_us)
			rtt_us = conn->streams[i]->estimator.last.rtt_us;
	return rtt_us / 1000;
}

/* The connection works without a further stream, and while one is being opened its path is not measured. */
static uint64_t timeout_ms(const struct connector *connector)
{
	uint64_t limit = (uint64_t)bnet_engine.config.connect_timeout * 1000, extra = EXTRA_MS;

	if (connector->beside)
		return UINT64_MAX; /* it tries each pair once */
	if (connector->replaces)
		return bnet_replacement_has_waited(connector->conn) ? 0 : UINT64_MAX;
	if (connector->trial)
		extra = (connector->state == HELLO_SENT ? TRIAL_MS : TRIAL_SYN_MS) +
			TRIAL_RTTS * rtt_ms(connector->conn);
	return connector->index && limit > extra ? extra : limit;
}

/* The time limit of the connector or of its present try is over. */
static bool is_due(const struct connector *connector, uint64_t now)
{
	return now - connector->started_ms >= timeout_ms(connector) || now >= connector->watch.deadline_ms;
}

/* Its time is over: the last try has failed for the true reason, unless it goes on. */
static void time_out(struct connector *connector)
{
	int error = connector->state == WAITING ? connector->conn->setup.last_error : -ETIMEDOUT;
	char text[BNET_EXPLANATION];

	if (connector->index || connector->replaces)
		give_up(connector, -ETIMEDOUT, "no answer");
	else if (connector->state == HELLO_SENT)
		give_up(connector, -ETIMEDOUT,
			"that port was reached, but no answer came within BAGUA_NET_CONNECT_TIMEOUT: the process there is "
			"stopped or out of descriptors, or what listens is not BaguaNet");
	else
		give_up(connector, -ETIMEDOUT, bnet_failure_explain(error, connector->conn->setup.local, text));
}

static void go_on(struct connector *connector, uint64_t now)
{
	if (now - connector->started_ms >= timeout_ms(connector))
		time_out(connector);
	else if (connector->state == WAITING)
		try_connect(connector, now);
	else if (connector->state == ANSWERED)
		end(connector); /* of a pair that works, for a stream whose owner is at work */
	else
		try_failed(connector, -ETIMEDOUT, now);
}

void bnet_connectors_tick(uint64_t now)
{
	int tries = 0;

	bnet_list_each(node, &bnet_engine.connectors) {
		struct connector *connector = bnet_entry(node, struct connector, watch.node);

		warn_if_slow(connector, now);
		if (connector->state == ANSWERED && !is_due(connector, now)) {
			connected(connector, now);
			continue;
		}
		if (!is_due(connector, now) && is_watched(connector))
			continue;
		bnet_list_remove(node); /* on the next tick the others come first */
		bnet_list_add(&bnet_engine.connectors, node);
		if (is_due(connector, now))
			go_on(connector, now);
		else
			watch(connector, now); /* its caller has not come to the end of it */
		if (++tries == TRIES)
			break;
	}
}

void bnet_connectors_cancel(struct bnet_conn *conn)
{
	bnet_list_each(node, &conn->setup.connectors)
		end(bnet_entry(node, struct connector, siblings));
}
