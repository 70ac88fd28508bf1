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
/* Another stream takes the place of the one with the serial start->repairs. start->position: how many bytes of that one
 * are, or will be, received; its sender sends the slices that end behind them again, on the new one. The same answer to
 * the same question, until the new one has carried something. -ESTALE: a later try has taken that place. The owner, who
 * adds the stream then, under the engine's lock. */
int bnet_rx_replace(struct bnet_conn *conn, struct bnet_stream_start *start);

#endif
