/* SPDX-License-Identifier: MIT
 *
 * Bytes that senders have written and that have not arrived, also those of requests that are done: nobody else looks at
 * their streams again. The control thread only, under the engine's lock.
 */
#ifndef BNET_UNDELIVERED_H
#define BNET_UNDELIVERED_H

#include <stdbool.h>

/* Looks at the streams of all senders. A stream of which bytes are lost is repaired, or fails its connection. Beside a
 * silent one another is opened, which takes its place if the peer answers. One that is silent for BAGUA_NET_KEEPALIVE
 * seconds is given up if its siblings are heard, and fails its connection otherwise. True: some bytes have not arrived
 * yet. */
bool bnet_undelivered_look(void);

#endif
