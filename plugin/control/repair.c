/* SPDX-License-Identifier: MIT
 *
 * See repair.h.
 */
#include "control/repair.h"

#include <errno.h>
#include <string.h>

#include "base/log.h"
#include "base/socket.h"
#include "common/clock.h"
#include "engine/engine.h"
#include "handshake/connector.h"
#include "transport/tx.h"

static void replace(struct bnet_conn *conn, int index)
{
	struct bnet_stream *stream = bnet_conn_take_stream(conn, index);
	int rc;

	/* It may count as lost only here. */
	bnet_socket_reset(stream->fd);
	bnet_socket_close(stream->fd);
	stream->broken_us = bnet_now_us();
	bnet_list_add(&conn->broken, &stream->node);
	rc = bnet_tx_bury(conn, stream);
	bnet_engine_posted(&conn->work); /* its caller may not come again */
	if (rc == 0)
		rc = bnet_connector_replace(conn, stream);
	if (rc < 0)
		bnet_conn_fail(conn, rc, "no memory to repair a stream to %s", conn->peer);
}

void bnet_repair_begin(struct bnet_conn *conn)
{
	for (int i = conn->nstreams - 1; i >= 0 && !atomic_load(&conn->error); i--)
		if (conn->streams[i]->broken)
			replace(conn, i);
}
