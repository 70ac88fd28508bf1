/* SPDX-License-Identifier: MIT
 *
 * The listening side: listen objects, and inbound connections, which come by the listeners (listener.h), are accepted and have sent
 * neither HELLO nor QUESTION. One that sends anything else, or nothing for ten seconds, is dropped with a line in the
 * log; it costs one descriptor and 700 bytes. At most 1024 are kept, and at most an eighth of the process's
 * descriptors. The control thread, or under the engine's lock.
 */
#ifndef BNET_ACCEPTOR_H
#define BNET_ACCEPTOR_H

#include <stdint.h>

#include "common/list.h"
#include "base/table.h"
#include "device/device.h"
#include "engine/engine.h"
#include "wire/wire.h"

/* The object that NCCL's listen returns: a token under which peers may connect. */
struct bnet_listen {
	struct bnet_node node;
	struct bnet_table_entry by_token;
	struct bnet_node queue; /* of bnet_conn.setup.pending: after their handshake, before accept */
	const void *context;
	int traffic_class; /* of the streams that arrive by it */
	const struct bnet_device *dev;
	struct sockaddr_storage addr; /* of the handle: the first member's that can be listened on */
	uint8_t token[BNET_TOKEN_SIZE];
	uint64_t started_ms; /* of the first accept that found nothing */
	uint64_t warn_at_ms;
};

/* Peers may connect by its token from now on, on every member of its device. Fills `addr`. -errno if none of them can
 * be listened on. */
int bnet_acceptor_listen(struct bnet_listen *listen);
void bnet_acceptor_unlisten(struct bnet_listen *listen);
/* A listener is readable: accepts some connections. */
void bnet_acceptor_ready(int nic);
/* For a caller that waits for one, so that it need not wait for the control thread as well: accepts some. Callers that
 * look all the time do so instead of the control thread, until none has looked for BNET_TICK_MS. */
void bnet_acceptor_look(const struct bnet_listen *listen);
/* An inbound connection is readable: reads its HELLO or QUESTION, no further, and answers it. */
void bnet_acceptor_hello(struct bnet_watch *watch);
/* why: the line in the log; NULL: none. */
void bnet_acceptor_drop(struct bnet_watch *watch, const char *why);
void bnet_acceptor_tick(uint64_t now);

#endif
