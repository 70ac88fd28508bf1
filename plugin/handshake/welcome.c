/* SPDX-License-Identifier: MIT
 *
 * See welcome.h.
 */
#include "handshake/welcome.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#include "base/counters.h"
#include "base/log.h"
#include "base/secret.h"
#include "base/socket.h"
#include "common/clock.h"
#include "handshake/candidate.h"
#include "handshake/listen.h"
#include "handshake/meter.h"
#include "handshake/listener.h"
#include "handshake/proof.h"
#include "handshake/sealing.h"
#include "transport/conn.h"
#include "transport/rx.h"
#include "transport/source.h"
#include "transport/tx.h"
#include "transport/worker.h"
#include "wire/wire.h"

#define REFUSED_WARN_MS 60000

static struct bnet_conn *find(struct bnet_table *table, uint64_t id, const uint8_t token[BNET_TOKEN_SIZE])
{
	struct bnet_table_entry *entry = NULL;

	while ((entry = bnet_table_find(table, id, entry))) {
		struct bnet_conn *conn = bnet_entry(entry, struct bnet_conn, by_id);

		if (memcmp(conn->token, token, BNET_TOKEN_SIZE) == 0)
			return conn;
	}
	return NULL;
}

static struct bnet_conn *find_receiver(uint64_t id, const uint8_t token[BNET_TOKEN_SIZE])
{
	return find(&bnet_engine.receivers_by_id, id, token);
}

/* NULL also for one that has failed: it sends nothing more. */
static struct bnet_conn *find_sender(uint64_t id, const uint8_t token[BNET_TOKEN_SIZE])
{
	struct bnet_conn *conn = find(&bnet_engine.senders_by_id, id, token);

	if (!conn)
		conn = find(&bnet_engine.attempts_by_id, id, token);
	return conn && !atomic_load(&conn->error) ? conn : NULL;
}

static struct bnet_conn *new_receiver(const struct bnet_caller *caller, struct bnet_listen *listen,
				      const struct bnet_wire_hello *hello)
{
	struct bnet_conn *conn = bnet_conn_new(false, listen->dev, &bnet_engine.config, bnet_workers_wanted() > 0);

	if (!conn)
		return NULL;
	conn->id = hello->connection;
	conn->repairs = bnet_engine.config.repair && hello->features & BNET_WIRE_FEATURE_REPAIR && hello->serial;
	memcpy(conn->token, hello->token, BNET_TOKEN_SIZE);
	snprintf(conn->peer, sizeof(conn->peer), "%s", caller->peer);
	conn->setup.context = listen->context;
	conn->setup.traffic_class = listen->traffic_class;
	if (hello->listener.ss_family != AF_UNSPEC)
		bnet_peer_addresses_start(conn, &hello->listener, false);
	conn->setup.ready = true;
	return conn;
}

static int most_streams(void)
{
	return bnet_engine.config.nstreams ? (int)bnet_engine.config.nstreams : BNET_MAX_STREAMS;
}

/* For one that takes another one's place. The first ones may use any descriptor. */
static bool has_place(const struct bnet_conn *conn)
{
	return conn->nstreams < 2 * BNET_MAX_STREAMS || (conn->nstreams < BNET_MOST_PLACES && bnet_descriptors_left());
}

static int living(const struct bnet_conn *conn)
{
	int count = 0;

	for (int i = 0; i < conn->nstreams; i++)
		count += !conn->streams[i]->broken;
	return count;
}

/* A further stream of a connection, or one that takes another one's place. */
static enum bnet_wire_verdict judge_further(struct bnet_conn *conn, const struct bnet_wire_hello *hello)
{
	if (!conn || atomic_load(&conn->error))
		return BNET_WIRE_VERDICT_GONE;
	if (hello->repairs)
		return has_place(conn) ? BNET_WIRE_VERDICT_OK : BNET_WIRE_VERDICT_LIMIT;
	/* Those that are broken have their places until others take them. */
	return living(conn) < most_streams() && conn->nstreams < BNET_MAX_STREAMS && bnet_descriptors_left()
		       ? BNET_WIRE_VERDICT_OK
		       : BNET_WIRE_VERDICT_LIMIT;
}

