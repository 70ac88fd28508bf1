/* SPDX-License-Identifier: MIT
 *
 * Element-wise reductions on host memory. Pure: any thread may call them. bnet_coll_reduce_local, bnet_coll_scale_local
 * and bnet_coll_dtype_size are public.
 */
#ifndef BNET_COLL_REDUCE_H
#define BNET_COLL_REDUCE_H

#include <stdbool.h>
#include <stddef.h>

#include "bagua_net_host.h"

/* Does this element type have bitwise reductions? */
bool bnet_coll_is_integer(int dtype);
/* The last step of a reduction over n ranks: divides if op is BNET_AVG. */
void bnet_coll_average(void *buf, size_t count, int dtype, int op, int n);

#endif
