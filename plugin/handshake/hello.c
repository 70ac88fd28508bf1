/* SPDX-License-Identifier: MIT
 *
 * See hello.h.
 */
#include "handshake/hello.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#include "base/counters.h"
#include "base/log.h"
#include "base/socket.h"
#include "common/clock.h"
#include "handshake/proof.h"
#include "handshake/replacement.h"
#include "handshake/sealing.h"

/* For the answer to its HELLO: the peer's control thread may be late. */
#define REPAIR_HELLO_MS 5000

static bool is_connected(int fd)
{
	struct sockaddr_storage addr;
	socklen_t size = sizeof(addr);

	return getpeername(fd, (struct sockaddr *)&addr, &size) == 0 || errno != ENOTCONN;
}

int bnet_hello_send(struct bnet_connector *connector)
{
	struct bnet_conn *conn = connector->conn;
	const struct bnet_listener *listener = &bnet_engine.listeners[conn->dev->members[0] - bnet_engine.devices.nics];
	struct bnet_wire_hello hello = {
		.version = BNET_WIRE_VERSION,
		.stream = (uint16_t)(bnet_connector_is_first(connector) ? 0
				     : connector->index                 ? connector->index
									: 1),
		.connection = conn->id,
		.features = (conn->config->repair ? BNET_WIRE_FEATURE_REPAIR : 0) | bnet_sealing_features(),
		.proof_size = bnet_proof_size(),
		.serial = conn->serials + 1,
		.repairs = connector->replaces                  ? connector->replaces->serial
			   : bnet_connector_is_first(connector) ? connector->serial
								: 0,
	};
	uint8_t bytes[BNET_WIRE_HELLO_MAX];
	size_t size;
	ssize_t n;
	int rc;

	if (bnet_proof_size() && !is_connected(connector->watch.fd))
		return -EAGAIN; /* a caller looks all the time */
	rc = bnet_proof_draw(hello.proof);
	if (rc < 0)
		return rc;
	memcpy(hello.token, conn->token, BNET_TOKEN_SIZE);
	if (listener->fd >= 0)
		hello.listener = listener->addr;
	size = bnet_wire_hello_encode(bytes, &hello);
	rc = bnet_proof_write(BNET_PROOF_HELLO, bytes, size, NULL);
	if (rc < 0)
		return rc;
	/* A socket that has carried nothing takes this in one piece. */
	n = send(connector->watch.fd, bytes, size, MSG_DONTWAIT | MSG_NOSIGNAL);
	if (n != (ssize_t)size)
		return n < 0 ? -errno : -EIO;
	connector->serial = ++conn->serials;
	memcpy(connector->hello, bytes + BNET_WIRE_HELLO_PROOF, hello.proof_size);
	connector->confirmed = false;
	return 0;
}

void bnet_hello_said(struct bnet_connector *connector)
{
	connector->state = BNET_CONNECTOR_HELLO_SENT;
	connector->got = 0;
	if (!connector->replaces)
		connector->failure = BNET_FAILURE_NONE; /* it was reached: what is lost again begins anew */
	if (bnet_connector_is_first(connector))
		connector->conn->setup.refused_since_ms = 0;
	connector->watch.deadline_ms =
		connector->replaces ? bnet_now_ms() + REPAIR_HELLO_MS
				    : connector->started_ms + (uint64_t)bnet_engine.config.connect_timeout * 1000;
}

static bool welcomed(struct bnet_connector *connector, const struct bnet_wire_welcome *welcome,
		     struct bnet_joined *joined)
{
	struct bnet_conn *conn = connector->conn;
	bool first = bnet_connector_is_first(connector);
	struct bnet_stream_start start = {
		.serial = connector->serial,
		.dialed = connector->index,
		.away = connector->attempts != 1 || connector->unbound,
		.replaces = connector->replaces,
		.position = welcome->position,
	};
	const uint64_t broken_us = connector->replaces ? connector->replaces->broken_us : 0;
	int fd, rc;

