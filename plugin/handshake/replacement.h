/* SPDX-License-Identifier: MIT
 *
 * A sender's streams that another one takes the place of: how one leaves its connection with the ledger of what it may
 * not have delivered, how long is waited for the other one, and what is said of both. Who tries to open it is in
 * connector.h; why and when, in control/repair.h. Under the engine's lock.
 */
#ifndef BNET_REPLACEMENT_H
#define BNET_REPLACEMENT_H

#include <stdbool.h>
#include <stdint.h>

#include "transport/conn.h"

/* Takes a broken stream out. It is in its connection's list of them from here on. NULL: no memory, and the connection
 * has failed. The owner. */
struct bnet_stream *bnet_replacement_retire(struct bnet_conn *conn, int index);
/* … one that is not broken, by its serial, if it is silent for so many looks; 0: however it is. NULL: it is gone, or
 * has been heard meanwhile. The owner. */
struct bnet_stream *bnet_replacement_retire_living(struct bnet_conn *conn, uint32_t serial, uint32_t silent);

/* Is a stream left that is not broken, nor was reset and not asked since? */
bool bnet_replacement_any_living(const struct bnet_conn *conn);
/* None has been left for BAGUA_NET_KEEPALIVE. */
bool bnet_replacement_has_waited(struct bnet_conn *conn);
/* Another stream is in the place of one that broke then. home: on this NIC, which had failed; NULL: wherever. */
void bnet_replacement_done(const struct bnet_conn *conn, uint64_t broken_us, const struct bnet_nic *home);
/* None will be: the connection fails. */
void bnet_replacement_failed(struct bnet_conn *conn, const char *why);

#endif
