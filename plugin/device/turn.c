/* SPDX-License-Identifier: MIT
 *
 * See turn.h.
 */
#include "device/turn.h"

#include "device/abstract.h"

int bnet_turn_take(const struct bnet_device *dev)
{
	/* Devices that share their first member share its turn. */
	return bnet_abstract_bind("trial", dev->members[0]->ifindex, 0);
}
