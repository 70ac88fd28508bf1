/* SPDX-License-Identifier: MIT
 *
 * See acceptor.h.
 */
#include "handshake/acceptor.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "common/clock.h"
#include "base/address.h"
#include "base/counters.h"
#include "base/log.h"
#include "base/socket.h"
#include "handshake/listener.h"
#include "handshake/proof.h"
#include "handshake/welcome.h"
#include "wire/wire.h"

#define HELLO_MS 10000
/* A scanner may come a thousand times a second, for days: so many lines tell who it is. */
#define DROPPED_LINES 100
#define DROPPED_LINES_MS 60000
#define MAX_INBOUND 1024
/* Accepted at a time: other events wait, and so do those who need the lock. */
#define ACCEPTS 16

struct inbound {
	struct bnet_watch watch;
	char peer[BNET_ADDRESS_TEXT];
	struct first_frame {
		uint32_t got;
		uint8_t bytes[BNET_WIRE_HANDSHAKE_MAX];
	} hello;
	/* With a secret, after its HELLO: */
	bool challenged;
	uint8_t challenge[BNET_PROOF_SIZE];
	struct first_frame confirm;
};

/* ---- inbound connections ---- */

static void free_inbound(struct inbound *inbound)
{
	bnet_list_remove(&inbound->watch.node);
	bnet_engine.ninbound--;
	free(inbound);
}

/* Under the lock. */
static void say_dropped(const struct inbound *inbound, const char *why)
{
	static uint64_t since_ms;
	static unsigned dropped;
	const uint64_t now = bnet_now_ms();

	bnet_count(rejected, 1);
	if (now - since_ms >= DROPPED_LINES_MS) {
		if (dropped > DROPPED_LINES)
			bnet_info(NCCL_NET, "NET/BaguaNet: dropped %u more connections since then",
				  dropped - DROPPED_LINES);
		since_ms = now;
		dropped = 0;
	}
	if (++dropped <= DROPPED_LINES)
		bnet_info(NCCL_NET, "NET/BaguaNet: dropped a connection from %s: %s%s", inbound->peer, why,
			  dropped == DROPPED_LINES ? " (and no further line for a minute)" : "");
}

