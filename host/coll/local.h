/* SPDX-License-Identifier: MIT
 *
 * Collectives among the ranks of one host, as rounds through the memory that they share. The group's own thread.
 *
 * Ranks and roots are members here, and blocks one for each member: see round.h. All are called between
 * bnet_coll_begin and bnet_coll_end. Buffers may be the same where those of the public functions may.
 */
#ifndef BNET_COLL_LOCAL_H
#define BNET_COLL_LOCAL_H

#include "coll/blocks.h"
#include "coll/coll.h"

/* A send or recv that only the root has, or lacks, is not used on the others. */
int bnet_coll_local_allreduce(struct bnet_coll *coll, const char *send, char *recv, size_t bytes, int dtype, int op);
int bnet_coll_local_reduce_scatter(struct bnet_coll *coll, const struct bnet_coll_blocks *from, char *recv, int dtype,
				   int op);
int bnet_coll_local_reduce(struct bnet_coll *coll, const char *send, char *recv, size_t bytes, int dtype, int op,
			   int root);
int bnet_coll_local_all_gather(struct bnet_coll *coll, const char *send, const struct bnet_coll_blocks *to);
int bnet_coll_local_broadcast(struct bnet_coll *coll, char *buf, size_t bytes, int root);
int bnet_coll_local_gather(struct bnet_coll *coll, const char *send, size_t bytes, const struct bnet_coll_blocks *to,
			   int root);
int bnet_coll_local_scatter(struct bnet_coll *coll, const struct bnet_coll_blocks *from, char *recv, size_t bytes,
			    int root);
int bnet_coll_local_barrier(struct bnet_coll *coll);

#endif