	if (connector->replaces && !welcome->repaired) {
		bnet_connector_give_up(connector, -EPROTO, "its answer is damaged");
		return false;
	}
	if (first)
		conn->repairs = conn->config->repair && welcome->features & BNET_WIRE_FEATURE_REPAIR;
	rc = bnet_sealing_start(&(struct bnet_sealing){.conn = conn,
						       .serial = connector->serial,
						       .peer_features = welcome->features,
						       .hello = connector->hello,
						       .challenge = connector->challenge},
				&start.seal);
	fd = bnet_watch_remove(&connector->watch);
	/* The owner, which passes from the moment that the stream is in place, may free the one before it. */
	if (connector->replaces)
		bnet_list_remove(&connector->replaces->node);
	if (rc == 0)
		rc = bnet_conn_add_stream(conn, fd, &start);
	if (rc < 0) {
		if (connector->replaces)
			bnet_list_add(&conn->broken, &connector->replaces->node);
		bnet_seal_free(start.seal);
		bnet_socket_close(fd);
		bnet_connector_give_up(connector, rc, rc == -ENOPKG ? BNET_SEALING_NO_CIPHER : strerror(-rc));
		return false;
	}
	atomic_store_explicit(&conn->alone_us, 0, memory_order_relaxed);
	if (connector->replaces)
		bnet_replacement_done(conn, broken_us, connector->home ? connector->pair.nic : NULL);
	bnet_connector_end(connector);
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

#define OTHER_SECRET \
	"its BAGUA_NET_SECRET_FILE has another secret than this process's: give every process of the job the same one"

/* Why the two do not belong together, as far as the peer says so. */
static const char *unproven_text(const struct bnet_wire_welcome *welcome)
{
	const bool there = welcome->features & BNET_WIRE_FEATURE_SECRET;

	if (!bnet_proof_size())
		return "BAGUA_NET_SECRET_FILE is set there, and not for this process: give every process of the job the same "
		       "secret";
	if (there)
		return OTHER_SECRET;
	return "BAGUA_NET_SECRET_FILE is set for this process, and not there (or an older bagua_net is): give every process of "
	       "the job the same secret";
}

/* The answer is not from the peer, or does not prove that it is. If another stream of the connection is up, the peer is
 * known to have the secret and to speak the protocol, so a stranger has answered: that counts as a refusal. */
static void not_the_peer(struct bnet_connector *connector, int error, const char *why)
{
	if (bnet_connector_is_elsewhere(connector) || (bnet_proof_size() && !bnet_connector_is_first(connector))) {
		bnet_connector_try_failed(connector, -ECONNREFUSED, bnet_now_ms());
		return;
	}
	bnet_socket_reset(connector->watch.fd); /* an older listener would take its end in order for a connection */
	bnet_connector_give_up(connector, error, why);
}

static bool judged(struct bnet_connector *connector, const struct bnet_wire_welcome *welcome,
		   struct bnet_joined *joined)
{
	char why[160];

