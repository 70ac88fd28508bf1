/* SPDX-License-Identifier: MIT
 *
 * See intent.h.
 */
#include "api/intent.h"

#include <stdio.h>
#include <string.h>

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

#define UNDEFINED UINT32_MAX

/* In the order of ncclFunc_t. NCCL and RCCL number later ones differently. */
static const char *const operation_names[] = {
	"Broadcast", "Reduce", "AllGather", "ReduceScatter", "AllReduce", "SendRecv",
	"Send",      "Recv",   "AlltoAll",  "Scatter",       "Gather",
};

static int known(int32_t value)
{
	return value > 0 ? value : 0;
}

static void set_flows(struct bnet_intent_flows *flows, const ncclNetCommAttr_t *attr)
{
	atomic_store_explicit(&flows->peers, known(attr->maxConcurrentPeers), memory_order_relaxed);
	atomic_store_explicit(&flows->flows, known(attr->maxFlowsPerPeer), memory_order_relaxed);
}

void bnet_intent_set(struct bnet_intent *intent, const ncclNetAttr_t *attr)
{
	uint32_t operations = attr->op == UNDEFINED ? 0 : attr->op;

	atomic_store_explicit(&intent->operations, operations, memory_order_relaxed);
	set_flows(&intent->send, &attr->sendCommAttr);
	set_flows(&intent->recv, &attr->recvCommAttr);
}

/* ---- text ---- */

static size_t append(char *text, size_t size, size_t used, const char *separator, const char *part)
{
	int more = used < size ? snprintf(text + used, size - used, "%s%s", separator, part) : 0;

	return used + (size_t)more;
}

void bnet_intent_text(const struct bnet_intent *intent, bool sender, char *text, size_t size)
{
	const struct bnet_intent_flows *own = sender ? &intent->send : &intent->recv;
	uint32_t operations = atomic_load_explicit(&intent->operations, memory_order_relaxed);
	int peers = atomic_load_explicit(&own->peers, memory_order_relaxed);
	int flows = atomic_load_explicit(&own->flows, memory_order_relaxed);
	const char *separator = "; NCCL says: ";
	char numbers[64];
	size_t used = 0;

	text[0] = '\0';
	for (size_t i = 0; i < COUNT(operation_names); i++) {
		if (!(operations & 1u << i))
			continue;
		used = append(text, size, used, separator, operation_names[i]);
		separator = ", ";
	}
	if (!peers || !flows)
		return;
	snprintf(numbers, sizeof(numbers), "up to %d peer%s, %d flow%s each", peers, peers == 1 ? "" : "s", flows,
		 flows == 1 ? "" : "s");
	append(text, size, used, separator, numbers);
}
