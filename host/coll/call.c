/* SPDX-License-Identifier: MIT
 *
 * See call.h.
 */
#include "coll/call.h"

#include <inttypes.h>
#include <stdio.h>

static const char *name_in(const char *const *names, size_t count, int index)
{
	return index >= 0 && (size_t)index < count ? names[index] : "unknown";
}

#define NAME_IN(names, index) name_in(names, sizeof(names) / sizeof((names)[0]), index)

const char *bnet_coll_kind_name(int kind)
{
	static const char *const names[] = {
		[BNET_COLL_CONNECT] = "connect",
		[BNET_COLL_ALLREDUCE] = "allreduce",
		[BNET_COLL_REDUCE_SCATTER] = "reduce_scatter",
		[BNET_COLL_ALL_GATHER] = "all_gather",
		[BNET_COLL_BROADCAST] = "broadcast",
		[BNET_COLL_ALL_TO_ALL] = "all_to_all",
		[BNET_COLL_ALL_TO_ALLV] = "all_to_allv",
		[BNET_COLL_REDUCE] = "reduce",
		[BNET_COLL_GATHER] = "gather",
		[BNET_COLL_SCATTER] = "scatter",
		[BNET_COLL_BARRIER] = "barrier",
		[BNET_COLL_ALLREDUCE_Q] = "allreduce_q",
		[BNET_COLL_REDUCE_SCATTER_Q] = "reduce_scatter_q",
		[BNET_COLL_SEND] = "send",
		[BNET_COLL_RECV] = "recv",
		[BNET_COLL_SENDRECV] = "sendrecv",
	};

	return NAME_IN(names, kind);
}

static const char *dtype_name(int dtype)
{
	static const char *const names[] = {"int8",    "uint8",    "int32",   "int64",
					    "float16", "bfloat16", "float32", "float64"};

	return NAME_IN(names, dtype);
}

static const char *op_name(int op)
{
	static const char *const names[] = {"sum",     "product",     "minimum",    "maximum",
					    "average", "bitwise and", "bitwise or", "bitwise xor"};

	return NAME_IN(names, op);
}

static const char *codec_name(int codec)
{
	static const char *const names[] = {[BNET_CODEC_U8] = "8", [BNET_CODEC_U4] = "4"};

	return NAME_IN(names, codec);
}

void bnet_coll_call_text(const struct bnet_coll_call *call, char text[BNET_COLL_CALL_TEXT])
{
	char root[32] = "", reduction[64] = "", codec[64] = "";

	if (call->root != BNET_COLL_ANY)
		snprintf(root, sizeof(root), ", root %" PRId32, call->root);
	if (call->op != BNET_COLL_ANY)
		snprintf(reduction, sizeof(reduction), ", %s of %s", op_name(call->op), dtype_name(call->dtype));
	if (call->codec != 0)
		snprintf(codec, sizeof(codec), " in %s bits, blocks of %" PRId32, codec_name(call->codec), call->block);
	snprintf(text, BNET_COLL_CALL_TEXT, "%s (operation %" PRIu64 " of the group, %" PRIu64 " bytes%s%s%s)",
		 bnet_coll_kind_name(call->kind), call->number, call->bytes, reduction, codec, root);
}
