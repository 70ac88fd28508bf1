/* SPDX-License-Identifier: MIT
 *
 * See region.h.
 */
#include "transport/region.h"

#include <errno.h>

#include "transport/zerocopy.h"

static bool overlaps(const struct bnet_request *request, const struct bnet_mr *mr)
{
	uintptr_t data = (uintptr_t)request->data;

	return data < mr->base + mr->size && mr->base < data + request->capacity;
}

void bnet_region_quiesce(const struct bnet_mr *mr)
{
	struct bnet_conn *conn = mr->conn;

	bnet_conn_own(conn);
	for (int i = 0; i < BNET_RING; i++) {
		struct bnet_request *request = &conn->ring[i];

		if (atomic_load_explicit(&request->busy, memory_order_acquire) &&
		    !atomic_load_explicit(&request->done, memory_order_acquire) && overlaps(request, mr))
			bnet_conn_fail(conn, -ECANCELED, "deregistered under an unfinished request");
	}
	if (atomic_load_explicit(&conn->error, memory_order_relaxed))
		bnet_zerocopy_release(conn);
	bnet_conn_disown(conn);
}