void bnet_acceptor_drop(struct bnet_watch *watch, const char *why)
{
	struct inbound *inbound = (struct inbound *)watch;

	if (why)
		say_dropped(inbound, why);
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

static const char *silence_of(const struct inbound *inbound)
{
	if (inbound->challenged)
		return "it has not proved its first message within 10 s, as where its process is stopped";
	return inbound->hello.got ? "its first message is not complete after 10 s" : "it said nothing for 10 s";
}

void bnet_acceptor_tick(uint64_t now)
{
	bnet_list_each(node, &bnet_engine.inbound) {
		struct bnet_watch *watch = bnet_entry(node, struct bnet_watch, node);

		if (now >= watch->deadline_ms)
			bnet_acceptor_drop(watch, silence_of((struct inbound *)watch));
		else if (!bnet_watch_is_on(watch))
			watch_inbound(watch);
	}
	bnet_listeners_tick(now);
}

/* ---- the first frame ---- */

static struct bnet_caller caller_of(const struct inbound *inbound)
{
	return (struct bnet_caller){
		.fd = inbound->watch.fd,
		.peer = inbound->peer,
		.frame = inbound->hello.bytes,
		.size = inbound->hello.got,
		.challenge = inbound->challenged ? inbound->challenge : NULL,
		.confirm = inbound->challenged ? inbound->confirm.bytes + BNET_WIRE_PROOF_PROOF : NULL,
	};
}

static void answer_question(struct inbound *inbound)
{
	const struct bnet_caller caller = caller_of(inbound);

	bnet_acceptor_drop(&inbound->watch, bnet_answer_question(&caller));
}

/* The socket becomes a stream's. */
static void welcome(struct inbound *inbound)
{
	const struct bnet_caller caller = caller_of(inbound);
	const char *why;

	bnet_watch_remove(&inbound->watch);
	why = bnet_welcome(&caller);
	if (why) {
		say_dropped(inbound, why);
		bnet_socket_close(caller.fd);
	}
	free_inbound(inbound);
}

/* False: it was dropped. */
static bool challenge(struct inbound *inbound)
{
	const struct bnet_caller caller = caller_of(inbound);
	const char *why = bnet_challenge(&caller, inbound->challenge);

	if (why)
		bnet_acceptor_drop(&inbound->watch, why);
	else
		inbound->challenged = true;
	return !why;
}

static const char *wrong_frame(const struct inbound *inbound, const struct bnet_wire_frame *frame)
{
	if (inbound->challenged)
		return bnet_wire_frame_is_confirm(frame) ? NULL : "it does not confirm its first message";
	return bnet_wire_frame_is_hello(frame) || bnet_wire_frame_is_question(frame)
		       ? NULL
		       : "it does not speak BaguaNet's protocol (a port scanner, or a rank that uses another network plugin)";
}

/* Reads no further than the end of the frame that is awaited. 1: it is there; 0: more of it has to come; -1: the
 * inbound connection was dropped. */
static int read_frame(struct inbound *inbound, struct bnet_wire_frame *frame)
{
	struct first_frame *in = inbound->challenged ? &inbound->confirm : &inbound->hello;
	uint32_t want = bnet_wire_frame_wants(in->bytes, in->got);

	while (in->got < want) {
		ssize_t n = recv(inbound->watch.fd, in->bytes + in->got, want - in->got, MSG_DONTWAIT);
		const char *wrong = NULL;

		if (n < 0 && (errno == EAGAIN || errno == EINTR))
			return 0;
		if (n > 0)
			in->got += (uint32_t)n;
		if (n > 0 && in->got < BNET_WIRE_FRAME_HEADER)
			continue;
		if (n > 0) {
			bnet_wire_frame_decode(in->bytes, frame);
			wrong = wrong_frame(inbound, frame);
		}
		if (n <= 0 || wrong) {
			bnet_acceptor_drop(&inbound->watch, wrong    ? wrong
							    : n == 0 ? "it closed before it said who it is"
								     : strerror(errno));
			return -1;
		}
		want = bnet_wire_frame_wants(in->bytes, in->got);
	}
	return 1;
}

/* 0; -EACCES; -errno: it could not be found out. */
static int confirmed(const struct inbound *inbound)
{
	return bnet_proof_check(BNET_PROOF_CONFIRM, inbound->confirm.bytes, inbound->confirm.got, inbound->challenge);
}

/* False: more has to come; true: it is answered, or the inbound connection was dropped. */
static bool read_hello(struct inbound *inbound)
{
	struct bnet_wire_frame frame = {0};
	int rc;

	while ((rc = read_frame(inbound, &frame)) > 0) {
		bnet_wire_frame_decode(inbound->hello.bytes, &frame);
		if (bnet_wire_frame_is_question(&frame)) {
			answer_question(inbound);
			return true;
		}
		rc = inbound->challenged ? confirmed(inbound) : -EAGAIN;
		if (!bnet_proof_size() || rc == 0) {
			welcome(inbound);
			return true;
		}
		if (inbound->challenged) {
			bnet_acceptor_drop(&inbound->watch,
					   rc == -EACCES ? "it does not confirm its first message (a replay, "
							   "if it is no accident)"
							 : BNET_NO_PROOF);
			return true;
		}
		if (!challenge(inbound))
			return true;
	}
	return rc < 0;
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

/* Most often its HELLO is there already. A caller looks for it again; what it leaves is watched from the next tick
 * on. */
static void add_inbound(struct inbound *inbound, int fd, const struct sockaddr_storage *peer, bool by_caller)
{
	bnet_watch_init(&inbound->watch, fd);
	inbound->watch.deadline_ms = bnet_now_ms() + HELLO_MS;
	bnet_address_text(peer, inbound->peer);
	bnet_list_add(&bnet_engine.inbound, &inbound->watch.node);
	bnet_engine.ninbound++;
	if (!read_hello(inbound) && (by_caller || watch_inbound(&inbound->watch)))
		evict_oldest();
}

/* There before a connection is taken: one that finds no memory stays where it is, and waits. Under the lock. */
static struct inbound *spare;

/* 0; without memory, -ENOMEM if a connection waits. */
static int reserve(const struct bnet_listener *listener)
{
	struct pollfd waits = {.fd = listener->fd, .events = POLLIN};

	if (!spare)
		spare = calloc(1, sizeof(*spare));
	if (spare)
		return 0;
	return poll(&waits, 1, 0) > 0 ? -ENOMEM : -EAGAIN;
}

static bool is_shortage(int result)
{
	return result == -EMFILE || result == -ENFILE || result == -ENOBUFS || result == -ENOMEM;
}

/* Those that wait, as far as one time allows. Returns the last descriptor, or -errno where there was none. */
static int accept_some(struct bnet_listener *listener, bool by_caller)
{
	struct sockaddr_storage peer;
	struct inbound *inbound;
	int fd = 0;

	for (int i = 0; i < ACCEPTS && listener->fd >= 0 && fd >= 0; i++) {
		fd = reserve(listener);
		if (fd == 0)
			fd = bnet_socket_accept(listener->fd, &peer);
		if (fd < 0)
			break;
		listener->short_since_ms = 0;
		inbound = spare;
		spare = NULL;
		add_inbound(inbound, fd, &peer, by_caller);
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
