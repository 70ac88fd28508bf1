/* SPDX-License-Identifier: MIT
 *
 * For tests of sockets that have not said who they are.
 */
#ifndef BNET_INBOUND_H
#define BNET_INBOUND_H

#include "engine/engine.h"

static inline int inbound_connections(void)
{
	int count;

	bnet_engine_lock();
	count = bnet_engine.ninbound;
	bnet_engine_unlock();
	return count;
}

#endif
