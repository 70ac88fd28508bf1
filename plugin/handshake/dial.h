/* SPDX-License-Identifier: MIT
 *
 * From a pair of addresses to a connected socket: a connector tries one candidate pair after the other (candidate.h),
 * at last any route that the routing table has, and again later where that is worth it (failure.h). The control thread,
 * or under the engine's lock.
 */
#ifndef BNET_DIAL_H
#define BNET_DIAL_H

#include "handshake/connector_state.h"

/* The next usable pair, or unbound when none is left. */
void bnet_dial_choose(struct bnet_connector *connector, uint64_t now);
/* Tries the pair that was chosen. */
void bnet_dial_try(struct bnet_connector *connector, uint64_t now);
/* The socket is connected, or has failed. */
void bnet_dial_connected(struct bnet_connector *connector, uint64_t now);
/* Is the socket the control thread's to watch already, or is there none? */
bool bnet_dial_is_watched(const struct bnet_connector *connector);
/* The control thread is to know when it is connected, or when the WELCOME comes. */
void bnet_dial_watch(struct bnet_connector *connector, uint64_t now);

#endif
