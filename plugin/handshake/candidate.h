/* SPDX-License-Identifier: MIT
 *
 * Candidate pairs: a pair is one of this end's NICs and one of the peer's addresses, and the way of a stream. The
 * streams of a connection take the NICs round-robin, and each NIC the peer's addresses. A pair without a route is not
 * tried for a while, which is noted for the whole path, so that not every connection has to find out. Under the
 * engine's lock.
 */
#ifndef BNET_CANDIDATE_H
#define BNET_CANDIDATE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

#include "device/device.h"
#include "transport/conn.h"

struct bnet_candidate {
	const struct bnet_nic *nic;
	const struct sockaddr_storage *peer; /* the connection's */
};

/* A path's pairs without a route. When the table is full, the oldest entry is overwritten. */
#define BNET_FAILED_PAIRS 32
struct bnet_failed_pair {
	const struct bnet_nic *nic;
	struct sockaddr_storage addr;
	uint64_t pause_ms;      /* the last one */
	uint64_t until_ms;      /* it ends */
	uint64_t only_until_ms; /* … for a connection that has no other pair, or knows of none yet */
};

struct bnet_failed_pairs {
	struct bnet_failed_pair rows[BNET_FAILED_PAIRS];
	uint32_t added;
};

/* Pure. The NIC and the address that a stream tries first (attempt 0) and then; nnics * npeers attempts try all
 * pairs. */
void bnet_candidate_pick(int stream, int attempt, int nnics, int npeers, int *nic, int *peer);

int bnet_candidate_count(const struct bnet_conn *conn);
struct bnet_candidate bnet_candidate_of(const struct bnet_conn *conn, int stream, int attempt);
/* The address families agree, and the pair has not failed lately. */
bool bnet_candidate_usable(const struct bnet_conn *conn, const struct bnet_candidate *pair, uint64_t now_ms);
/* It had failed, and may be tried again. */
bool bnet_candidate_is_due(const struct bnet_conn *conn, const struct bnet_candidate *pair, uint64_t now_ms);
void bnet_candidate_failed(struct bnet_conn *conn, const struct bnet_candidate *pair, uint64_t now_ms);
/* The address to connect to: the peer's, a link-local one with the scope of this NIC. */
struct sockaddr_storage bnet_candidate_target(const struct bnet_candidate *pair);
/* The interface to bind to, so that the packets leave through it; NULL: the kernel's routes decide, as for a receiver's
 * questions, since to find out whether their target is local takes a system call that may wait. */
const char *bnet_candidate_interface(const struct bnet_conn *conn, const struct bnet_candidate *pair);

/* Is the peer that listens there, reached from this device, this machine? A system call: not under the lock. */
bool bnet_peer_is_local(const struct bnet_device *dev, const struct sockaddr_storage *addr);
/* The first address is the handle's. All of a peer's addresses are this machine's, or none. */
void bnet_peer_addresses_start(struct bnet_conn *conn, const struct sockaddr_storage *addr, bool local);
/* Further ones, from WELCOME. */
void bnet_peer_addresses_add(struct bnet_conn *conn, const struct sockaddr_storage *addrs, int count);
/* The number of streams with which every NIC of both ends has one. */
int bnet_candidate_min_streams(const struct bnet_conn *conn);

#endif