/* Finds or makes the connection that a HELLO is for. *listen: of a new one. *conn NULL: there is no memory for it. */
static enum bnet_wire_verdict judge(const struct bnet_caller *caller, const struct bnet_wire_hello *hello,
				    struct bnet_conn **conn, struct bnet_listen **listen)
{
	*conn = NULL;
	*listen = NULL;
	if (hello->version != BNET_WIRE_VERSION)
		return BNET_WIRE_VERDICT_VERSION;
	if (!caller->confirm && hello->features & BNET_WIRE_FEATURE_SECRET)
		return BNET_WIRE_VERDICT_SECRET; /* with a secret both have proven by now that they know it */
	if (!bnet_sealing_agrees(hello->features))
		return BNET_WIRE_VERDICT_SEAL;
	*conn = find_receiver(hello->connection, hello->token);
	/* With a HELLO of stream 0, whose WELCOME has not arrived, the sender begins again. */
	if (hello->stream > 0 || (*conn && (*conn)->repairs && hello->repairs))
		return judge_further(*conn, hello);
	/* A first stream for a connection that exists is a replay. */
	*listen = *conn ? NULL : bnet_listen_find(hello->token);
	if (!*listen)
		return BNET_WIRE_VERDICT_TOKEN;
	*conn = new_receiver(caller, *listen, hello);
	return BNET_WIRE_VERDICT_OK;
}

/* ---- what a person is told ---- */

/* Most likely of a rank of this job: a person must know. Who sees the network can be the cause as well: no more than a
 * line a minute. */
static void say_refused(const struct bnet_caller *caller, uint64_t *warned_ms, const char *why)
{
	const uint64_t now = bnet_now_ms();

	if (*warned_ms && now - *warned_ms < REFUSED_WARN_MS)
		return;
	*warned_ms = now;
	bnet_warn_of_cause("NET/BaguaNet: refused a connection from %s: %s", caller->peer, why);
}

/* This process lacks something; the other one tries again. Returns why. */
static const char *say_short(const struct bnet_caller *caller, const char *why)
{
	static uint64_t warned_ms;

	say_refused(caller, &warned_ms, why);
	return why;
}

/* ---- what it is told ---- */

static_assert(BNET_MAX_NICS <= BNET_ADDRESSES, "all members' addresses fit into a WELCOME");

/* The handle has room for one of them only. */
static void list_addresses(const struct bnet_device *dev, struct bnet_wire_welcome *welcome)
{
	for (int i = 0; i < dev->nmembers && dev->nmembers > 1; i++) {
		const struct bnet_listener *listener = &bnet_engine.listeners[bnet_listener_number(dev->members[i])];

		if (listener->fd >= 0)
			welcome->addresses[welcome->naddresses++] = listener->addr;
	}
}

/* dev: of a connection's first stream, else NULL. position: of the stream that this one repairs. */
static bool reply(const struct bnet_caller *caller, const struct bnet_wire_hello *hello, enum bnet_wire_verdict verdict,
		  const struct bnet_device *dev, uint64_t position)
{
	struct bnet_wire_welcome welcome = {
		.version = BNET_WIRE_VERSION,
		.verdict = (uint16_t)verdict,
		.max_streams = (uint16_t)most_streams(),
		.keepalive = (uint8_t)bnet_engine.config.keepalive,
		.connection = hello->connection,
		.features = (bnet_engine.config.repair ? BNET_WIRE_FEATURE_REPAIR : 0) | bnet_sealing_features(),
		.proof_size = caller->confirm ? BNET_PROOF_SIZE : 0,
		.repaired = hello->repairs && verdict == BNET_WIRE_VERDICT_OK,
		.position = position,
	};
	uint8_t bytes[BNET_WIRE_WELCOME_MAX];
	size_t size;

	if (welcome.proof_size && bnet_proof_draw(welcome.proof) < 0)
		return !say_short(caller, BNET_NO_PROOF);
	if (dev)
		list_addresses(dev, &welcome);
	size = bnet_wire_welcome_encode(bytes, &welcome);
	if (welcome.proof_size && bnet_proof_write(BNET_PROOF_WELCOME, bytes, size, caller->confirm) < 0)
		return !say_short(caller, BNET_NO_PROOF);
	/* A socket that has carried nothing takes this in one piece. */
	return send(caller->fd, bytes, size, MSG_DONTWAIT | MSG_NOSIGNAL) == (ssize_t)size;
}

