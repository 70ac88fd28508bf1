/* SPDX-License-Identifier: MIT
 *
 * See repair.h.
 */
#include "control/repair.h"

#include <errno.h>

#include "common/clock.h"
#include "engine/engine.h"
#include "handshake/connector.h"
#include "handshake/replacement.h"

void bnet_repair_begin(struct bnet_conn *conn)
{
	for (int i = conn->nstreams - 1; i >= 0 && !atomic_load(&conn->error); i--) {
		struct bnet_stream *stream = conn->streams[i]->broken ? bnet_replacement_retire(conn, i) : NULL;

		if (stream && bnet_connector_replace(conn, stream) < 0)
			bnet_conn_fail(conn, -ENOMEM, "no memory to repair a stream to %s", conn->peer);
	}
}

/* ---- a receiver that waits ---- */

static void fail(struct bnet_conn *conn, const char *why)
{
	if (!bnet_conn_try_own_for(conn, BNET_OWN_TRIES))
		return;
	bnet_conn_fail(conn, -ECONNRESET,
		       "the connection from %s broke: it was reset (receives that were outstanding: %u), and %s; look "
		       "at the other rank's log first",
		       conn->peer, bnet_conn_outstanding(conn), why);
	bnet_conn_disown(conn);
}

/* error: 0, the sender is still there, and will come. */
static void heard(struct bnet_conn *conn, int error)
{
	struct bnet_asking *asking = &conn->asking;
	const uint64_t now = bnet_now_ms();

	if (atomic_load(&conn->error) || !atomic_load(&conn->alone_us))
		return;
	/* It answers; where there is no route, the next pair of addresses may have one. */
	if (error == 0 || error == -EPROTO || error == -ECONNRESET)
		asking->refused_since_ms = 0;
	if (error == -ECONNREFUSED && asking->refused_since_ms == 0)
		asking->refused_since_ms = now;
	else if (error == -ECONNREFUSED && now - asking->refused_since_ms >= BNET_REPAIR_REFUSED_MS)
		fail(conn, "nothing listens any more where its sender did: that process has ended");
	if (error == 0)
		atomic_store(&conn->alone_us, bnet_now_us());
	if (error == -ENOENT)
		fail(conn, "its sender has given it up");
}

bool bnet_repair_ask(struct bnet_conn *conn)
{
	struct bnet_asking *asking = &conn->asking;
	int rc;

	if (!atomic_load_explicit(&conn->alone_us, memory_order_relaxed)) {
		asking->refused_since_ms = 0;
		return false;
	}
	if (asking->pending)
		return true;
	rc = bnet_question_ask_sender(conn, asking->times++);
	asking->pending = rc == 0;
	if (rc < 0)
		heard(conn, rc);
	return true;
}

void bnet_repair_answered(const struct bnet_answer *answer)
{
	answer->conn->asking.pending = false;
	heard(answer->conn, answer->error);
}
