/* SPDX-License-Identifier: MIT
 *
 * From accept and connect to a stream, with a secret and without: HELLO, CHALLENGE, CONFIRM, WELCOME, questions and
 * their answers, and streams that take the place of broken ones. The fuzzer is every peer. Whoever gets a stream, and
 * whoever is believed, has proven in that handshake that it knows the secret; nothing is left when all is closed.
 *
 * The network and the clock are interposed: connect and accept4 give the ends of socket pairs, and time goes on in
 * steps. The first byte is what the process is set to. Then come steps: a byte with the step and its peer, and the
 * step's own bytes.
 */
#include <errno.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>

#include "api/net.h"
#include "base/socket.h"
#include "control/lifecycle.h"
#include "control/repair.h"
#include "engine/engine.h"
#include "handshake/acceptor.h"
#include "handshake/candidate.h"
#include "handshake/connector.h"
#include "handshake/listen.h"
#include "handshake/question.h"
#include "scaling/path.h"
#include "handshake_peer.h"
#include "script.h"
#include "transport/progress.h"
#include "transport/request.h"
#include "transport/tx.h"

#define PEERS 16
#define SENDS 4
#define SEND_BYTES 9000

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum step {
	STEP_OPEN,
	STEP_HELLO,
	STEP_CHALLENGE,
	STEP_CONFIRM,
	STEP_WELCOME,
	STEP_QUESTION,
	STEP_ANSWER,
	STEP_REPLAY,
	STEP_RAW,
	STEP_END,
	STEP_TIME,
	STEP_ACCEPT,
	STEP_DIAL,
	STEP_SEND,
	STEP_BREAK,
	STEP_ASK,
	STEP_CLOSE,
	STEPS,
};

static struct {
	bool refuses;
	uint64_t now_ms;
	int npeers, nwaiting, nsends, nattempts;
	struct peer peers[PEERS];
	int waiting[PEERS]; /* to be accepted: the library's ends */
	struct bnet_listen *listen;
	struct bnet_request *sends[SENDS]; /* NULL: it is over */
} run;

static struct bnet_context *context;
static char sent[SEND_BYTES];

/* ---- interposed ---- */

int clock_gettime(clockid_t clock, struct timespec *now)
{
	if (clock != CLOCK_MONOTONIC || run.now_ms == 0)
		return (int)syscall(SYS_clock_gettime, clock, now);
	now->tv_sec = (time_t)(run.now_ms / 1000);
	now->tv_nsec = (long)(run.now_ms % 1000) * 1000000;
	return 0;
}

static struct peer *new_peer(int pair[2])
{
	struct peer *peer = &run.peers[run.npeers];

	if (run.npeers == PEERS || socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair) < 0)
		return NULL;
	run.npeers++;
	*peer = (struct peer){.fd = pair[1], .mine = pair[0]};
	return peer;
}

int connect(int fd, const struct sockaddr *addr, socklen_t size)
{
	struct peer *peer;
	int pair[2];

	if (addr->sa_family != AF_INET)
		return (int)syscall(SYS_connect, fd, addr, size);
	peer = run.refuses ? NULL : new_peer(pair);
	if (!peer) {
		errno = ECONNREFUSED;
		return -1;
	}
	EXPECT(dup3(pair[0], fd, O_CLOEXEC) == fd);
	close(pair[0]);
	peer->mine = fd;
	return 0;
}

int accept4(int fd, struct sockaddr *addr, socklen_t *size, int flags)
{
	const struct sockaddr_in from = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};

	(void)fd;
	(void)flags;
	if (run.nwaiting == 0) {
		errno = EAGAIN;
		return -1;
	}
	memcpy(addr, &from, sizeof(from));
	*size = sizeof(from);
	return run.waiting[--run.nwaiting];
}

/* ---- who gets in ---- */

/* The last one that the library had by this descriptor. */
static const struct peer *peer_of(int fd)
{
	for (int i = run.npeers - 1; i >= 0; i--)
		if (run.peers[i].mine == fd)
			return &run.peers[i];
	abort();
}

