/* SPDX-License-Identifier: MIT
 *
 * See dial.h.
 */
#include "handshake/dial.h"

#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "base/log.h"
#include "base/socket.h"
#include "common/clock.h"
#include "handshake/hello.h"
#include "handshake/replacement.h"

/* A socket that is bound to its device and gets no answer is tried once more unbound, since the route may be another.
 * This is long enough for SYNs that a full backlog dropped, which are sent again after 1, 3 and 7 s. */
#define BOUND_TRY_MS 15000
/* The time limit for a try while another pair is left: SYNs are sent again after 1 s and 3 s. */
#define PAIR_TRY_MS 4000
/* A pause, which grows by as much each time. */
#define RETRY_MS 100
#define MAX_RETRY_MS 1000
#define MAX_REPAIR_RETRY_MS 10000

void bnet_dial_choose(struct bnet_connector *connector, uint64_t now)
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

static bool pairs_are_left(const struct bnet_connector *connector)
{
	return connector->attempts < bnet_candidate_count(connector->conn);
}

static int open_bound(struct bnet_connector *connector)
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
static void note(struct bnet_connector *connector, int error, uint64_t now)
{
	struct bnet_setup *setup = &connector->conn->setup;

	if (!bnet_connector_is_first(connector))
		return;
	setup->last_error = error;
	if (!bnet_failure_refused(error))
		setup->refused_since_ms = 0;
	else if (!setup->refused_since_ms)
		setup->refused_since_ms = now;
}

/* The refusal of an extra stream may come from another host, which has the address of one of the peer's NICs on this
 * network. Each pair has its own ports. */
static bool pair_failed(const struct bnet_connector *connector, int error)
{
	if (connector->unbound || connector->home)
		return false;
	if (pairs_are_left(connector) &&
	    (error == -EADDRINUSE || (!bnet_connector_is_first(connector) && bnet_failure_refused(error))))
		return true;
	return bnet_failure_of_route(error);
}

static void next_pair(struct bnet_connector *connector, int error, uint64_t now)
{
	const struct bnet_nic *nic = connector->pair.nic;
	char address[BNET_ADDRESS_TEXT];

	bnet_address_text(connector->pair.peer, address);
	if (bnet_candidate_usable(connector->conn, &connector->pair, now)) {
		/* The only pair carries the first stream, whatever happens to another one. */
		if (bnet_failure_of_route(error) &&
		    (bnet_candidate_count(connector->conn) > 1 || bnet_connector_is_first(connector)))
			bnet_candidate_failed(connector->conn, &connector->pair, now);
		if (bnet_candidate_count(connector->conn) > 1)
			bnet_info(NCCL_NET, "NET/BaguaNet: no way from %s (%s) to %s: %s. Streams take other ways",
				  nic->name, nic->address, address, strerror(-error));
	}
	bnet_dial_choose(connector, now);
	if (connector->unbound)
		bnet_info(NCCL_NET, "NET/BaguaNet: no way from %s (%s) to %s: %s. Trying without binding to it",
			  connector->conn->dev->name, connector->conn->dev->address, connector->conn->peer,
			  strerror(-error));
	bnet_dial_try(connector, now);
}

/* While a stream is left, the peer is there. */
static bool is_hopeless(const struct bnet_connector *connector, uint64_t now)
{
	if (bnet_replacement_any_living(connector->conn))
		return false;
	return connector->failure == BNET_FAILURE_REFUSED &&
	       now - connector->failing_since_ms >= BNET_REPAIR_REFUSED_MS;
}

/* All pairs have failed: from the first one again, later. */
static void replace_later(struct bnet_connector *connector, int error, uint64_t now)
{
	uint64_t pause = ++connector->retries * RETRY_MS;
	char text[BNET_EXPLANATION];

	if (is_hopeless(connector, now)) {
		bnet_connector_give_up(connector, error,
				       bnet_failure_explain(error, connector->conn->setup.local, text));
		return;
	}
	if (connector->home && error != -EUSERS)
		bnet_candidate_failed(connector->conn, &connector->pair, now);
	connector->attempts = 0;
	connector->refused = false;
	connector->unbound = connector->home = false;
	bnet_dial_choose(connector, now);
	connector->state = BNET_CONNECTOR_WAITING;
	connector->watch.deadline_ms = now + (pause < MAX_REPAIR_RETRY_MS ? pause : MAX_REPAIR_RETRY_MS);
}

/* All pairs have failed. A failure of another kind than the last one, as of a link that goes down while the peer is
 * awaited, is waited for from now on. */
static void note_failure(struct bnet_connector *connector, int error, uint64_t now)
{
	const bool by_a_stranger = bnet_connector_is_elsewhere(connector) && bnet_failure_refused(error) &&
				   !connector->refused;
	enum bnet_failure failure = by_a_stranger ? BNET_FAILURE_NO_HOST : bnet_failure_of(error);

	if (failure != connector->failure)
		connector->failing_since_ms = now;
	connector->failure = failure;
}

