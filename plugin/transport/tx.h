/* SPDX-License-Identifier: MIT
 *
 * The sending direction: streams that can write claim slices of the posted messages, oldest first. The connection's
 * owner only.
 */
#ifndef BNET_TX_H
#define BNET_TX_H

#include <stdbool.h>

#include "transport/conn.h"

/* One pass. True: something was written. */
bool bnet_tx_progress(struct bnet_conn *conn);

#endif
