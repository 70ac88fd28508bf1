/* SPDX-License-Identifier: MIT
 *
 * A group of ranks, and what every operation on host memory does first and last. A group belongs to one thread at a
 * time; other threads write only `aborted`.
 *
 * The files of this folder, lowest first; each includes only files before it:
 *
 *   size.h            arithmetic on sizes
 *   blocks.h          a buffer of one block for each rank
 *   subgroup.h        the ranks among which data moves
 *   call.{c,h}        what a rank believes the group to be doing
 *   seen.{c,h}        what the process's groups have done
 *   host.{c,h}        the ranks of this host, and the memory that they share
 *   log.{c,h}         the logger that a network is given, and the warnings it has logged
 *   reduce.{c,h}      element-wise reductions
 *   coll.{c,h}        the group: create, listen, destroy; begin and end of an operation; checks of arguments
 *   wait.{c,h}        polling without result: yield, nap, time out; whether the operation is still wanted
 *   round.{c,h}       rounds among the ranks of one host, through shared memory
 *   direct.{c,h}      blocks read out of another rank's memory
 *   local.{c,h}       the collectives as rounds
 *   exchange.{c,h}    all-to-all in rounds
 *   check.{c,h}       comparison of calls before the payload
 *   pipe.{c,h}        messages in flight: the only caller of isend, irecv and test among the collectives
 *   transfer.{c,h}    a pipe that moves one buffer each way
 *   ring.{c,h}        allreduce, reduce-scatter and all-gather around a ring
 *   allreduce.{c,h}   the choice of an algorithm, and allreduce in few steps
 *   distance.{c,h}    how far the ranks are from each other, and how large a chunk is for it
 *   connect.{c,h}     one connection to and one from every peer
 *   broadcast.{c,h}   tree and chain
 *   root.{c,h}        reduce, gather and scatter: one rank has or gets everything
 *   all_to_all.{c,h}  all-to-all, barrier
 *   p2p.c             send and receive: public functions
 *   quantized.{c,h}   allreduce and reduce-scatter of codes
 *   hierarchy.{c,h}   allreduce, reduce-scatter and all-gather through shared memory and between hosts
 *   operation.c       every other public operation: checks, and the way that it goes
 *
 * Tagged messages (tagged/) use the group and its connections, but no pipes.
 */
#ifndef BNET_COLL_H
#define BNET_COLL_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "bagua_net_host.h"
#include "coll/call.h"
#include "coll/subgroup.h"
#include "coll/host.h"
#include "common/client.h"
#include "common/look.h"

/* Messages in flight per connection and direction: as many as NCCL keeps (NCCL_STEPS), so every network takes them. */
#define BNET_COLL_DEPTH 8
/* Largest message, on short paths. Large enough that a message's fixed cost (10 µs or so) is a few percent of its time
 * on the wire at 2 GB/s, small enough that a chunk is reduced and sent on while it is in the second-level cache. */
#define BNET_COLL_CHUNK ((size_t)512 * 1024)

/* ---- a group ---- */

/* The memory that an operation reads and writes. A region is registered with a connection when the connection first
 * carries a part of it. */
enum {
	BNET_COLL_REGION_CALLS,
	BNET_COLL_REGION_SCRATCH,
	BNET_COLL_REGION_SEND,
	BNET_COLL_REGION_RECV,
	BNET_COLL_REGIONS
};

struct bnet_coll_region {
	char *base;
	size_t bytes;
};

/* One direction of the connection with a peer. */
struct bnet_coll_link {
	void *comm;
	void *mhandles[BNET_COLL_REGIONS];
	bool registered[BNET_COLL_REGIONS];
	uint64_t checked;           /* number of the last operation whose call was posted */
	void *request;              /* of that call, as long as it is under way */
	struct bnet_coll_call call; /* sent or received */
};

struct bnet_coll_peer {
	struct bnet_coll_link send;
	struct bnet_coll_link recv;
	void *listen;                         /* only this peer connects here */
	char handle[NCCL_NET_HANDLE_MAXSIZE]; /* networks keep the state of a connect in it */
	int64_t looked;                       /* when the network was last asked about that */
};

