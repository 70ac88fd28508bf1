/* SPDX-License-Identifier: MIT
 *
 * See connector.h.
 */
#include "handshake/connector.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "base/log.h"
#include "common/clock.h"
#include "engine/engine.h"
#include "handshake/connector_state.h"
#include "handshake/dial.h"
#include "handshake/hello.h"
#include "handshake/replacement.h"

/* The time limit for a stream other than the first. */
#define EXTRA_MS 30000
/* The limits for a stream on trial, whose siblings were answered: for an answer to its SYN, which is sent again after
 * 1 s, and in all, since the peer's control thread may be late; round trips come on top. */
#define TRIAL_SYN_MS 1500
#define TRIAL_MS 5000
#define TRIAL_RTTS 20
/* A further stream that was tried in vain for so long, at once or again and again, is told in a warning; the next one
 * comes so much later. */
#define LONG_MS 8000
#define WARN_MS 60000
/* Made or given up at a time, each in some 40 µs: those who need the engine's lock wait meanwhile. */
#define TRIES 32
/* Reads of what has come: an answer, and not what a stranger may go on sending. */
#define ANSWERS 16

/* By an end in order, after which the receiver, where the stream may be in place, expects no other one in that place.
 * The close would reset a socket whose answer has come and was not read. */
void bnet_connector_hang_up(struct bnet_connector *connector)
{
	char answer[512];

	if (connector->watch.fd >= 0) {
		shutdown(connector->watch.fd, SHUT_WR);
		for (int i = 0; i < ANSWERS && recv(connector->watch.fd, answer, sizeof(answer), MSG_DONTWAIT) > 0; i++)
			continue;
	}
	bnet_watch_close(&connector->watch);
}

void bnet_connector_end(struct bnet_connector *connector)
{
	connector->conn->setup.connecting -= connector->counted;
	bnet_list_remove(&connector->watch.node);
	bnet_list_remove(&connector->siblings);
	bnet_connector_hang_up(connector);
	free(connector);
}

/* The path tries again and again (catch_up in scaling/path.c). */
static bool is_warning_due(const struct bnet_connector *connector)
{
	const struct bnet_conn *conn = connector->conn;
	const uint64_t now = bnet_now_ms(), again_ms = conn->setup.catch_up_after_us / 1000;

	if (atomic_load(&conn->error) || conn->nstreams == 0 || conn->nstreams >= conn->level)
		return false;
	if ((again_ms < LONG_MS && now - connector->started_ms < LONG_MS) || now < bnet_engine.streams_warn_at_ms)
		return false;
	bnet_engine.streams_warn_at_ms = now + WARN_MS;
	return true;
}

void bnet_connector_give_up(struct bnet_connector *connector, int error, const char *why)
{
	struct bnet_conn *conn = connector->conn;

	if (bnet_connector_is_first(connector)) {
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
	} else if (is_warning_due(connector)) {
		bnet_warn_visibly(
			"NET/BaguaNet: %d instead of %d streams to %s, and no more can be opened: %s. If what limits them "
			"(a firewall, a proxy, that host's limit of open files) must stay, BAGUA_NET_NSTREAMS=%d saves the "
			"tries",
			conn->nstreams, atomic_load_explicit(&conn->level, memory_order_relaxed), conn->peer, why,
			conn->nstreams);
	} else {
		bnet_info(NCCL_NET, "NET/BaguaNet: no stream %d to %s, going on with %d: %s", connector->index,
			  conn->peer, conn->nstreams, why);
	}
	bnet_connector_end(connector);
}

static int start(const struct bnet_connector *wanted)
{
	struct bnet_conn *conn = wanted->conn;
	struct bnet_connector *connector = malloc(sizeof(*connector));

	if (!connector)
		return -ENOMEM;
	*connector = *wanted;
	connector->started_ms = bnet_now_ms();
	bnet_watch_init(&connector->watch, -1);
	bnet_list_add(&bnet_engine.connectors, &connector->watch.node);
	bnet_list_add(&conn->setup.connectors, &connector->siblings);
	connector->counted = !connector->beside;
	conn->setup.connecting += connector->counted;
	bnet_dial_choose(connector, connector->started_ms);
	bnet_dial_try(connector, connector->started_ms);
	return 0;
}

int bnet_connector_start(struct bnet_conn *conn, int index, bool trial)
{
	return start(&(struct bnet_connector){.conn = conn, .index = index, .trial = trial});
}

int bnet_connector_replace(struct bnet_conn *conn, struct bnet_stream *broken)
{
	return start(&(struct bnet_connector){.conn = conn, .index = broken->dialed, .replaces = broken});
}

