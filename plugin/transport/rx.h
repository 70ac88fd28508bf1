/* SPDX-License-Identifier: MIT
 *
 * The receiving direction: each stream is a sequence of frames, and a slice goes where its header says, straight from
 * the kernel except for the bytes that the read-ahead caught. The connection's owner only.
 */
#ifndef BNET_RX_H
#define BNET_RX_H

#include <stdbool.h>

#include "transport/conn.h"

/* One pass. True: something was read. */
bool bnet_rx_progress(struct bnet_conn *conn);
/* A stalled stream may go on, now that another message is posted. */
bool bnet_rx_has_stalled(const struct bnet_conn *conn);

#endif