	if (welcome->verdict != BNET_WIRE_VERDICT_OK && welcome->verdict != BNET_WIRE_VERDICT_LIMIT &&
	    bnet_connector_is_elsewhere(connector)) {
		bnet_connector_try_failed(connector, -ECONNREFUSED, bnet_now_ms());
		return false;
	}
	switch ((enum bnet_wire_verdict)welcome->verdict) {
	case BNET_WIRE_VERDICT_OK:
		if (bnet_sealing_agrees(welcome->features))
			return welcomed(connector, welcome, joined);
		__attribute__((fallthrough));
	case BNET_WIRE_VERDICT_SEAL:
		bnet_connector_give_up(connector, -EACCES, bnet_sealing_mismatch(welcome->features));
		return false;
	case BNET_WIRE_VERDICT_VERSION:
		snprintf(why, sizeof(why),
			 "it speaks wire version %u, this process version %u: install the same bagua_net on every host",
			 welcome->version, BNET_WIRE_VERSION);
		bnet_connector_give_up(connector, -EPROTO, why);
		return false;
	case BNET_WIRE_VERDICT_TOKEN:
	case BNET_WIRE_VERDICT_GONE:
		bnet_connector_give_up(connector, -ECONNRESET,
				       welcome->verdict == BNET_WIRE_VERDICT_TOKEN && connector->conn->setup.local
					       ? "the remote communicator is gone, or it is on another host that has this "
						 "host's address as well, as of a bridge of containers (NCCL_SOCKET_IFNAME)"
					       : "the remote communicator is gone");
		return false;
	case BNET_WIRE_VERDICT_SECRET:
		bnet_connector_give_up(connector, -EACCES, unproven_text(welcome));
		return false;
	case BNET_WIRE_VERDICT_LIMIT:
		if (connector->replaces) {
			bnet_connector_try_failed(connector, -EUSERS, bnet_now_ms());
			return false;
		}
		bnet_connector_give_up(connector, -EUSERS, "it has no room for another stream");
		return false;
	}
	snprintf(why, sizeof(why), "it refused for reason %u, which this version does not know", welcome->verdict);
	bnet_connector_give_up(connector, -EPROTO, why);
	return false;
}

/* ---- the answers ---- */

#define DAMAGED "its answer is damaged"

/* Reads a frame, no further. 1: it is there; 0: not yet, or the connector has gone on otherwise. */
static int read_answer(struct bnet_connector *connector, uint64_t now, struct bnet_wire_frame *frame)
{
	uint32_t want = bnet_wire_frame_wants(connector->bytes, connector->got);

	while (connector->got < want) {
		ssize_t n = recv(connector->watch.fd, connector->bytes + connector->got, want - connector->got,
				 MSG_DONTWAIT);

		if (n < 0 && (errno == EAGAIN || errno == EINTR))
			return 0;
		if (n <= 0) {
			bnet_connector_try_failed(connector, n == 0 ? -ECONNRESET : -errno, now);
			return 0;
		}
		connector->got += (uint32_t)n;
		if (connector->got < BNET_WIRE_FRAME_HEADER)
			continue;
		bnet_wire_frame_decode(connector->bytes, frame);
		if (!bnet_wire_frame_is_welcome(frame) && !(bnet_proof_size() && bnet_wire_frame_is_challenge(frame))) {
			not_the_peer(connector, -EPROTO, "what listens there does not speak BaguaNet's protocol");
			return 0;
		}
		want = bnet_wire_frame_wants(connector->bytes, connector->got);
	}
	return 1;
}

/* With a secret: the listener has shown that it knows it, and this end does now. False: the connector has gone on
 * otherwise. */
static bool confirm(struct bnet_connector *connector)
{
	uint8_t bytes[BNET_WIRE_PROOF_SIZE];
	size_t size;
	int rc = bnet_proof_check(BNET_PROOF_CHALLENGE, connector->bytes, connector->got, connector->hello);

	if (rc == -EACCES) {
		not_the_peer(connector, rc, OTHER_SECRET);
		return false;
	}
	memcpy(connector->challenge, connector->bytes + BNET_WIRE_PROOF_PROOF, BNET_PROOF_SIZE);
	if (rc == 0)
		rc = bnet_proof_draw(connector->confirm);
	size = bnet_wire_proof_encode(bytes, BNET_WIRE_FRAME_CONFIRM, connector->confirm);
	if (rc == 0)
		rc = bnet_proof_write(BNET_PROOF_CONFIRM, bytes, size, connector->challenge);
	memcpy(connector->confirm, bytes + BNET_WIRE_PROOF_PROOF, BNET_PROOF_SIZE);
	/* A socket that has carried only a HELLO takes this in one piece. */
	if (rc == 0 && send(connector->watch.fd, bytes, size, MSG_DONTWAIT | MSG_NOSIGNAL) != (ssize_t)size)
		rc = -ECONNRESET;
	connector->confirmed = rc == 0;
	if (rc == 0)
		return true;
	bnet_connector_try_failed(connector, rc, bnet_now_ms());
	return false;
}

static bool hear_welcome(struct bnet_connector *connector, struct bnet_joined *joined)
{
	struct bnet_wire_welcome welcome;
	int rc = 0;

	if (bnet_wire_welcome_decode(connector->bytes + BNET_WIRE_FRAME_HEADER, connector->got - BNET_WIRE_FRAME_HEADER,
				     &welcome) < 0 ||
	    welcome.connection != connector->conn->id) {
		not_the_peer(connector, -EPROTO, DAMAGED);
		return false;
	}
	if (bnet_proof_size())
		rc = connector->confirmed && welcome.proof_size == BNET_PROOF_SIZE
			     ? bnet_proof_check(BNET_PROOF_WELCOME, connector->bytes, connector->got,
						connector->confirm)
			     : -EACCES;
	if (rc == 0)
		return judged(connector, &welcome, joined);
	if (rc != -EACCES) { /* it could not be found out */
		bnet_connector_try_failed(connector, rc, bnet_now_ms());
		return false;
	}
	not_the_peer(connector, -EACCES,
		     welcome.verdict == BNET_WIRE_VERDICT_VERSION
			     ? "it speaks another wire version: install the same bagua_net "
			       "on every host"
			     : unproven_text(&welcome));
	return false;
}

bool bnet_hello_answer(struct bnet_connector *connector, uint64_t now, struct bnet_joined *joined)
{
	struct bnet_wire_frame frame;

	while (read_answer(connector, now, &frame) > 0) {
		bnet_wire_frame_decode(connector->bytes, &frame);
		if (frame.type != BNET_WIRE_FRAME_CHALLENGE)
			return hear_welcome(connector, joined);
		if (connector->confirmed) {
			not_the_peer(connector, -EPROTO, "it challenges twice");
			return false;
		}
		if (!confirm(connector))
			return false;
		connector->got = 0;
	}
	return false;
}
