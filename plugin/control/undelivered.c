/* SPDX-License-Identifier: MIT
 *
 * See undelivered.h.
 */
#include "control/undelivered.h"

#include <errno.h>

#include "base/descriptors.h"
#include "base/socket.h"
#include "control/repair.h"
#include "handshake/connector.h"
#include "engine/engine.h"
#include "transport/conn.h"
#include "transport/delivery.h"
#include "transport/tx.h"

/* Streams that are looked at before whoever waits for the engine's lock gets it: one of which bytes are missing takes a
 * µs or two. */
#define IN_A_ROW 64
/* A stream of which nothing is heard for so long, and for so many round trips, is doubted: by then the kernel has sent
 * its oldest bytes four times. */
#define DOUBT_MS 3000
#define DOUBT_RTTS 20

/* Both ends' settings count: a peer with a longer one sends its probes less often. */
static uint32_t looks_limit(const struct bnet_conn *conn)
{
	int own = (int)conn->config->keepalive, peer = conn->setup.peer_keepalive;
	int seconds = own && peer > own ? peer : own;

	return (uint32_t)seconds * 1000 / BNET_DELIVERY_LOOK_MS;
}

static struct bnet_silence_limit limit_of(const struct bnet_conn *conn, const struct bnet_stream *stream)
{
	uint32_t rtt_us = atomic_load_explicit(&stream->estimator.min_rtt_us, memory_order_relaxed);
	uint32_t doubt = (DOUBT_MS + DOUBT_RTTS * (rtt_us / 1000)) / BNET_DELIVERY_LOOK_MS;

	return (struct bnet_silence_limit){
		.looks = looks_limit(conn),
		.doubt = conn->repairs ? doubt : 0,
		.peer_probes = conn->setup.peer_keepalive > 0,
	};
}

/* How long nothing has come on a stream. Where it has nothing to deliver, this kernel's probes are answered. */
static uint32_t unheard_ms(const struct bnet_stream *stream)
{
	if (atomic_load_explicit(&stream->delivery.written, memory_order_relaxed) == stream->delivery.settled)
		return bnet_socket_unheard_ms(stream->fd);
	return stream->delivery.silent * BNET_DELIVERY_LOOK_MS;
}

/* Has one of the silent stream's siblings been heard lately? */
static bool is_heard(const struct bnet_conn *conn, const struct bnet_stream *silent)
{
	const uint32_t lately_ms = silent->delivery.silent * BNET_DELIVERY_LOOK_MS / 2;

	for (int i = 0; i < conn->nstreams; i++) {
		const struct bnet_stream *stream = conn->streams[i];

		if (stream != silent && !stream->broken && !bnet_socket_is_closed(stream->fd) &&
		    unheard_ms(stream) < lately_ms)
			return true;
	}
	return false;
}

/* A silent stream is given up like one that was reset, if its host is there. */
static bool can_be_repaired(const struct bnet_conn *conn, const struct bnet_stream *stream,
			    enum bnet_delivery_state state)
{
	return conn->repairs && (state == BNET_DELIVERY_LOST || is_heard(conn, stream));
}

/* While a connection is repaired, its other streams are looked at as well, though they may have nothing to deliver:
 * they are the reason why it is waited for. */
static bool has_ended(const struct bnet_conn *conn, const struct bnet_stream *stream)
{
	return !bnet_list_empty(&conn->broken) && bnet_socket_is_left(stream->fd);
}

static void fail(struct bnet_conn *conn, struct bnet_stream *stream, enum bnet_delivery_state state)
{
	unsigned long long missing = bnet_delivery_missing(&stream->delivery, stream->fd);

	if (!bnet_conn_try_own_for(conn, BNET_OWN_TRIES))
		return; /* at the next look */
	if (can_be_repaired(conn, stream, state)) {
		if (state == BNET_DELIVERY_SILENT)
			bnet_socket_reset(stream->fd);
		bnet_tx_break(conn, stream, state == BNET_DELIVERY_LOST ? -ECONNRESET : -ETIMEDOUT);
		bnet_repair_begin(conn);
	} else if (state == BNET_DELIVERY_LOST)
		bnet_conn_fail(conn, -ECONNRESET,
			       "the connection to %s broke: it ended before %llu bytes that were sent had arrived. The "
			       "remote process has ended or the network dropped the connection; look at the other rank's "
			       "log first",
			       conn->peer, missing);
	else
		bnet_conn_fail(conn, -ETIMEDOUT,
			       "the connection to %s broke: nothing has come from that host for %u s "
			       "(BAGUA_NET_KEEPALIVE), and %llu bytes that were sent are not acknowledged. The host is "
			       "down, or the network between",
			       conn->peer, stream->delivery.silent * BNET_DELIVERY_LOOK_MS / 1000, missing);
	bnet_conn_disown(conn);
}

/* Another stream beside one that lives: it costs a descriptor. */
static bool may_dial(const struct bnet_conn *conn)
{
	return conn->repairs && conn->setup.handed_out && bnet_descriptors_left();
}

/* It has left the table of its kind, and is freed soon. */
static bool is_detached(const struct bnet_conn *conn)
{
	return bnet_list_empty(&conn->by_id.node);
}

static bool look_at(struct bnet_conn *conn)
{
	bool open = false, kept = false;

	for (int i = 0; i < conn->nstreams; i++) {
		struct bnet_stream *stream = conn->streams[i];
		enum bnet_delivery_state state;

		if (stream->broken)
			continue;
		if (stream->away && may_dial(conn))
			bnet_connector_home(conn, stream);
		state = has_ended(conn, stream)
				? BNET_DELIVERY_LOST
				: bnet_delivery_look(&stream->delivery, stream->fd, limit_of(conn, stream));
		open |= state != BNET_DELIVERY_DONE;
		kept |= state == BNET_DELIVERY_DONE; /* its ledger is the owner's */
		if (state == BNET_DELIVERY_DOUBTFUL && may_dial(conn))
			bnet_connector_beside(conn, stream); /* without memory: when it is doubtful again */
		if (state == BNET_DELIVERY_LOST || state == BNET_DELIVERY_SILENT) {
			fail(conn, stream, state);
			break;
		}
	}
	/* An idle connection keeps no copies, nor memory for more. */
	if (kept && conn->repairs && bnet_conn_try_own_for(conn, BNET_OWN_TRIES)) {
		bnet_tx_owes(conn);
		open |= bnet_copies_rest(&conn->copies);
		bnet_conn_disown(conn);
	}
	return open;
}

/* In a round each is looked at once: it goes to the end of the list, where the next round finds it last. */
static struct bnet_conn *next_of_round(uint32_t round)
{
	struct bnet_node *first = bnet_engine.conns.next;
	struct bnet_conn *conn = bnet_entry(first, struct bnet_conn, node);

	if (bnet_list_empty(&bnet_engine.conns) || conn->looked_at == round)
		return NULL;
	conn->looked_at = round;
	bnet_list_remove(first);
	bnet_list_add(&bnet_engine.conns, first);
	return conn;
}

bool bnet_undelivered_look(void)
{
	static uint32_t round;
	struct bnet_conn *conn;
	bool open = false;
	int looks = 0;

	round++;
	while ((conn = next_of_round(round)) != NULL) {
		looks += conn->nstreams;
		if (!atomic_load_explicit(&conn->error, memory_order_relaxed) && !is_detached(conn))
			open |= conn->sender ? look_at(conn) : bnet_repair_ask(conn);
		if (looks < IN_A_ROW)
			continue;
		looks = 0;
		bnet_engine_give_way(); /* the list may change meanwhile */
	}
	return open;
}
