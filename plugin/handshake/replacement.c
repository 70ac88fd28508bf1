/* SPDX-License-Identifier: MIT
 *
 * See replacement.h.
 */
#include "handshake/replacement.h"

#include <errno.h>
#include <string.h>

#include "common/clock.h"
#include "base/counters.h"
#include "base/log.h"
#include "base/socket.h"
#include "engine/engine.h"
#include "transport/retention.h"
#include "transport/tx.h"

struct bnet_stream *bnet_replacement_retire(struct bnet_conn *conn, int index)
{
	struct bnet_stream *stream = bnet_conn_take_stream(conn, index);
	int rc;

	/* It may count as lost only here. */
	bnet_socket_reset(stream->fd);
	bnet_socket_close(stream->fd);
	stream->broken_us = bnet_now_us() - (uint64_t)stream->delivery.silent * BNET_DELIVERY_LOOK_MS * 1000;
	bnet_list_add(&conn->broken, &stream->node);
	rc = bnet_retention_bury(conn, stream);
	bnet_engine_posted(&conn->work); /* its caller may not come again */
	if (rc == 0)
		return stream;
	bnet_conn_fail(conn, rc, "no memory to repair a stream to %s", conn->peer);
	return NULL;
}

struct bnet_stream *bnet_replacement_retire_living(struct bnet_conn *conn, uint32_t serial, uint32_t silent)
{
	if (atomic_load(&conn->error))
		return NULL;
	for (int i = 0; i < conn->nstreams; i++) {
		struct bnet_stream *stream = conn->streams[i];

		if (stream->serial != serial || stream->broken || stream->delivery.silent < silent)
			continue;
		bnet_tx_break(conn, stream, silent ? -ETIMEDOUT : -ECONNABORTED);
		return bnet_replacement_retire(conn, i);
	}
	return NULL;
}

bool bnet_replacement_any_living(const struct bnet_conn *conn)
{
	for (int i = 0; i < conn->nstreams; i++)
		if (!conn->streams[i]->broken && !bnet_socket_is_left(conn->streams[i]->fd))
			return true;
	return false;
}

bool bnet_replacement_has_waited(struct bnet_conn *conn)
{
	const uint64_t patience_us = (uint64_t)conn->config->keepalive * 1000000, now = bnet_now_us();
	uint64_t since = atomic_load_explicit(&conn->alone_us, memory_order_relaxed);

	if (bnet_replacement_any_living(conn))
		since = 0;
	else if (since == 0)
		since = now;
	atomic_store_explicit(&conn->alone_us, since, memory_order_relaxed);
	return since && patience_us && now - since >= patience_us;
}

void bnet_replacement_done(const struct bnet_conn *conn, uint64_t broken_us, const struct bnet_nic *home)
{
	if (home) {
		bnet_info(NCCL_NET, "NET/BaguaNet: a stream to %s goes through %s (%s) again", conn->peer, home->name,
			  home->address);
		return;
	}
	bnet_count(repairs, 1);
	bnet_info(NCCL_NET,
		  "NET/BaguaNet: a stream to %s broke (%s). After %llu ms another one is in its place, and nothing is "
		  "lost",
		  conn->peer, strerror(-conn->error_of), (unsigned long long)(bnet_now_us() - broken_us) / 1000);
}

void bnet_replacement_failed(struct bnet_conn *conn, const char *why)
{
	const bool owned = bnet_conn_try_own_for(conn, BNET_OWN_TRIES);

	atomic_store_explicit(&conn->mute, !owned, memory_order_relaxed);
	bnet_conn_fail(conn, conn->error_of,
		       "the connection to %s broke: %s (sends that were outstanding: %u), and another stream did not "
		       "come up: %s. The remote process has ended or the network dropped the connection; look at "
		       "the other rank's log first",
		       conn->peer, strerror(-conn->error_of), bnet_conn_outstanding(conn), why);
	if (owned)
		bnet_conn_disown(conn);
}