static void look_at_streams(const struct bnet_conn *conn)
{
	for (int i = 0; i < conn->nstreams; i++) {
		const struct peer *peer = peer_of(conn->streams[i]->fd);

		EXPECT(!conn->streams[i]->seal == !(bnet_engine.config.encrypt || bnet_engine.config.checksum));
		if (!talk.secret)
			continue;
		EXPECT(peer->proven[conn->sender ? BNET_WIRE_FRAME_CHALLENGE : BNET_WIRE_FRAME_HELLO]);
		EXPECT(peer->proven[conn->sender ? BNET_WIRE_FRAME_WELCOME : BNET_WIRE_FRAME_CONFIRM]);
	}
}

static void look_at_answer(const struct bnet_answer *answer, const struct peer *peer)
{
	if (talk.secret && (answer->error == 0 || answer->error == -ENOENT))
		EXPECT(peer->proven[BNET_WIRE_FRAME_ANSWER]);
	if (answer->conn)
		bnet_repair_answered(answer);
}

/* ---- the control thread's part ---- */

static void handle(uint64_t id)
{
	struct bnet_watch *watch;
	const struct peer *peer;
	struct bnet_joined joined;
	struct bnet_answer answer;

	if ((id & 7) == BNET_WATCH_LISTENER)
		bnet_acceptor_ready((int)(id >> 3));
	watch = bnet_watch_find(id);
	if (!watch)
		return;
	switch ((enum bnet_watch_kind)(id & 7)) {
	case BNET_WATCH_INBOUND:
		bnet_acceptor_hello(watch);
		break;
	case BNET_WATCH_CONNECTOR:
		if (bnet_connector_ready(watch, &joined))
			bnet_lifecycle_joined(&joined);
		break;
	case BNET_WATCH_QUESTION:
		peer = peer_of(watch->fd);
		if (bnet_question_ready(watch, &answer))
			look_at_answer(&answer, peer);
		break;
	case BNET_WATCH_WAKE:
	case BNET_WATCH_LISTENER:
	case BNET_WATCH_DRAIN:
		break;
	}
}

static void handle_events(void)
{
	struct epoll_event events[16];
	const int n = epoll_wait(bnet_engine.epoll, events, 16, 0);

	if (run.nwaiting)
		bnet_acceptor_ready(0);
	for (int i = 0; i < n; i++)
		handle(events[i].data.u64);
}

static void tick(void)
{
	struct bnet_answer answer;

	bnet_acceptor_tick(run.now_ms);
	bnet_connectors_tick(run.now_ms);
	while (bnet_questions_tick(run.now_ms, &answer))
		if (answer.conn)
			bnet_repair_answered(&answer);
	bnet_paths_open();
}

/* As connect does for its caller, and control/active.c. */
static void look_after(struct bnet_conn *conn)
{
	struct bnet_joined joined;

	if (conn->sender && !conn->setup.ready && !atomic_load(&conn->error) && bnet_connector_look(conn, &joined))
		bnet_lifecycle_joined(&joined);
	if (conn->sender && conn->setup.ready && !conn->setup.handed_out) {
		conn->setup.handed_out = true;
		bnet_table_remove(&conn->by_id);
		bnet_list_remove(&conn->setup.pending);
		bnet_table_add(&bnet_engine.senders_by_id, &conn->by_id, conn->id);
	}
	if (!atomic_load(&conn->reap) || !bnet_conn_try_own(conn))
		return;
	atomic_store(&conn->reap, false);
	if (conn->sender && conn->repairs)
		bnet_repair_begin(conn);
	bnet_conn_disown(conn);
}

static void look(void)
{
	uint64_t size;

	bnet_engine_lock();
	handle_events();
	tick();
	bnet_list_each(node, &bnet_engine.conns) {
		struct bnet_conn *conn = bnet_entry(node, struct bnet_conn, node);

		look_after(conn);
		look_at_streams(conn);
	}
	bnet_engine_unlock();
	for (int i = 0; i < run.nsends; i++)
		if (run.sends[i] && bnet_progress_test(run.sends[i], &size))
			run.sends[i] = NULL;
	for (int i = 0; i < run.npeers; i++)
		hear(&run.peers[i]);
}

/* ---- what the process does ---- */

