/* SPDX-License-Identifier: MIT
 *
 * Bytes that senders have written and that have not arrived, also those of requests that are done: nobody else looks at
 * their streams again. The control thread only, under the engine's lock.
 */
#ifndef BNET_UNDELIVERED_H
#define BNET_UNDELIVERED_H

#include <stdbool.h>

/* The interval of looks, in which bnet_delivery_look counts. */
#define BNET_UNDELIVERED_MS 1000

/* Looks at the streams of all senders. A connection of which bytes are lost fails, and so does one whose peer's host
 * is silent for BAGUA_NET_KEEPALIVE seconds while bytes are missing. True: some bytes have not arrived yet. */
bool bnet_undelivered_look(void);

#endif
