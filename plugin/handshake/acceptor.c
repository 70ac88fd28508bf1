/* SPDX-License-Identifier: MIT
 *
 * See acceptor.h.
 */
#include "handshake/acceptor.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "common/clock.h"
#include "base/counters.h"
#include "base/log.h"
#include "base/socket.h"
#include "device/traffic.h"
#include "handshake/candidate.h"
#include "handshake/listener.h"
#include "transport/conn.h"
#include "transport/rx.h"
#include "transport/source.h"
#include "transport/worker.h"
#include "transport/tx.h"
#include "wire/wire.h"

#define HELLO_MS 10000
#define MAX_INBOUND 1024
/* Accepted at a time: other events wait, and so do those who need the lock. */
#define ACCEPTS 16

struct inbound {
	struct bnet_watch watch;
	char peer[BNET_ADDRESS_TEXT];
	uint32_t got;
	uint8_t bytes[BNET_WIRE_HANDSHAKE_MAX];
};

/* ---- listen objects ---- */

/* On every member; *first: the first one's address. 0, or -errno if none of them can be listened on. */
static int open_listeners(const struct bnet_device *dev, struct sockaddr_storage *first)
{
	int error = 0;
	bool found = false;

	for (int i = 0; i < dev->nmembers; i++) {
		int nic = bnet_listener_number(dev->members[i]), rc = bnet_listener_open(nic);

		if (rc == 0 && !found)
			*first = bnet_engine.listeners[nic].addr;
		if (rc == 0)
			found = true;
		else
			error = rc;
	}
	return found ? 0 : error;
}

/* Tokens are random. */
static uint64_t token_key(const uint8_t token[BNET_TOKEN_SIZE])
{
	uint64_t key;

	memcpy(&key, token, sizeof(key));
	return key;
}

int bnet_acceptor_listen(struct bnet_listen *listen)
{
	int rc = open_listeners(listen->dev, &listen->addr);

	if (rc < 0)
		return rc;
	bnet_list_add(&bnet_engine.listens, &listen->node);
	bnet_table_add(&bnet_engine.listens_by_token, &listen->by_token, token_key(listen->token));
	return 0;
}

void bnet_acceptor_unlisten(struct bnet_listen *listen)
{
	bnet_list_remove(&listen->node);
	bnet_table_remove(&listen->by_token);
}

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

/* ---- inbound connections ---- */

static void free_inbound(struct inbound *inbound)
{
	bnet_list_remove(&inbound->watch.node);
	bnet_engine.ninbound--;
	free(inbound);
}

void bnet_acceptor_drop(struct bnet_watch *watch, const char *why)
{
	struct inbound *inbound = (struct inbound *)watch;

	if (why) {
		bnet_count(rejected, 1);
		bnet_info(NCCL_NET, "NET/BaguaNet: dropped a connection from %s: %s", inbound->peer, why);
	}
	bnet_watch_close(watch);
	free_inbound(inbound);
}

static bool watch_inbound(struct bnet_watch *watch)
{
	int rc = bnet_watch_add(watch, BNET_WATCH_INBOUND, EPOLLIN | EPOLLRDHUP);

	if (rc < 0)
		bnet_acceptor_drop(watch, strerror(-rc));
	return rc == 0;
}

void bnet_acceptor_tick(uint64_t now)
{
	bnet_list_each(node, &bnet_engine.inbound) {
		struct bnet_watch *watch = bnet_entry(node, struct bnet_watch, node);

		if (now >= watch->deadline_ms)
			bnet_acceptor_drop(watch, "it said nothing for 10 s");
		else if (!bnet_watch_is_on(watch))
			watch_inbound(watch);
	}
	bnet_listeners_tick(now);
}

static struct bnet_listen *find_listen(const uint8_t token[BNET_TOKEN_SIZE])
{
	struct bnet_table *table = &bnet_engine.listens_by_token;
	struct bnet_table_entry *entry = NULL;

	while ((entry = bnet_table_find(table, token_key(token), entry))) {
		struct bnet_listen *listen = bnet_entry(entry, struct bnet_listen, by_token);

		if (memcmp(listen->token, token, BNET_TOKEN_SIZE) == 0)
			return listen;
	}
	return NULL;
}

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

