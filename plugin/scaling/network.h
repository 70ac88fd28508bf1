/* SPDX-License-Identifier: MIT
 *
 * What a network as a whole carries while one path measures itself. A path that gains by more streams may only have
 * taken from others that share its bottleneck: then the devices at its ends carry no more than before. Pure.
 */
#ifndef BNET_NETWORK_H
#define BNET_NETWORK_H

#include <stdbool.h>
#include <stdint.h>

/* Counters at one end of a window. */
struct bnet_mark {
	uint64_t now_us;   /* this host's clock */
	uint64_t sent;     /* bytes that this end's device has sent, for all its users; 0: not known */
	uint64_t at_us;    /* the peer's clock */
	uint64_t received; /* bytes that the peer's device has received; 0: not known */
};

/* Bytes/s between two marks; 0: not known. */
struct bnet_network {
	uint64_t sent, received;
};

/* own: bytes/s of the path itself in that time. A counter that shows less than the path alone has carried is updated
 * too seldom, and tells nothing. */
struct bnet_network bnet_network_between(const struct bnet_mark *from, const struct bnet_mark *to, uint64_t own);

/* What one of two levels carried, by the path itself and by the network. */
struct bnet_carried {
	uint64_t own; /* bytes/s */
	struct bnet_network network;
};

/* Is what the more streams of a path carry beyond the fewer taken from others? It is if less than `percent` of it shows
 * at either end; where others carry little there is little to take, and a third of that suffices. */
bool bnet_is_others_share(const struct bnet_carried *fewer, const struct bnet_carried *more, uint64_t percent);

#endif