static const char *verdict_text(enum bnet_wire_verdict verdict)
{
	switch (verdict) {
	case BNET_WIRE_VERDICT_OK:
		return "welcome";
	case BNET_WIRE_VERDICT_VERSION:
		return "it speaks another wire version: install the same bagua_net on every host";
	case BNET_WIRE_VERDICT_TOKEN:
		return "it asks for a listener that does not exist (any more)";
	case BNET_WIRE_VERDICT_GONE:
		return "it adds a stream to a connection that does not exist (any more)";
	case BNET_WIRE_VERDICT_LIMIT:
		return "there is no room for another stream";
	case BNET_WIRE_VERDICT_SECRET:
		return "it does not prove that it knows the job's secret (BAGUA_NET_SECRET_FILE)";
	case BNET_WIRE_VERDICT_SEAL:
		return "one end encrypts, or wants checksums, and the other does not";
	}
	return "it asks for something unknown";
}

/* A stream takes the place of a broken one: the owner sees both or neither. -EBUSY: the owner is at work, and the peer
 * tries again; -ESTALE: this is not the peer's last try. */
static int replace(struct bnet_conn *conn, int fd, struct bnet_stream_start *start)
{
	int rc = -EBUSY;

	if (bnet_conn_try_own_for(conn, BNET_OWN_TRIES)) {
		rc = bnet_socket_is_closed(fd) ? -ESTALE : bnet_source_replace(conn, start);
		if (rc == 0)
			rc = bnet_conn_add_stream(conn, fd, start);
		bnet_conn_disown(conn);
	}
	if (conn->setup.handed_out)
		bnet_engine_posted(&conn->work); /* an idle one frees the old stream */
	return rc;
}

static const char *reason_of(int error)
{
	switch (error) {
	case -EBUSY:
		return "its connection is busy";
	case -ESTALE:
		return "its sender has tried again since";
	case -EMFILE:
	case -ENFILE:
		return "this process is out of descriptors (ulimit -n)";
	case -ENOSPC:
		return "this user watches as many descriptors as sysctl fs.epoll.max_user_watches allows";
	case -ENOMEM:
		return "this process is out of memory";
	case -ENOPKG:
		return BNET_SEALING_NO_CIPHER;
	}
	return strerror(-error);
}

/* It has the token, and is set up otherwise. */
static void say_differs(const struct bnet_caller *caller, const struct bnet_wire_hello *hello, const char *how)
{
	struct bnet_listen *listen = bnet_listen_find(hello->token);

	if (!listen)
		return;
	listen->refused = true;
	say_refused(caller, &listen->warned_ms, how);
}

static const char *secrets_differ(const struct bnet_wire_hello *hello)
{
	if (!bnet_secret_is_set())
		return "BAGUA_NET_SECRET_FILE is set there, and not for this process: give every process of the job the "
		       "same secret";
	return hello->features & BNET_WIRE_FEATURE_SECRET
		       ? "its BAGUA_NET_SECRET_FILE has another secret than this process's: give every process of the job "
			 "the same one"
		       : "BAGUA_NET_SECRET_FILE is set for this process, and not there: give every process of the job the "
			 "same secret";
}

static const char *refuse(const struct bnet_caller *caller, const struct bnet_wire_hello *hello,
			  enum bnet_wire_verdict verdict)
{
	if (verdict == BNET_WIRE_VERDICT_SECRET)
		say_differs(caller, hello, secrets_differ(hello));
	if (verdict == BNET_WIRE_VERDICT_SEAL)
		say_differs(caller, hello, bnet_sealing_mismatch(hello->features));
	reply(caller, hello, verdict, NULL, 0);
	shutdown(caller->fd, SHUT_WR);
	return verdict_text(verdict);
}

