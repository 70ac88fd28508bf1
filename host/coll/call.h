/* SPDX-License-Identifier: MIT
 *
 * What a rank believes the group to be doing: which operation, on what. Ranks compare it with each other. Pure.
 */
#ifndef BNET_COLL_CALL_H
#define BNET_COLL_CALL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "bagua_net_host.h"

#define BNET_COLL_ANY (-1)

/* Ranks that run the same operation have the same bytes here. */
struct bnet_coll_call {
	uint64_t number; /* of the operation, counted by the group */
	uint64_t bytes;  /* of the whole buffer, or of one rank's block; 0 where only two ranks know */
	int32_t root;    /* BNET_COLL_ANY: it has none */
	int16_t kind;
	int8_t dtype;  /* BNET_COLL_ANY: none is needed */
	int8_t op;     /* the same */
	int32_t codec; /* 0: none */
	int32_t block; /* of the codec */
};
_Static_assert(sizeof(struct bnet_coll_call) == 32, "no padding: calls are compared as bytes");

/* Neither has a number yet. */
static inline struct bnet_coll_call bnet_coll_copy(int kind, size_t bytes, int root)
{
	return (struct bnet_coll_call){.bytes = bytes,
				       .root = root,
				       .kind = (int16_t)kind,
				       .dtype = BNET_COLL_ANY,
				       .op = BNET_COLL_ANY};
}

static inline struct bnet_coll_call bnet_coll_reduction(int kind, size_t bytes, int root, int dtype, int op)
{
	return (struct bnet_coll_call){.bytes = bytes,
				       .root = root,
				       .kind = (int16_t)kind,
				       .dtype = (int8_t)dtype,
				       .op = (int8_t)op};
}

/* Do all ranks take part? These are counted. */
static inline bool bnet_coll_is_collective(int kind)
{
	return kind >= BNET_COLL_ALLREDUCE && kind <= BNET_COLL_REDUCE_SCATTER_Q;
}

const char *bnet_coll_kind_name(int kind);
/* "broadcast (operation 4 of the group, 4096 bytes, root 0)". */
#define BNET_COLL_CALL_TEXT 192
void bnet_coll_call_text(const struct bnet_coll_call *call, char text[BNET_COLL_CALL_TEXT]);

#endif
