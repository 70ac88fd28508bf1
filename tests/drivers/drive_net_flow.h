/* SPDX-License-Identifier: MIT
 *
 * One end of a connection in drive_net: its posted messages, and the step that advances it.
 */
#ifndef BNET_DRIVE_NET_FLOW_H
#define BNET_DRIVE_NET_FLOW_H

#include <stdatomic.h>

#include "drive_net.h"

enum flow_stage { FLOW_NEW, FLOW_MOVING, FLOW_FINISHED, FLOW_CLOSED };

struct flow_slot {
	void *request; /* NULL: free */
	uint64_t message;
	size_t posted; /* bytes offered to isend or irecv */
};

struct flow {
	const struct net_options *options;
	const struct bnet_client *client;
	int communicator;
	int connection;
	bool sending;
	int peer;
	_Atomic int stage;
	_Atomic bool have_handle;
	unsigned char handle[NCCL_NET_HANDLE_MAXSIZE];
	void *listen_comm;
	void *comm;
	void *mhandle;

	unsigned char *base; /* the slots' buffers, each of stride bytes */
	size_t stride;
	int nslots;
	struct flow_slot *slots;
	int queue[NCCL_NET_MAX_REQUESTS]; /* outstanding slots, oldest first */
	int queued;

	uint64_t random;
	_Atomic uint64_t posted; /* messages */
	_Atomic uint64_t completed;
	uint64_t bytes;
	uint64_t retries;
};

void flow_init(struct flow *flow, const struct net_options *options, const struct bnet_client *client, int communicator,
	       int connection, bool sending);
void flow_free(struct flow *flow);
/* Posts as much as fits, tests in the order of the option, checks completed messages. True once all have completed. */
bool flow_step(struct flow *flow);
/* Prints one line about its state to stderr. Any thread. */
void flow_describe(const struct flow *flow);

#endif