static struct bnet_conn *new_receiver(const struct inbound *inbound, struct bnet_listen *listen,
				      const struct bnet_wire_hello *hello)
{
	struct bnet_conn *conn = bnet_conn_new(false, listen->dev, &bnet_engine.config, bnet_workers_wanted() > 0);

	if (!conn)
		return NULL;
	conn->id = hello->connection;
	conn->repairs = bnet_engine.config.repair && hello->features & BNET_WIRE_FEATURE_REPAIR && hello->serial;
	memcpy(conn->token, hello->token, BNET_TOKEN_SIZE);
	memcpy(conn->peer, inbound->peer, sizeof(conn->peer));
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

/* Finds or makes the connection that a HELLO is for. */
static enum bnet_wire_verdict judge(struct inbound *inbound, const struct bnet_wire_hello *hello,
				    struct bnet_conn **conn, struct bnet_listen **listen)
{
	*conn = NULL;
	*listen = NULL;
	if (hello->version != BNET_WIRE_VERSION)
		return BNET_WIRE_VERDICT_VERSION;
	*conn = find_receiver(hello->connection, hello->token);
	/* With a HELLO of stream 0, whose WELCOME has not arrived, the sender begins again. */
	if (hello->stream > 0 || (*conn && (*conn)->repairs && hello->repairs)) {
		if (!*conn || atomic_load(&(*conn)->error))
			return BNET_WIRE_VERDICT_GONE;
		if (hello->repairs)
			return has_place(*conn) ? BNET_WIRE_VERDICT_OK : BNET_WIRE_VERDICT_LIMIT;
		return (*conn)->nstreams < most_streams() && bnet_descriptors_left() ? BNET_WIRE_VERDICT_OK
										     : BNET_WIRE_VERDICT_LIMIT;
	}
	/* A first stream for a connection that exists is a replay. */
	*listen = *conn ? NULL : find_listen(hello->token);
	if (!*listen)
		return BNET_WIRE_VERDICT_TOKEN;
	*conn = new_receiver(inbound, *listen, hello);
	return *conn ? BNET_WIRE_VERDICT_OK : BNET_WIRE_VERDICT_LIMIT;
}

/* dev: of a connection's first stream, else NULL. position: of the stream that this one repairs. */
static bool reply(int fd, const struct bnet_wire_hello *hello, enum bnet_wire_verdict verdict,
		  const struct bnet_device *dev, uint64_t position)
{
	struct bnet_wire_welcome welcome = {
		.version = BNET_WIRE_VERSION,
		.verdict = (uint16_t)verdict,
		.max_streams = (uint16_t)most_streams(),
		.keepalive = (uint8_t)bnet_engine.config.keepalive,
		.connection = hello->connection,
		.features = bnet_engine.config.repair ? BNET_WIRE_FEATURE_REPAIR : 0,
		.repaired = hello->repairs && verdict == BNET_WIRE_VERDICT_OK,
		.position = position,
	};
	uint8_t bytes[BNET_WIRE_WELCOME_MAX];
	size_t size;

	if (dev)
		list_addresses(dev, &welcome);
	size = bnet_wire_welcome_encode(bytes, &welcome);
	/* A socket that has carried nothing takes this in one piece. */
	return send(fd, bytes, size, MSG_DONTWAIT | MSG_NOSIGNAL) == (ssize_t)size;
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
	}
	return "it asks for something unknown";
}

/* A pass takes some microseconds. */
#define OWN_TRIES 1000

/* A stream takes the place of a broken one: the owner sees both or neither. -EBUSY: the owner is at work, and the peer
 * tries again; -ESTALE: this is not the peer's last try. The lock is held here, so that the word may only be tried
 * (engine.h). */