/* The stream is in place before the peer hears that it may use it. Its seal is the stream's, or was freed. */
static int join(const struct bnet_caller *caller, struct bnet_conn *conn, bool first,
		const struct bnet_wire_hello *hello, struct bnet_stream_start *start)
{
	int rc = bnet_sealing_start(&(struct bnet_sealing){.conn = conn,
							   .serial = hello->serial,
							   .peer_features = hello->features,
							   .hello = hello->proof,
							   .challenge = caller->challenge},
				    &start->seal);

	if (rc < 0)
		return rc;
	bnet_socket_tune(caller->fd, &bnet_engine.config, conn->setup.traffic_class);
	bnet_socket_choose_congestion(caller->fd, &bnet_engine.config, false);
	rc = !first && start->repairs ? replace(conn, caller->fd, start)
				      : bnet_conn_add_stream(conn, caller->fd, start);
	if (rc < 0)
		bnet_seal_free(start->seal);
	return rc;
}

static const char *welcome(const struct bnet_caller *caller, const struct bnet_wire_hello *hello)
{
	struct bnet_listen *listen;
	struct bnet_conn *conn;
	enum bnet_wire_verdict verdict = judge(caller, hello, &conn, &listen);
	struct bnet_stream_start start = {.serial = hello->serial, .repairs = hello->repairs};
	int rc;

	if (verdict != BNET_WIRE_VERDICT_OK)
		return refuse(caller, hello, verdict);
	if (!conn)
		return say_short(caller, reason_of(-ENOMEM));
	rc = join(caller, conn, listen, hello, &start);
	if (rc < 0) {
		if (listen)
			bnet_conn_free(conn);
		else if (rc == -EBUSY)
			reply(caller, hello, BNET_WIRE_VERDICT_LIMIT, NULL, 0); /* it comes again */
		return rc == -EBUSY || rc == -ESTALE ? reason_of(rc) : say_short(caller, reason_of(rc));
	}
	if (!reply(caller, hello, verdict, hello->stream ? NULL : conn->dev, start.position) && listen) {
		bnet_conn_free(conn);
		return NULL;
	}
	if (!listen) {
		bnet_socket_acknowledge_at_once(caller->fd);
		return NULL;
	}
	bnet_list_add(&bnet_engine.conns, &conn->node);
	bnet_table_add(&bnet_engine.receivers_by_id, &conn->by_id, conn->id);
	bnet_list_add(&listen->queue, &conn->setup.pending);
	bnet_worker_adopt(conn);
	pthread_cond_broadcast(&bnet_engine.changed);
	return NULL;
}

static const uint8_t *body_of(const struct bnet_caller *caller)
{
	return caller->frame + BNET_WIRE_FRAME_HEADER;
}

static size_t body_size(const struct bnet_caller *caller)
{
	return caller->size - BNET_WIRE_FRAME_HEADER;
}

#define DAMAGED "its first message is damaged"

const char *bnet_challenge(const struct bnet_caller *caller, uint8_t challenge[BNET_PROOF_SIZE])
{
	struct bnet_wire_hello hello;
	uint8_t bytes[BNET_WIRE_PROOF_SIZE];
	size_t size;
	int rc;

	if (bnet_wire_hello_decode(body_of(caller), body_size(caller), &hello) < 0)
		return DAMAGED;
	if (hello.version != BNET_WIRE_VERSION)
		return refuse(caller, &hello, BNET_WIRE_VERDICT_VERSION);
	rc = hello.proof_size == BNET_PROOF_SIZE ? bnet_proof_check(BNET_PROOF_HELLO, caller->frame, caller->size, NULL)
						 : -EACCES;
	if (rc == -EACCES)
		return refuse(caller, &hello, BNET_WIRE_VERDICT_SECRET);
	if (rc == 0)
		rc = bnet_proof_draw(challenge);
	size = bnet_wire_proof_encode(bytes, BNET_WIRE_FRAME_CHALLENGE, challenge);
	if (rc == 0)
		rc = bnet_proof_write(BNET_PROOF_CHALLENGE, bytes, size, hello.proof);
	memcpy(challenge, bytes + BNET_WIRE_PROOF_PROOF, BNET_PROOF_SIZE);
	if (rc < 0)
		return say_short(caller, BNET_NO_PROOF);
	/* A socket that has carried nothing takes this in one piece. */
	return send(caller->fd, bytes, size, MSG_DONTWAIT | MSG_NOSIGNAL) == (ssize_t)size ? NULL : "it is gone";
}