struct bnet_coll {
	struct bnet_client client;
	const struct bnet_look *look; /* NULL: a network that tells no more */
	int dev;
	bool checks; /* the call of every operation, with every peer that it exchanges payload with */
	int rank;
	int nranks;
	bool connected;
	size_t chunk; /* largest message of a collective, in bytes: the same on all ranks, see distance.h */
	atomic_bool aborted;
	int (*interrupted)(void); /* NULL, or asked during an operation, as wait.h says: not 0 ends it */
	int64_t asked_ns;         /* when that was, or when the operation began */
	unsigned steps;           /* since the clock was last read for it: see wait.h */
	int failed;               /* 0, or the result of the operation that broke the group */
	int64_t timeout_ns;       /* 0: none */
	int64_t usual_wait_ns;    /* for a peer's message: usual_ns of struct bnet_coll_wait */
	int64_t contended_until;  /* other threads compute on this one's processor: see wait.c */
	const char *operation;
	struct bnet_coll_call call; /* the last one that began */
	int64_t began_ns;           /* 0: it is over, or not counted */
	int seen;                   /* its number for coll/seen.h */
	int64_t waited_ns;          /* in it, while nothing moved; not the waits that are over within microseconds */
	struct bnet_coll_host host;
	unsigned warnings; /* bnet_coll_warnings() when the operation began */
	struct bnet_coll_region regions[BNET_COLL_REGIONS];
	struct bnet_coll_peer *peers;
	char error[768];
};

/* The rank `step` places further around the ring; step may be negative, down to -nranks. */
static inline int bnet_coll_ring_rank(const struct bnet_coll *coll, int step)
{
	return (coll->rank + step + coll->nranks) % coll->nranks;
}

static inline struct bnet_coll_subgroup bnet_coll_all_ranks(const struct bnet_coll *coll)
{
	return (struct bnet_coll_subgroup){.index = coll->rank, .count = coll->nranks};
}

/* ---- errors ---- */

/* Sets the group's error text; returns rc. */
__attribute__((format(printf, 3, 4))) int bnet_coll_fail(struct bnet_coll *coll, int rc, const char *fmt, ...);
/* The same for a result of the network: adds the peer, the operation, the code and the network's last warnings. */
int bnet_coll_net_fail(struct bnet_coll *coll, ncclResult_t result, int peer, const char *call);

/* ---- around an operation ---- */

/* Do all ranks share one host's memory? */
static inline bool bnet_coll_is_local(const struct bnet_coll *coll)
{
	return coll->host.shared && coll->host.count == coll->nranks;
}

/* Refuses a group that is unusable; names the operation, which gets its number here, and its buffers (NULL, 0:
 * none). */
int bnet_coll_begin(struct bnet_coll *coll, struct bnet_coll_call call, struct bnet_coll_region send,
		    struct bnet_coll_region recv);
/* Takes the operation's result, deregisters its buffers and returns rc. After an error it closes every connection: the
 * networks stop touching the buffers, and the peers notice. */
int bnet_coll_end(struct bnet_coll *coll, int rc);
/* At least `bytes` bytes until the end of the current operation, aligned to a page. Every call gives the same memory,
 * unless it asks for more than the calls before. NULL: see the group's error. */
char *bnet_coll_scratch(struct bnet_coll *coll, size_t bytes);
/* The handle of memory within one of the group's regions, which is registered with the connection when that first
 * carries a part of it. An error is the network's. */
ncclResult_t bnet_coll_mhandle(struct bnet_coll *coll, struct bnet_coll_link *link, const char *data, size_t bytes,
			       void **mhandle);
/* Closes the connections with one peer, or only the one to it. Nothing may be registered with them any more. */
void bnet_coll_close_peer(struct bnet_coll *coll, int rank);
void bnet_coll_close_send(struct bnet_coll *coll, int rank);

/* ---- arguments: 0, or -EINVAL without harm to the group ---- */

/* coll is an object, dtype is known, and count elements for each of nranks ranks fit into memory. Called first: a group
 * that has failed keeps its error, and its result is returned. */
int bnet_coll_check_count(struct bnet_coll *coll, size_t count, int dtype);
int bnet_coll_check_op(struct bnet_coll *coll, int dtype, int op);
int bnet_coll_check_root(struct bnet_coll *coll, const char *operation, int root);
/* A rank is no peer of itself. */
int bnet_coll_check_peer(struct bnet_coll *coll, int peer);

#endif
