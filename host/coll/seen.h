/* SPDX-License-Identifier: MIT
 *
 * What this process's groups have done, by kind of operation, for `bagua-net top --operations`. Any thread, at any
 * time.
 */
#ifndef BNET_COLL_SEEN_H
#define BNET_COLL_SEEN_H

#include <stdbool.h>
#include <stdint.h>

#include "common/look.h"

/* Returns a number for bnet_coll_seen_end, which each has once. */
int bnet_coll_seen_begin(int kind);
/* One that failed is counted as such, and its time and bytes are not. waited_ns: of ns, that in which nothing moved. */
void bnet_coll_seen_end(int number, int kind, bool failed, uint64_t bytes, int64_t ns, int64_t waited_ns);
bnet_operation_reader bnet_coll_seen_read;

#endif