const char *bnet_welcome(const struct bnet_caller *caller)
{
	struct bnet_wire_hello hello;

	return bnet_wire_hello_decode(body_of(caller), body_size(caller), &hello) == 0 ? welcome(caller, &hello)
										       : DAMAGED;
}

/* ---- questions ---- */

/* A receiver asks, all of whose streams have broken: its sender may have nothing to send, and have seen no end yet. The
 * control thread repairs it, or finds out what is lost. */
static void look_for_ends(struct bnet_conn *conn)
{
	if (!conn->repairs || !conn->setup.handed_out || !bnet_conn_try_own(conn))
		return; /* a busy owner: it is asked again */
	bnet_tx_break_closed(conn);
	bnet_conn_disown(conn);
	if (atomic_load(&conn->reap))
		bnet_engine_posted(&conn->work);
}

/* 0; -EACCES; -errno: it could not be found out. */
static int may_ask(const struct bnet_caller *caller, const struct bnet_wire_question *question)
{
	if (!bnet_secret_is_set())
		return 0;
	return question->proof_size ? bnet_proof_check(BNET_PROOF_QUESTION, caller->frame, caller->size, NULL)
				    : -EACCES;
}

/* Asker and answerer know the same token, so a stranger learns nothing. A question that was recorded is answered again,
 * with no more than who sees the network can count himself, and has this host's counters read for some seconds. */
static const char *answer(const struct bnet_caller *caller, const struct bnet_wire_question *question)
{
	struct bnet_wire_answer wire = {
		.version = BNET_WIRE_VERSION,
		.verdict = BNET_WIRE_VERDICT_GONE,
		.connection = question->connection,
		.proof_size = bnet_proof_size(),
	};
	struct bnet_conn *conn = NULL;
	uint8_t bytes[BNET_WIRE_ANSWER_MAX];
	size_t size;

	if (question->version == BNET_WIRE_VERSION)
		conn = question->by_receiver ? find_sender(question->connection, question->token)
					     : find_receiver(question->connection, question->token);
	if (conn) {
		wire.verdict = BNET_WIRE_VERDICT_OK;
		if (question->by_receiver) {
			look_for_ends(conn);
		} else {
			const struct bnet_metered reading = bnet_meter_read(conn, question->rtt_us);

			wire.moved_us = reading.moved_us;
			wire.received = reading.received;
		}
	}
	size = bnet_wire_answer_encode(bytes, &wire);
	/* A socket that has carried nothing takes this in one piece. Where it has broken, the asker gives up by
	 * itself. */
	if (bnet_proof_write(BNET_PROOF_ANSWER, bytes, size, question->proof) == 0)
		(void)!send(caller->fd, bytes, size, MSG_DONTWAIT | MSG_NOSIGNAL);
	return conn ? NULL : "it asks about a connection that does not exist (any more)";
}

const char *bnet_answer_question(const struct bnet_caller *caller)
{
	struct bnet_wire_question question;
	int rc;

	if (bnet_wire_question_decode(body_of(caller), body_size(caller), &question) < 0)
		return DAMAGED;
	rc = may_ask(caller, &question);
	if (rc == -EACCES)
		return "it asks, and does not prove that it knows the job's secret (BAGUA_NET_SECRET_FILE)";
	return rc < 0 ? say_short(caller, BNET_NO_PROOF) : answer(caller, &question);
}