int bnet_connector_beside(struct bnet_conn *conn, const struct bnet_stream *silent)
{
	bnet_list_each(node, &conn->setup.connectors)
		if (bnet_entry(node, struct bnet_connector, siblings)->beside == silent->serial)
			return 0;
	return start(&(struct bnet_connector){.conn = conn,
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
		const struct bnet_connector *other = bnet_entry(node, struct bnet_connector, siblings);

		if (other->beside || other->replaces)
			return 0;
	}
	return start(
		&(struct bnet_connector){.conn = conn, .index = away->dialed, .beside = away->serial, .home = true});
}

bool bnet_connector_ready(struct bnet_watch *watch, struct bnet_joined *joined)
{
	struct bnet_connector *connector = (struct bnet_connector *)watch;
	uint64_t now = bnet_now_ms();

	if (connector->state == BNET_CONNECTOR_HELLO_SENT)
		return bnet_hello_answer(connector, now, joined);
	bnet_dial_connected(connector, now);
	return false;
}

bool bnet_connector_look(struct bnet_conn *conn, struct bnet_joined *joined)
{
	struct bnet_connector *connector;

	if (bnet_list_empty(&conn->setup.connectors))
		return false;
	connector = bnet_entry(conn->setup.connectors.next, struct bnet_connector, siblings);
	return connector->state != BNET_CONNECTOR_WAITING && bnet_connector_ready(&connector->watch, joined);
}

static void warn_if_slow(struct bnet_connector *connector, uint64_t now)
{
	struct bnet_setup *setup = &connector->conn->setup;

	if (!bnet_connector_is_first(connector) || now < setup->warn_at_ms)
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
static uint64_t timeout_ms(const struct bnet_connector *connector)
{
	uint64_t limit = (uint64_t)bnet_engine.config.connect_timeout * 1000, extra = EXTRA_MS;

	if (connector->beside)
		return UINT64_MAX; /* it tries each pair once */
	if (connector->replaces)
		return bnet_replacement_has_waited(connector->conn) ? 0 : UINT64_MAX;
	if (connector->trial)
		extra = (connector->state == BNET_CONNECTOR_HELLO_SENT ? TRIAL_MS : TRIAL_SYN_MS) +
			TRIAL_RTTS * rtt_ms(connector->conn);
	return connector->index && limit > extra ? extra : limit;
}

/* The time limit of the connector or of its present try is over. */
static bool is_due(const struct bnet_connector *connector, uint64_t now)
{
	return now - connector->started_ms >= timeout_ms(connector) || now >= connector->watch.deadline_ms;
}

/* Its time is over: the last try has failed for the true reason, unless it goes on. */
static void time_out(struct bnet_connector *connector)
{
	const bool is_further = connector->index || connector->replaces;
	int error = connector->state == BNET_CONNECTOR_WAITING ? connector->conn->setup.last_error : -ETIMEDOUT;
	char text[BNET_EXPLANATION];

	if (is_further)
		error = connector->last_error;
	if (is_further && (error == -ETIMEDOUT || error == 0))
		bnet_connector_give_up(connector, -ETIMEDOUT, "no answer");
	else if (!is_further && connector->state == BNET_CONNECTOR_HELLO_SENT)
		bnet_connector_give_up(
			connector, -ETIMEDOUT,
			"that port was reached, but no answer came within BAGUA_NET_CONNECT_TIMEOUT: the process there is "
			"stopped or out of descriptors, or what listens is not BaguaNet");
	else
		bnet_connector_give_up(connector, -ETIMEDOUT,
				       bnet_failure_explain(error, connector->conn->setup.local, text));
}

static void go_on(struct bnet_connector *connector, uint64_t now)
{
	if (now - connector->started_ms >= timeout_ms(connector))
		time_out(connector);
	else if (connector->state == BNET_CONNECTOR_WAITING)
		bnet_dial_try(connector, now);
	else if (connector->state == BNET_CONNECTOR_ANSWERED)
		bnet_connector_end(connector); /* of a pair that works, for a stream whose owner is at work */
	else
		bnet_connector_try_failed(connector, -ETIMEDOUT, now);
}

void bnet_connectors_tick(uint64_t now)
{
	int tries = 0;

	bnet_list_each(node, &bnet_engine.connectors) {
		struct bnet_connector *connector = bnet_entry(node, struct bnet_connector, watch.node);

		warn_if_slow(connector, now);
		if (connector->state == BNET_CONNECTOR_ANSWERED && !is_due(connector, now)) {
			bnet_dial_connected(connector, now);
			continue;
		}
		if (!is_due(connector, now) && bnet_dial_is_watched(connector))
			continue;
		bnet_list_remove(node); /* on the next tick the others come first */
		bnet_list_add(&bnet_engine.connectors, node);
		if (is_due(connector, now))
			go_on(connector, now);
		else
			bnet_dial_watch(connector, now); /* its caller has not come to the end of it */
		if (++tries == TRIES)
			break;
	}
}

void bnet_connectors_cancel(struct bnet_conn *conn)
{
	bnet_list_each(node, &conn->setup.connectors)
		bnet_connector_end(bnet_entry(node, struct bnet_connector, siblings));
}
