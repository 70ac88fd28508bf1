/* SPDX-License-Identifier: MIT
 *
 * Which way a stream goes: a pair is one of this end's NICs and one of the peer's addresses. The streams of a
 * connection take the NICs in turn, and each NIC the peer's addresses. A pair without a way from one to the other rests
 * for a while, which is noted for the whole path, so that not every connection has to find out. Under the engine's
 * lock.
 */
#ifndef BNET_PAIR_H
#define BNET_PAIR_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

#include "device/device.h"

struct bnet_conn;

/* An address at which the peer listens. */
struct bnet_peer {
	struct sockaddr_storage addr;
	bool local; /* it is this machine's own */
};

struct bnet_candidate {
	const struct bnet_nic *nic;
	const struct bnet_peer *peer; /* the connection's */
};

/* Pairs without a way, by NIC and host. When there is no room, the oldest is forgotten. */
#define BNET_RESTING_PAIRS 32
struct bnet_resting {
	struct {
		const struct bnet_nic *nic;
		struct sockaddr_storage addr;
		uint64_t until_ms;
	} rows[BNET_RESTING_PAIRS];
	uint32_t added;
};

/* Pure. The NIC and the address that a stream tries first (attempt 0), and next if it must. In nnics * npeers
 * attempts it has tried all pairs. */
void bnet_candidate_pick(int stream, int attempt, int nnics, int npeers, int *nic, int *peer);

int bnet_candidate_count(const struct bnet_conn *conn);
struct bnet_candidate bnet_candidate_of(const struct bnet_conn *conn, int stream, int attempt);
/* The address families agree, and the pair does not rest. */
bool bnet_candidate_usable(const struct bnet_conn *conn, const struct bnet_candidate *pair, uint64_t now_ms);
void bnet_candidate_rest(struct bnet_conn *conn, const struct bnet_candidate *pair, uint64_t now_ms);
/* Where to connect to: the peer's address, of a link-local one this NIC's side. */
struct sockaddr_storage bnet_candidate_target(const struct bnet_candidate *pair);

/* The same host, whatever the port and the scope. */
bool bnet_same_host(const struct sockaddr_storage *a, const struct sockaddr_storage *b);
/* The first address is the handle's. */
void bnet_peer_addresses_start(struct bnet_conn *conn, const struct sockaddr_storage *addr);
/* The peer has told of further ones. */
void bnet_peer_addresses_add(struct bnet_conn *conn, const struct sockaddr_storage *addrs, int count);
/* So many streams are needed for every NIC of both ends to have one. */
int bnet_candidate_min_streams(const struct bnet_conn *conn);

#endif
