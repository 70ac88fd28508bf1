/* SPDX-License-Identifier: MIT
 *
 * The parts of the host-memory collectives, inside. A group belongs to one thread at a time; only `aborted` is written
 * by others.
 *
 *   coll.c            the group: create, listen, destroy; what every operation does first and last
 *   coll_log.c        the logger that networks are given, and their last warning
 *   coll_wait.c       polling without result: yield, time out, abort
 *   coll_connect.c    one connection to and from every peer
 *   coll_pipe.c       messages in flight: what of the collectives calls isend, irecv and test
 *   coll_ring.c       allreduce, reduce-scatter and all-gather around a ring
 *   coll_allreduce.c  the choice of an algorithm, and allreduce in few steps
 *   coll_broadcast.c  tree and chain
 *   coll_root.c       reduce, gather and scatter: one rank has or gets everything
 *   coll_p2p.c        send, receive, all-to-all, barrier
 *   mail.h            tagged messages between any two ranks, outside the order of the collectives; calls the network itself
 */
#ifndef BNET_COLL_H
#define BNET_COLL_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "bagua_net.h"
#include "nccl/client.h"

/* Messages in flight per connection and direction: as many as NCCL keeps (NCCL_STEPS), so every network takes them. */
#define BNET_COLL_DEPTH 8
/* Largest message. Large enough that a message's fixed cost (10 µs or so) is a few percent of its time on the wire at
 * 2 GB/s, small enough that a chunk is reduced and sent on while it is in the second-level cache. */
#define BNET_COLL_CHUNK ((size_t)512 * 1024)

/* ---- a group ---- */

/* What an operation reads and writes. A region is registered with a connection when that first carries part of it. */
enum { BNET_COLL_SCRATCH, BNET_COLL_SEND, BNET_COLL_RECV, BNET_COLL_NREGIONS };

struct bnet_coll_region {
	char *base;
	size_t bytes;
};

/* One direction of the connection with a peer. */
struct bnet_coll_link {
	void *comm;
	void *mhandles[BNET_COLL_NREGIONS];
	bool registered[BNET_COLL_NREGIONS];
};

struct bnet_coll_peer {
	struct bnet_coll_link send;
	struct bnet_coll_link recv;
	void *listen;                         /* where this peer, and no other, connects to */
	char handle[NCCL_NET_HANDLE_MAXSIZE]; /* networks keep the state of a connect in it */
};

struct bnet_coll {
	struct bnet_client client;
	int dev;
	int rank;
	int nranks;
	bool connected;
	atomic_bool aborted;
	int failed;           /* 0, or what the operation that broke the group returned */
	int64_t timeout_ns;   /* 0: none */
	int64_t usual_wait_ns; /* for a peer's message: see struct bnet_coll_wait */
	const char *operation;
	unsigned warnings;    /* bnet_coll_warnings() when the operation began */
	struct bnet_coll_region regions[BNET_COLL_NREGIONS];
	struct bnet_coll_peer *peers;
	char error[768];
};

/* Says what went wrong; returns rc. */
__attribute__((format(printf, 3, 4))) int bnet_coll_fail(struct bnet_coll *coll, int rc, const char *fmt, ...);
/* The same for a result of the network: adds the peer, the operation, the code and the network's own last warning. */
int bnet_coll_net_fail(struct bnet_coll *coll, ncclResult_t result, int peer, const char *call);

/* Around every operation. Begin refuses a group that is unusable, names the operation and its buffers (NULL, 0: none);
 * end takes the result of what came between: it deregisters the buffers, and after an error closes every connection,
 * so that no network touches the buffers any more and the peers learn of it. Returns rc. */
int bnet_coll_begin(struct bnet_coll *coll, const char *operation, const void *send, size_t send_bytes, void *recv,
		    size_t recv_bytes);
int bnet_coll_end(struct bnet_coll *coll, int rc);
/* The connections with one peer, or the one to it, of which nothing is registered any more. */
void bnet_coll_close_peer(struct bnet_coll *coll, int rank);
void bnet_coll_close_send(struct bnet_coll *coll, int rank);
/* At least so many bytes that outlive nothing but the current operation, aligned to a page. NULL: see the error. */
char *bnet_coll_scratch(struct bnet_coll *coll, size_t bytes);
/* 0, or -EINVAL: count elements of dtype for each of nranks ranks do not fit into memory, or there is no such type. */
int bnet_coll_check_count(struct bnet_coll *coll, size_t count, int dtype);
int bnet_coll_check_op(struct bnet_coll *coll, int dtype, int op);
int bnet_coll_check_root(struct bnet_coll *coll, const char *operation, int root);
/* Not with oneself. */
int bnet_coll_check_peer(struct bnet_coll *coll, int peer);

/* ---- coll_log.c ---- */

void bnet_coll_logger(ncclDebugLogLevel level, unsigned long flags, const char *file, int line, const char *fmt, ...)
	__attribute__((format(printf, 5, 6)));
/* This thread's warnings are dropped, or no longer: around a call whose failure is none. */
void bnet_coll_mute(bool mute);
/* How many warnings there were so far, in this process. */
unsigned bnet_coll_warnings(void);
/* Copies this thread's warnings after the first `since`, joined, as many as fit; without one, the last of any thread;
 * "" if there was none. */
