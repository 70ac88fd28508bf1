/* SPDX-License-Identifier: MIT
 *
 * A connector, for the files that take it from one step to the next: connector.c starts it, watches its time limits and
 * ends it; dial.c tries one pair of addresses after the other until a socket is connected; hello.c goes from HELLO to
 * WELCOME. The control thread, or under the engine's lock.
 */
#ifndef BNET_CONNECTOR_STATE_H
#define BNET_CONNECTOR_STATE_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/engine.h"
#include "handshake/candidate.h"
#include "handshake/failure.h"
#include "transport/conn.h"
#include "wire/wire.h"

enum bnet_connector_state {
	BNET_CONNECTOR_WAITING, /* to try again */
	BNET_CONNECTOR_CONNECTING,
	BNET_CONNECTOR_ANSWERED, /* one beside another stream: for the connection's owner word, at each tick */
	BNET_CONNECTOR_HELLO_SENT,
};

struct bnet_connector {
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
	int last_error;               /* … as -errno; 0: none has failed */
	bool refused;                 /* in this round, on the pair that the stream had */
	uint64_t failing_since_ms;    /* … and of all since then */
	enum bnet_connector_state state;
	struct bnet_candidate pair; /* being tried */
	int attempts;               /* pairs looked at so far */
	bool unbound;               /* all have failed: now to the peer's first address, by any route */
	uint64_t started_ms;
	uint64_t retries;
	/* The proofs of the last HELLO, of the answer to it, and of the answer to that; with a secret. */
	uint8_t hello[BNET_PROOF_SIZE], challenge[BNET_PROOF_SIZE], confirm[BNET_PROOF_SIZE];
	bool confirmed; /* the last one is there */
	uint32_t got;
	uint8_t bytes[BNET_WIRE_HANDSHAKE_MAX];
};

/* Does it open the connection? */
static inline bool bnet_connector_is_first(const struct bnet_connector *connector)
{
	return connector->index == 0 && !connector->replaces && !connector->beside;
}

/* Is it the replacement of a stream on another pair than that one's? Another host may have that address. */
static inline bool bnet_connector_is_elsewhere(const struct bnet_connector *connector)
{
	return connector->replaces && bnet_candidate_count(connector->conn) > 1 &&
	       (connector->attempts > 1 || connector->unbound || connector->home);
}

/* The present try has failed: tries another pair, or unbound, or later, or gives up. */
void bnet_connector_try_failed(struct bnet_connector *connector, int error, uint64_t now);
/* Closes the socket of its present try. */
void bnet_connector_hang_up(struct bnet_connector *connector);
/* It has failed, and is gone. The failure of the first stream fails the connection, as does that of one that takes the
 * place of a broken one; that of another one is a line in the log. */
void bnet_connector_give_up(struct bnet_connector *connector, int error, const char *why);
/* It is gone. */
void bnet_connector_end(struct bnet_connector *connector);

#endif