static int replace(struct bnet_conn *conn, int fd, struct bnet_stream_start *start)
{
	int rc = -EBUSY;

	for (int i = 0; i < OWN_TRIES && rc == -EBUSY; i++) {
		if (!bnet_conn_try_own(conn))
			continue;
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
	if (error == -EBUSY)
		return "its connection is busy";
	return error == -ESTALE ? "its sender has tried again since" : "this process is out of memory or descriptors";
}

static void complete(struct inbound *inbound, const struct bnet_wire_hello *hello)
{
	struct bnet_listen *listen;
	struct bnet_conn *conn;
	enum bnet_wire_verdict verdict = judge(inbound, hello, &conn, &listen);
	struct bnet_stream_start start = {.serial = hello->serial, .repairs = hello->repairs};
	int fd = inbound->watch.fd, rc;

	if (verdict != BNET_WIRE_VERDICT_OK) {
		reply(fd, hello, verdict, NULL, 0);
		shutdown(fd, SHUT_WR);
		bnet_acceptor_drop(&inbound->watch, verdict_text(verdict));
		return;
	}
	/* The stream is in place before the peer hears that it may use it. */
	bnet_socket_tune(fd, &bnet_engine.config, conn->setup.traffic_class);
	bnet_socket_choose_congestion(fd, &bnet_engine.config, false);
	rc = !listen && hello->repairs ? replace(conn, fd, &start) : bnet_conn_add_stream(conn, fd, &start);
	if (rc < 0) {
		if (listen)
			bnet_conn_free(conn);
		else if (rc == -EBUSY)
			reply(fd, hello, BNET_WIRE_VERDICT_LIMIT, NULL, 0); /* it comes again */
		bnet_acceptor_drop(&inbound->watch, reason_of(rc));
		return;
	}
	bnet_watch_remove(&inbound->watch); /* the stream has its descriptor */
	free_inbound(inbound);
	if (!reply(fd, hello, verdict, hello->stream ? NULL : conn->dev, start.position) && listen) {
		bnet_conn_free(conn);
		return;
	}
	if (!listen)
		bnet_socket_acknowledge_at_once(fd);
	if (listen) {
		bnet_list_add(&bnet_engine.conns, &conn->node);
		bnet_table_add(&bnet_engine.receivers_by_id, &conn->by_id, conn->id);
		bnet_list_add(&listen->queue, &conn->setup.pending);
		bnet_worker_adopt(conn);
		pthread_cond_broadcast(&bnet_engine.changed);
	}
}

/* ---- questions ---- */

/* A receiver asks, all of whose streams have broken: its sender may have nothing to send, and have seen no end yet. The
 * control thread repairs it, or finds out what is lost. */
static void look_for_ends(struct bnet_conn *conn)
{
	if (!conn->repairs || !conn->setup.handed_out || !bnet_conn_try_own(conn))
		return; /* a busy owner: it is asked again */
	for (int i = 0; i < conn->nstreams; i++)
		if (!conn->streams[i]->broken && bnet_socket_is_closed(conn->streams[i]->fd))
			bnet_tx_break(conn, conn->streams[i], -ECONNRESET);
	bnet_conn_disown(conn);
	if (atomic_load(&conn->reap))
		bnet_engine_posted(&conn->work);
}

/* Asker and answerer know the same token, so a stranger learns nothing. */
static void answer(struct inbound *inbound, const struct bnet_wire_question *question)
{
	struct bnet_wire_answer wire = {
		.version = BNET_WIRE_VERSION,
		.verdict = BNET_WIRE_VERDICT_GONE,
		.connection = question->connection,
	};
	struct bnet_conn *conn = NULL;
	uint8_t bytes[BNET_WIRE_ANSWER_SIZE];

	if (question->version == BNET_WIRE_VERSION)
		conn = question->by_receiver ? find_sender(question->connection, question->token)
					     : find_receiver(question->connection, question->token);
	if (conn) {
		wire.verdict = BNET_WIRE_VERDICT_OK;
		wire.received = bnet_device_traffic(conn->dev).received;
		wire.at_us = bnet_now_us();
		if (question->by_receiver)
			look_for_ends(conn);
	}
	bnet_wire_answer_encode(bytes, &wire);
	/* A socket that has carried nothing takes this in one piece. Where it has broken, the asker gives up by itself. */
	(void)!send(inbound->watch.fd, bytes, sizeof(bytes), MSG_DONTWAIT | MSG_NOSIGNAL);
	bnet_acceptor_drop(&inbound->watch, conn ? NULL : "it asks about a connection that does not exist (any more)");
}

/* ---- the first frame ---- */

/* The whole frame has arrived. */
static void handle_frame(struct inbound *inbound, bool asks)
{
	const uint8_t *body = inbound->bytes + BNET_WIRE_FRAME_HEADER;
	const size_t size = inbound->got - BNET_WIRE_FRAME_HEADER;
	struct bnet_wire_question question;
	struct bnet_wire_hello hello;

	if (asks && bnet_wire_question_decode(body, size, &question) == 0)
		answer(inbound, &question);
	else if (!asks && bnet_wire_hello_decode(body, size, &hello) == 0)
		complete(inbound, &hello);
	else
		bnet_acceptor_drop(&inbound->watch, "its first message is damaged");
}

/* Reads no further than the end of the HELLO or QUESTION. False: more of it has to come; true: it is answered, or the
 * inbound connection was dropped. */
static bool read_hello(struct inbound *inbound)
{
	struct bnet_watch *watch = &inbound->watch;
	struct bnet_wire_frame frame;
	uint32_t want = BNET_WIRE_FRAME_HEADER;

	while (inbound->got < want) {
		ssize_t n = recv(watch->fd, inbound->bytes + inbound->got, want - inbound->got, MSG_DONTWAIT);

		if (n < 0 && (errno == EAGAIN || errno == EINTR))
			return false;
		if (n <= 0) {
			bnet_acceptor_drop(watch, n == 0 ? "it closed before it said who it is" : strerror(errno));
			return true;
		}
		inbound->got += (uint32_t)n;
		if (inbound->got < BNET_WIRE_FRAME_HEADER)
			continue;
		bnet_wire_frame_decode(inbound->bytes, &frame);
		if (!bnet_wire_frame_is_hello(&frame) && !bnet_wire_frame_is_question(&frame)) {
			bnet_acceptor_drop(watch, "it does not speak BaguaNet's protocol (a port scanner, or a rank "
						  "that uses another network plugin)");
			return true;
		}
		want = BNET_WIRE_FRAME_HEADER + frame.length;
	}
	bnet_wire_frame_decode(inbound->bytes, &frame);
	handle_frame(inbound, bnet_wire_frame_is_question(&frame));
	return true;
}

void bnet_acceptor_hello(struct bnet_watch *watch)
{
	read_hello((struct inbound *)watch);
}

/* ---- accepting ---- */

static bool too_many(void)
{
	return bnet_engine.ninbound > MAX_INBOUND || (uint64_t)bnet_engine.ninbound > bnet_descriptor_limit() / 8;
}

/* Drops the oldest inbound connection, unless its HELLO is only not read yet. */
static void evict_oldest(void)
{
	struct bnet_watch *oldest = bnet_entry(bnet_engine.inbound.next, struct bnet_watch, node);
	int before = bnet_engine.ninbound;

	if (!too_many())
		return;
	bnet_acceptor_hello(oldest);
	if (bnet_engine.ninbound == before)
		bnet_acceptor_drop(oldest, "too many connections have not said who they are");
}

/* Most often its HELLO is there already. A caller looks for it again; what it leaves is watched from the next tick on. */
static void add_inbound(int fd, const struct sockaddr_storage *peer, bool by_caller)
{
	struct inbound *inbound = calloc(1, sizeof(*inbound));

	if (!inbound) {
		bnet_socket_close(fd);
		return;
	}
	bnet_watch_init(&inbound->watch, fd);
	inbound->watch.deadline_ms = bnet_now_ms() + HELLO_MS;
	bnet_address_text(peer, inbound->peer);
	bnet_list_add(&bnet_engine.inbound, &inbound->watch.node);
	bnet_engine.ninbound++;
	if (!read_hello(inbound) && (by_caller || watch_inbound(&inbound->watch)))
		evict_oldest();
}

static bool is_shortage(int result)
{
	return result == -EMFILE || result == -ENFILE || result == -ENOBUFS || result == -ENOMEM;
}

/* Those that wait, as far as one time allows. Returns the last descriptor, or -errno where there was none. */
static int accept_some(struct bnet_listener *listener, bool by_caller)
{
	struct sockaddr_storage peer;
	int fd = 0;

	for (int i = 0; i < ACCEPTS && listener->fd >= 0 && fd >= 0; i++) {
		fd = bnet_socket_accept(listener->fd, &peer);
		if (fd < 0)
			break;
		listener->short_since_ms = 0;
		add_inbound(fd, &peer, by_caller);
	}
	return fd;
}

void bnet_acceptor_ready(int nic)
{
	struct bnet_listener *listener = &bnet_engine.listeners[nic];
	const int fd = accept_some(listener, false);

	if (is_shortage(fd))
		bnet_listener_pause(nic, fd);
	else
		listener->short_since_ms = 0;
}

/* ---- for callers ---- */

/* Of those that callers have accepted. */
static void read_hellos(void)
{
	int left = ACCEPTS;

	bnet_list_each(node, &bnet_engine.inbound) {
		struct bnet_watch *watch = bnet_entry(node, struct bnet_watch, node);

		if (left-- == 0)
			return;
		if (!bnet_watch_is_on(watch))
			bnet_acceptor_hello(watch);
	}
}

/* A lack of descriptors is left to the control thread: it shows whether or not a connection waits, and an event only
 * where one does. */
void bnet_acceptor_look(const struct bnet_listen *listen)
{
	read_hellos();
	for (int i = 0; i < listen->dev->nmembers; i++) {
		const int nic = bnet_listener_number(listen->dev->members[i]);
		struct bnet_listener *listener = &bnet_engine.listeners[nic];

		if (listener->paused_until_ms)
			continue;
		bnet_listener_look(nic);
		if (is_shortage(accept_some(listener, true)))
			bnet_listener_leave(nic);
	}
	if (!bnet_list_empty(&bnet_engine.inbound))
		bnet_engine_tick_soon(); /* they have a deadline, and nobody watches those that were accepted here */
}
