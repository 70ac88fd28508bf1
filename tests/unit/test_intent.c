/* SPDX-License-Identifier: MIT
 *
 * What NCCL says of its operations: the text of a connection's log line.
 */
#include "api/intent.h"

#include <string.h>

#include "check.h"

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))
#define UNDEFINED (-1)

/* Operations by the numbers of NCCL's ncclFunc_t. */
enum { ALL_GATHER = 1 << 2, ALL_REDUCE = 1 << 4, SEND = 1 << 6, RECV = 1 << 7, LL = 1, LL128 = 2, SIMPLE = 4 };

static ncclNetAttr_t attributes(int operations, int protocols, int peers, int flows)
{
	return (ncclNetAttr_t){
		.sendCommAttr = {.maxConcurrentPeers = peers, .maxFlowsPerPeer = flows},
		.recvCommAttr = {.maxConcurrentPeers = 1, .maxFlowsPerPeer = 1},
		.op = (uint32_t)operations,
		.algo = (uint32_t)UNDEFINED,
		.proto = (uint32_t)protocols,
	};
}

static const struct {
	int operations, peers, flows;
	const char *text;
} texts[] = {
	{UNDEFINED, UNDEFINED, UNDEFINED, ""},
	{0, 0, 0, ""},
	{ALL_REDUCE, UNDEFINED, UNDEFINED, "; NCCL says: AllReduce"},
	{ALL_REDUCE, 4, 2, "; NCCL says: AllReduce, up to 4 peers, 2 flows each"},
	{SEND | RECV, 1, 1, "; NCCL says: Send, Recv, up to 1 peer, 1 flow each"},
	{UNDEFINED, 2, 2, "; NCCL says: up to 2 peers, 2 flows each"},
	{1 << 10 | 1 << 11, UNDEFINED, UNDEFINED, "; NCCL says: Gather"},
	{1 << 30, UNDEFINED, 2, ""},
};

static void test_texts(void)
{
	for (size_t i = 0; i < COUNT(texts); i++) {
		ncclNetAttr_t attr = attributes(texts[i].operations, UNDEFINED, texts[i].peers, texts[i].flows);
		struct bnet_intent intent = {0};
		char text[256];

		bnet_intent_set(&intent, &attr);
		bnet_intent_text(&intent, true, text, sizeof(text));
		check_str(text, texts[i].text);
	}
}

static void test_the_other_direction(void)
{
	ncclNetAttr_t attr = attributes(ALL_GATHER, UNDEFINED, 4, 2);
	struct bnet_intent intent = {0};
	char text[256];

	bnet_intent_set(&intent, &attr);
	bnet_intent_text(&intent, false, text, sizeof(text));
	check_str(text, "; NCCL says: AllGather, up to 1 peer, 1 flow each");
}

static void test_a_text_that_does_not_fit(void)
{
	ncclNetAttr_t attr = attributes(0x7fff, UNDEFINED, 4, 2);
	struct bnet_intent intent = {0};
	char text[40];

	bnet_intent_set(&intent, &attr);
	bnet_intent_text(&intent, true, text, sizeof(text));
	check_str(text, "; NCCL says: Broadcast, Reduce, AllGath");
}

int main(void)
{
	test_texts();
	test_the_other_direction();
	test_a_text_that_does_not_fit();
	return 0;
}