/* Once, since it may be tried again and again. */
static void say_no_port(const struct bnet_connector *connector, int error)
{
	if (error == -EADDRINUSE && connector->last_error != error)
		bnet_info(NCCL_NET,
			  "NET/BaguaNet: no port of net.ipv4.ip_local_port_range is free for a stream from %s (%s) to %s",
			  connector->pair.nic->name, connector->pair.nic->address, connector->conn->peer);
}

void bnet_connector_try_failed(struct bnet_connector *connector, int error, uint64_t now)
{
	char text[BNET_EXPLANATION];

	/* Its end in order would be the sender's, were the stream in place there. */
	if (connector->state == BNET_CONNECTOR_HELLO_SENT &&
	    (connector->replaces || bnet_connector_is_first(connector)))
		bnet_socket_reset(connector->watch.fd);
	bnet_connector_hang_up(connector);
	note(connector, error, now);
	say_no_port(connector, error);
	connector->last_error = error;
	connector->refused |= error == -ECONNREFUSED && !bnet_connector_is_elsewhere(connector);
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

		connector->state = BNET_CONNECTOR_WAITING;
		connector->watch.deadline_ms = now + (pause < MAX_RETRY_MS ? pause : MAX_RETRY_MS);
		return;
	}
	bnet_connector_give_up(connector, error,
			       connector->beside ? strerror(-error)
						 : bnet_failure_explain(error, connector->conn->setup.local, text));
}

/* The peer is there, and the stream is still silent: this one replaces it. 0; -EBUSY: its owner is; -ENOENT: it is not
 * any more, and the connector is gone. */
static int take_place(struct bnet_connector *connector)
{
	struct bnet_conn *conn = connector->conn;

	if (!connector->beside)
		return 0;
	if (!bnet_conn_try_own_for(conn, BNET_OWN_TRIES))
		return -EBUSY;
	connector->replaces = bnet_replacement_retire_living(conn, connector->beside, connector->silent);
	bnet_conn_disown(conn);
	connector->beside = 0;
	connector->counted = true;
	conn->setup.connecting++;
	if (connector->replaces)
		return 0;
	bnet_connector_end(connector);
	return -ENOENT;
}

void bnet_dial_connected(struct bnet_connector *connector, uint64_t now)
{
	int rc = bnet_socket_error(connector->watch.fd);

	if (rc == 0)
		rc = take_place(connector);
	if (rc == -ENOENT)
		return;
	if (rc == -EBUSY) {
		connector->state = BNET_CONNECTOR_ANSWERED;
		rc = bnet_watch_change(&connector->watch, 0);
		if (rc == 0)
			return;
	}
	if (rc == 0)
		rc = bnet_hello_send(connector);
	if (rc == -EAGAIN)
		return; /* a caller looks before it is connected */
	if (rc == 0 && bnet_watch_is_on(&connector->watch))
		rc = bnet_watch_change(&connector->watch, EPOLLIN | EPOLLRDHUP);
	if (rc < 0)
		bnet_connector_try_failed(connector, rc, now);
	else
		bnet_hello_said(connector);
}

bool bnet_dial_is_watched(const struct bnet_connector *connector)
{
	return connector->watch.fd < 0 || bnet_watch_is_on(&connector->watch);
}

void bnet_dial_watch(struct bnet_connector *connector, uint64_t now)
{
	int rc = 0;

	if (!bnet_dial_is_watched(connector))
		rc = bnet_watch_add(&connector->watch, BNET_WATCH_CONNECTOR,
				    connector->state == BNET_CONNECTOR_HELLO_SENT ? EPOLLIN | EPOLLRDHUP : EPOLLOUT);
	if (rc < 0)
		bnet_connector_try_failed(connector, rc, now);
}

void bnet_dial_try(struct bnet_connector *connector, uint64_t now)
{
	struct sockaddr_storage target = bnet_candidate_target(&connector->pair);
	uint64_t timeout = (uint64_t)bnet_engine.config.connect_timeout * 1000;
	int rc = open_bound(connector);

	connector->watch.fd = rc;
	if (rc < 0) {
		connector->watch.fd = -1;
		if ((rc == -EMFILE || rc == -ENFILE) && !connector->replaces)
			bnet_connector_give_up(connector, rc,
					       "out of descriptors: raise the limit of open files (ulimit -n)");
		else
			bnet_connector_try_failed(connector, rc, now);
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
		rc = bnet_hello_send(connector);
	if (rc < 0 && rc != -EAGAIN) {
		bnet_connector_try_failed(connector, rc, now);
		return;
	}
	connector->state = BNET_CONNECTOR_CONNECTING;
	connector->watch.deadline_ms = now + (connector->replaces || connector->beside ? PAIR_TRY_MS
					      : connector->unbound                     ? timeout
					      : pairs_are_left(connector)              ? PAIR_TRY_MS
										       : BOUND_TRY_MS);
	if (rc == 0)
		bnet_hello_said(connector);
	/* The caller goes on with the first one, and until the next tick no event wakes the control thread for it. */
	if (!bnet_connector_is_first(connector))
		bnet_dial_watch(connector, now);
}
