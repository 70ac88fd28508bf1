/* SPDX-License-Identifier: MIT
 *
 * What a network as a whole carries while one path measures itself. A path that gains by more streams may only have
 * taken from others that share its bottleneck: then the devices at its ends carry no more than before. Pure.
 */
#ifndef BNET_NETWORK_H
#define BNET_NETWORK_H

#include <stdbool.h>
#include <stdint.h>

/* Of a device at one end, in bytes/s over the same time. */
struct bnet_end {
	uint64_t own; /* of the path */
	uint64_t all; /* of all users; 0: not known */
};

/* What one of two levels carried. */
struct bnet_carried {
	uint64_t own; /* by the path in the time in which it worked, bytes/s */
	struct bnet_end sent, received;
};

/* own and all: bytes in that time. A counter that shows less than the path alone has carried is updated too seldom, and
 * tells nothing. */
struct bnet_end bnet_end_of(uint64_t own, uint64_t all, uint64_t us);

/* Is what the more streams of a path carry beyond the fewer taken from others? It is if less than `percent` of it shows
 * at either end; where others carry little there is little to take, and a third of that suffices. */
bool bnet_is_others_share(const struct bnet_carried *fewer, const struct bnet_carried *more, uint64_t percent);

#endif