void bnet_coll_last_warning(unsigned since, char *out, size_t size);

/* ---- coll_wait.c ---- */

struct bnet_coll_wait {
	unsigned idle;         /* fruitless polls in a row */
	long nap_ns;           /* the last nap in that row; 0: none yet */
	int64_t since;         /* when the clock was first read in that row; 0: not yet */
	int64_t timeout_ns;    /* 0: none */
	unsigned nap_after;    /* fruitless polls before the first nap, where waits are short; 0: never, yield only */
	int64_t usual_ns;      /* how long waits for a peer have been of late, the shortest left out */
};

int64_t bnet_coll_now(void);
/* After a poll that moved something. */
void bnet_coll_wait_reset(struct bnet_coll_wait *wait);
/* The same, and the row that is over was a wait for a peer: it counts for how long they usually are. */
void bnet_coll_wait_over(struct bnet_coll_wait *wait);
/* After a poll that moved nothing: ns to nap, which grow, or 0: only yield. Where long rows are usual it comes soon to
 * that. */
long bnet_coll_wait_fruitless(struct bnet_coll_wait *wait);
/* The same, and does so: 0, -ETIMEDOUT or -ECANCELED. */
int bnet_coll_wait_idle(struct bnet_coll *coll, struct bnet_coll_wait *wait);

/* ---- coll_connect.c ---- */

/* Keeps what the peers' rows say of this rank. From here on the group counts as connected. */
int bnet_coll_take_rows(struct bnet_coll *coll, const void *rows);
/* One look, that never waits, at the connection to or from a peer: NULL as long as it is not there. */
int bnet_coll_try_connect(struct bnet_coll *coll, int rank, bool *progress);
int bnet_coll_try_accept(struct bnet_coll *coll, int rank, bool *progress);

/* ---- coll_pipe.c ---- */

struct bnet_coll_piece {
	char *data;
	size_t bytes; /* 0: no message; the peer's piece of the same number is empty too */
};

struct bnet_coll_pipe;

/* One direction of a pipe: messages 0 … count-1 with one peer, posted in order, complete in order. */
struct bnet_coll_half {
	int peer; /* -1: none, and count is 0 */
	size_t count;
	size_t posted;
	size_t done;
	/* Where message i is. Called right before it is posted, again if the network has no room. */
	struct bnet_coll_piece (*piece)(const struct bnet_coll_pipe *pipe, size_t i);
	/* NULL: always. What message i depends on must not depend on a message after i, on any rank. */
	bool (*may_post)(const struct bnet_coll_pipe *pipe, size_t i);
	struct {
		void *request; /* NULL: an empty piece */
		size_t bytes;
	} flight[BNET_COLL_DEPTH];
};

/* Messages to one peer and from one peer that depend on each other. */
struct bnet_coll_pipe {
	struct bnet_coll_half send;
	struct bnet_coll_half recv;
	void (*received)(const struct bnet_coll_pipe *pipe, size_t i); /* NULL, or what to do with message i */
	const void *op;                                           /* for the functions above */
};

/* Runs pipes to their end, at the same time; no two of them may share a peer and a direction. */
int bnet_coll_pipes_run(struct bnet_coll *coll, struct bnet_coll_pipe *const *pipes, int npipes);
/* The same for more pipes than run at a time: wherever one is at its end, next makes another one in its place, until it
 * has no more to make. Each of pipes is all zeros, or the first one in its place. */
int bnet_coll_pipes_run_on(struct bnet_coll *coll, struct bnet_coll_pipe *const *pipes, int npipes,
		      bool (*next)(void *op, int place),
		      void *op);

/* A pipe that carries one buffer each way, in chunks. */
struct bnet_coll_flat {
	struct bnet_coll_pipe pipe;
	const char *send;
	size_t send_bytes;
	char *recv;
	size_t recv_bytes;
	char *stage; /* NULL, or BNET_COLL_DEPTH chunks to send from, because both buffers are the same memory */
};

void bnet_coll_flat_init(struct bnet_coll_flat *flat, const void *send, size_t send_bytes, int send_peer, void *recv,
		    size_t recv_bytes, int recv_peer, char *stage);
/* One flat pipe, run. */
int bnet_coll_exchange(struct bnet_coll *coll, const void *send, size_t send_bytes, int send_peer, void *recv,
		  size_t recv_bytes, int recv_peer);

/* ---- coll_ring.c ---- */

int bnet_coll_ring_allreduce(struct bnet_coll *coll, const void *send, void *recv, size_t count, int dtype, int op);

static inline size_t bnet_coll_min(size_t a, size_t b)
{
	return a < b ? a : b;
}

static inline size_t bnet_coll_max(size_t a, size_t b)
{
	return a > b ? a : b;
}

static inline size_t bnet_coll_round_up(size_t value, size_t unit)
{
	return (value + unit - 1) / unit * unit;
}

/* The rank `step` places further around the ring; step may be negative, down to -nranks. */
static inline int bnet_coll_ring_rank(const struct bnet_coll *coll, int step)
{
	return (coll->rank + step + coll->nranks) % coll->nranks;
}

#endif
