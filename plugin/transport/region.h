/* SPDX-License-Identifier: MIT
 *
 * Memory regions, as regMr registers them. Nothing is pinned: a region only says which requests a deregMr concerns.
 */
#ifndef BNET_REGION_H
#define BNET_REGION_H

#include <stdint.h>

#include "transport/conn.h"

/* Mapped from regMr to deregMr. */
struct bnet_mr {
	uintptr_t base;
	uint64_t size;
	struct bnet_conn *conn;
};

/* Fails the connection if an unfinished request uses the region; no thread touches its memory afterwards. Waits for
 * the owner word. */
void bnet_region_quiesce(const struct bnet_mr *mr);

#endif
