/* SPDX-License-Identifier: MIT
 *
 * The parts of drive_net: the hub starts one process per rank and forwards packets between them; a rank behaves like
 * NCCL's proxy.
 */
#ifndef BNET_DRIVE_NET_H
#define BNET_DRIVE_NET_H

#include "drive_base.h"

#define NET_MAX_PROCS 4
#define NET_MAX_SIZES 256
#define NET_MAX_CONNECTIONS 512 /* per communicator */

enum net_order { NET_OLDEST, NET_RANDOM, NET_REVERSE };

struct net_options {
	struct drive_source source;
	int procs;
	int communicators;
	int connections; /* of each communicator, spread over the ordered pairs of ranks */
	int messages;    /* of each connection */
	int outstanding;
	enum net_order order;
	uint64_t seed;
	size_t max_size;
	size_t sizes[NET_MAX_SIZES]; /* used in turn; nsizes 0: random sizes */
	int nsizes;
	bool posted_larger;
	bool unmap;
	bool stagger;
	bool together;
	bool verbose;
	int device;
	int merge;    /* number of devices, from the first, to merge; the merged one is used; 0: none */
	int deadline; /* seconds */
	const char *wrap[NET_MAX_PROCS]; /* a command in front of that rank's process, or NULL */
	int rank;                        /* -1: this is the hub */
	int control;                     /* the rank's socket to the hub */
};

enum net_packet_kind { NET_PACKET_HANDLE, NET_PACKET_RESULT };

/* One datagram between a rank and the hub: a connection's handle, or a rank's result. */
struct net_packet {
	int32_t kind;
	int32_t to;
	int32_t communicator;
	int32_t connection;
	unsigned char handle[NCCL_NET_HANDLE_MAXSIZE];
	uint64_t messages; /* received, in a result */
	uint64_t bytes;
	uint64_t retries; /* isend or irecv that asked to be called again */
	double seconds;
};

/* The life of one rank; returns its exit status. */
int net_rank_main(const struct net_options *options);

/* Sender and receiver of a connection, by its number. */
static inline int net_sender(const struct net_options *options, int connection)
{
	return connection % options->procs;
}

static inline int net_receiver(const struct net_options *options, int connection)
{
	int distance = connection / options->procs % (options->procs - 1) + 1;

	return (net_sender(options, connection) + distance) % options->procs;
}

/* Bytes of a message: the same number on both sides. */
size_t net_message_size(const struct net_options *options, int communicator, int connection, uint64_t message);

#endif