static void open_peer(void)
{
	int pair[2];

	if (new_peer(pair))
		run.waiting[run.nwaiting++] = pair[0];
}

static void end_peer(struct peer *peer)
{
	if (peer->fd >= 0)
		close(peer->fd);
	peer->fd = -1;
}

static void accept_one(void)
{
	struct bnet_conn *conn;

	bnet_net_accept(run.listen, &conn);
}

/* As connect does. */
static void dial(void)
{
	const struct sockaddr_storage addr = address_of(0);
	struct bnet_conn *conn;

	if (run.nattempts == ATTEMPTS)
		return;
	conn = bnet_conn_new(true, bnet_net_device(0), &bnet_engine.config, false);
	EXPECT(conn);
	conn->id = FIRST_ID + (uint64_t)run.nattempts++;
	memcpy(conn->token, token, sizeof(token));
	conn->setup.context = context;
	conn->setup.traffic_class = BNET_NO_TRAFFIC_CLASS;
	conn->setup.started_ms = run.now_ms;
	conn->setup.warn_at_ms = UINT64_MAX;
	bnet_peer_addresses_start(conn, &addr, true);
	bnet_engine_lock();
	EXPECT(bnet_path_join(conn) == 0 && bnet_connector_start(conn, 0, false) == 0);
	bnet_list_add(&bnet_engine.conns, &conn->node);
	bnet_table_add(&bnet_engine.attempts_by_id, &conn->by_id, conn->id);
	bnet_list_add(&bnet_engine.attempts, &conn->setup.pending);
	bnet_engine_unlock();
}

/* NULL: no connection has been handed out. */
static struct bnet_conn *handed_out(uint8_t which, bool sender)
{
	struct bnet_conn *found = NULL;

	bnet_list_each(node, &bnet_engine.conns) {
		struct bnet_conn *conn = bnet_entry(node, struct bnet_conn, node);

		if (!conn->setup.handed_out || conn->sender != sender)
			continue;
		found = conn;
		if (which-- == 0)
			return conn;
	}
	return found;
}

static void send_message(uint8_t which)
{
	struct bnet_conn *conn = handed_out(which, true);

	if (conn && run.nsends < SENDS)
		run.sends[run.nsends++] = bnet_request_post(conn, sent, SEND_BYTES);
}

/* Nobody else owns a connection here. A stream breaks, or another one is to take its place if the peer answers. */
static void break_stream(uint8_t which)
{
	struct bnet_conn *conn = handed_out(which / 4 % 16, true);
	struct bnet_stream *stream = conn && conn->nstreams ? conn->streams[which % conn->nstreams] : NULL;

	if (!stream)
		return;
	bnet_engine_lock();
	if (which & 0x80)
		EXPECT(bnet_connector_beside(conn, stream) == 0);
	else
		bnet_tx_break(conn, stream, -ECONNRESET);
	bnet_engine_unlock();
}

static void ask(uint8_t which)
{
	struct bnet_conn *conn = handed_out(which / 2, which & 1);

	if (!conn)
		return;
	bnet_engine_lock();
	if (conn->sender) {
		bnet_question_ask(conn, conn->path, 1000, 1000);
	} else {
		atomic_store(&conn->alone_us, 1);
		bnet_repair_ask(conn);
	}
	bnet_engine_unlock();
}

static void discard(struct bnet_conn *conn)
{
	for (int i = 0; i < run.nsends; i++)
		if (run.sends[i] && run.sends[i]->conn == conn)
			run.sends[i] = NULL;
	bnet_lifecycle_discard(conn);
}

static void close_one(uint8_t which)
{
	struct bnet_conn *conn = handed_out(which / 2, which & 1);

	if (conn)
		discard(conn);
}

/* ---- a run ---- */

