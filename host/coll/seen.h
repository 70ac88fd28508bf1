/* SPDX-License-Identifier: MIT
 *
 * What this process's groups have done, by kind of operation, for `bagua-net top --operations`. Any thread, at any time.
 */
#ifndef BNET_COLL_SEEN_H
#define BNET_COLL_SEEN_H

#include <stdbool.h>
#include <stdint.h>

#include "common/look.h"

void bnet_coll_seen_begin(int kind);
/* waited_ns: of its time, that in which nothing moved. */
void bnet_coll_seen_end(int kind, bool failed, uint64_t bytes, int64_t ns, int64_t waited_ns);
bnet_operation_reader bnet_coll_seen_read;

#endif
