/* SPDX-License-Identifier: MIT
 *
 * The objects that NCCL's listen returns: a token under which peers may connect, on every member of a device
 * (listener.h). Under the engine's lock.
 */
#ifndef BNET_LISTEN_H
#define BNET_LISTEN_H

#include <stdbool.h>
#include <stdint.h>

#include "base/table.h"
#include "common/list.h"
#include "device/device.h"
#include "engine/engine.h"
#include "wire/wire.h"

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
	bool refused;       /* one who has its token, and not the secret, has tried since then */
	uint64_t warned_ms; /* … and a person was told then */
};

/* Peers may connect by its token from now on. Fills `addr`. -errno if no member of its device can be listened on. */
int bnet_listen_start(struct bnet_listen *listen);
/* No longer. */
void bnet_listen_stop(struct bnet_listen *listen);
/* NULL: no listen object has this token, or it was closed. */
struct bnet_listen *bnet_listen_find(const uint8_t token[BNET_TOKEN_SIZE]);
#endif