static void step(struct script *script)
{
	const uint8_t byte = take(script);
	struct peer *peer = &run.peers[run.npeers ? byte / STEPS % run.npeers : 0];

	switch ((enum step)(byte % STEPS)) {
	case STEP_OPEN:
		open_peer();
		break;
	case STEP_HELLO:
		say_hello(script, peer);
		break;
	case STEP_CHALLENGE:
		say_proof(script, peer, BNET_WIRE_FRAME_CHALLENGE);
		break;
	case STEP_CONFIRM:
		say_proof(script, peer, BNET_WIRE_FRAME_CONFIRM);
		break;
	case STEP_WELCOME:
		say_welcome(script, peer);
		break;
	case STEP_QUESTION:
		say_question(script, peer);
		break;
	case STEP_ANSWER:
		say_answer(script, peer);
		break;
	case STEP_REPLAY:
		replay(script, peer);
		break;
	case STEP_RAW:
		say_anything(script, peer);
		break;
	case STEP_END:
		end_peer(peer);
		break;
	case STEP_TIME:
		run.refuses = byte / STEPS & 1;
		run.now_ms += (uint64_t)take(script) * 50;
		break;
	case STEP_ACCEPT:
		accept_one();
		break;
	case STEP_DIAL:
		dial();
		break;
	case STEP_SEND:
		send_message(take(script));
		break;
	case STEP_BREAK:
		break_stream(take(script));
		break;
	case STEP_ASK:
		ask(take(script));
		break;
	case STEP_CLOSE:
		close_one(take(script));
		break;
	case STEPS:
		break;
	}
	look();
}

static void begin(uint8_t set)
{
	memset(&run, 0, sizeof(run));
	memset(&talk, 0, sizeof(talk));
	for (int i = 0; i < PEERS; i++)
		run.peers[i].fd = -1;
	run.now_ms = 1000000;
	talk.secret = set & 1;
	use_secret(talk.secret);
	bnet_engine.config.encrypt = talk.secret && set & 2;
	bnet_engine.config.checksum = !!(set & 4);
	bnet_engine.config.repair = !(set & 8);
	bnet_engine.config.min_nstreams = set & 16 ? 3 : 1;
	run.listen = calloc(1, sizeof(*run.listen));
	EXPECT(run.listen);
	bnet_list_init(&run.listen->queue);
	run.listen->context = context;
	run.listen->traffic_class = BNET_NO_TRAFFIC_CLASS;
	run.listen->dev = bnet_net_device(0);
	memcpy(run.listen->token, token, sizeof(token));
	bnet_engine_lock();
	EXPECT(bnet_listen_start(run.listen) == 0);
	bnet_engine_unlock();
}

static void end_all(void)
{
	bnet_lifecycle_discard_listen(run.listen);
	while (!bnet_list_empty(&bnet_engine.conns))
		discard(bnet_entry(bnet_engine.conns.next, struct bnet_conn, node));
	bnet_engine_lock();
	while (!bnet_list_empty(&bnet_engine.inbound))
		bnet_acceptor_drop(bnet_entry(bnet_engine.inbound.next, struct bnet_watch, node), NULL);
	bnet_engine_unlock();
	for (int i = 0; i < run.npeers; i++)
		end_peer(&run.peers[i]);
	while (run.nwaiting)
		close(run.waiting[--run.nwaiting]);
	EXPECT(bnet_list_empty(&bnet_engine.connectors) && bnet_list_empty(&bnet_engine.questions));
	EXPECT(bnet_list_empty(&bnet_engine.attempts) && bnet_engine.ninbound == 0);
	run.now_ms = 0;
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
	(void)argc;
	(void)argv;
	setenv("NCCL_SOCKET_IFNAME", "=lo", 1);
	setenv("NCCL_SOCKET_FAMILY", "AF_INET", 1);
	EXPECT(bnet_lifecycle_configure() == 0);
	bnet_engine.epoll = epoll_create1(EPOLL_CLOEXEC);
	context = bnet_context_new(12, 1, BNET_NO_TRAFFIC_CLASS, NULL);
	EXPECT(context && bnet_engine.epoll >= 0);
	/* The listener of the device stays open, and what is read once has been. */
	LLVMFuzzerTestOneInput((const uint8_t *)"\x01", 1);
	return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct script script = {data, size};
	const int descriptors = open_descriptors();
	static bool warm;

	begin(take(&script));
	while (script.left)
		step(&script);
	end_all();
	EXPECT(!warm || open_descriptors() == descriptors);
	warm = true;
	return 0;
}
