/* SPDX-License-Identifier: MIT
 *
 * A connection: one direction of one pair of ranks, a ring of requests and up to 64 streams.
 *
 * Who touches what:
 *   - The caller's progress thread posts requests (isend, irecv), tests them, and frees their slots.
 *   - The *owner* moves data: whoever holds `owner`. That is the caller's thread inside isend, irecv and test, a worker
 *     (worker.h), or the control thread when the caller has not come by for a while. It is taken by exchange and never
 *     waited for on the data path; deregMr and close wait for it, since a pass never blocks.
 *   - The control thread adds streams (`streams[i]` first, then `nstreams`), under the engine's lock, and takes them
 *     out, under the lock and as the owner.
 *   - A request's slot passes from the poster to the owner by `posted`, and back by the request's `done`.
 */
#ifndef BNET_CONN_H
#define BNET_CONN_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

#include "transport/slice.h"
#include "base/config.h"
#include "device/device.h"
#include "transport/estimator.h"
#include "base/list.h"
#include "handshake/candidate.h"
#include "wire/wire.h"
#include "transport/zerocopy.h"

/* NCCL keeps at most 32 requests of a connection outstanding. Twice that leaves room for requests that are tested out
 * of order; beyond it isend and irecv answer "later". */
#define BNET_RING 64
#define BNET_MAX_STREAMS 64
/* A message up to this is moved by its caller: a hand-over would take longer. */
#define BNET_LIGHT 32768
/* What a receive call may fetch beyond the payload it is for: the next header and, of a small message, everything. */
#define BNET_AHEAD 4096

struct bnet_conn;
struct bnet_path;
struct bnet_worker;

/* A memory region, as regMr promised it to stay mapped. */
struct bnet_mr {
	uintptr_t base;
	uint64_t size;
	struct bnet_conn *conn;
};

struct bnet_request {
	struct bnet_conn *conn;
	char *data;
	uint64_t capacity;         /* as posted; of a send, its size */
	_Atomic uint64_t size;     /* of a receive: what the sender says, valid once known */
	_Atomic uint64_t number;
	_Atomic uint64_t left;     /* of a send: bytes that have not been sent; 1 for an empty message */
	_Atomic bool known;        /* of a receive: its first slice has come */
	_Atomic bool done;         /* released by the owner, acquired by test */
	_Atomic bool busy;         /* from post to the test that says done; the poster's, read by deregMr */
	struct bnet_reassembly map;       /* of a receive */
};

struct bnet_stream {
	int fd;
	int index;
	struct bnet_conn *conn;
	/* out: the slice being written, header included; nothing when out_left is 0 and out_head_left is 0 */
	uint8_t out_header[BNET_WIRE_DATA_HEADER];
	size_t out_header_left;
	const char *out_data;
	uint64_t out_left;
	uint64_t out_length;
	uint64_t out_later;        /* bytes of it that count as sent when the kernel lets go of them */
	struct bnet_request *out_request;
	bool writable;             /* the last send found room; set again by the connection's epoll */
	/* in: the slice being read */
	uint8_t ahead[BNET_AHEAD];
	uint32_t ahead_from, ahead_to;
	uint32_t seen;             /* bytes before ahead_to that are used and still in the kernel, from the first one on */
	bool alone;                /* the last receive call brought one small frame, whole */
	struct bnet_wire_data in_data;
	struct bnet_request *in_request; /* NULL: the payload is not wanted (a duplicate, an unknown frame) */
	uint64_t in_left;
	bool in_payload;           /* a header has been read, in_left bytes are to come */
	bool stalled;              /* the next header is for a message that is not posted yet */
	bool readable;             /* not known to be empty */
	bool hangup;               /* the kernel says that its end is near: read up to it */
	bool ended;                /* the peer has closed it, after a whole frame */
	bool used;                 /* it has carried a frame */
	uint64_t greeted;          /* bytes that it had received when it joined: the greeting */
	struct bnet_estimator flow;     /* of a sender */
	/* what it holds, sent or not, that is not acknowledged: the owner's account of a sender's stream */
	uint64_t held;             /* bytes, at */
	uint64_t held_ns;
	uint64_t asked_ns;         /* when the kernel was asked last */
	struct bnet_zerocopy_calls zero;
};

/* How a connection comes to be; the engine's, under its lock. */
struct bnet_setup {
	const void *context;           /* whose it is, for finalize */
	int npeers;                    /* a sender's: the peer's listeners, the handle's first */
	struct bnet_peer peers[BNET_ADDRESSES];
	int traffic_class;             /* of every stream; BNET_NO_TRAFFIC_CLASS: the system's */
	bool ready;                    /* the first stream is greeted */
	bool handed_out;               /* connect or accept has returned it */
	int most;                      /* streams that both ends allow */
	int wanted;                    /* streams that were opened, or tried */
	int dialing;                   /* streams that are being opened */
	uint64_t started_ms;
	uint64_t warn_at_ms;
	struct bnet_node accepted;     /* a receiver's: in its listen object's queue until accept */
};

struct bnet_conn {
	struct bnet_node node;     /* in the engine's list of connections */
	bool sender;
	uint64_t id;
	uint8_t token[BNET_TOKEN_SIZE];
	const struct bnet_device *dev;
	const struct bnet_config *config;
	char peer[BNET_ADDRESS_TEXT];
	struct bnet_setup setup;

	struct bnet_worker *worker;    /* moves its data; NULL: its caller does */
	_Atomic bool owner;
	_Atomic uint64_t posted;       /* requests so far: the number of the next one */
	_Atomic uint32_t outstanding;  /* posted and not done: work for the owner */
	_Atomic bool light;            /* what is posted is so little that its caller moves it, worker or not */
	_Atomic uint32_t passes;       /* of any owner; the control thread sees whether the caller comes by */
	_Atomic bool reap;             /* a receiver's: a stream other than the first has ended */
	_Atomic int error;             /* 0 or -errno: the connection is unusable; first one wins */
	uint32_t passes_seen;          /* the control thread's, as is what follows */
	uint32_t passes_sampled;
	bool rested;                   /* when the streams were last due to be read, there was nothing to do */
	struct bnet_path *path;        /* of a sender */

	_Atomic int nstreams;
	_Atomic int level;             /* how many of them, from the first, may claim slices; of a sender */
	struct bnet_stream *streams[BNET_MAX_STREAMS];
	int epoll;                     /* all streams, edge-triggered, once there is a second one or a worker; else -1 */
	bool watched;                  /* a worker sleeps on `epoll` */
	uint32_t quiet;                /* passes since a stream other than the first had something */

	/* sender */
	struct bnet_claim claim;
	uint64_t claimed_bytes;        /* the owner's, as is what follows */
	bool held_back;                /* a stream with room was not given what there was */
	struct bnet_zerocopy zero;
	_Atomic uint64_t posted_bytes;
	struct bnet_request ring[BNET_RING];
};

struct bnet_conn *bnet_conn_new(bool sender, const struct bnet_device *dev, const struct bnet_config *config);
/* Frees what is left; the streams' descriptors have been taken away or are closed here. */
void bnet_conn_free(struct bnet_conn *conn);
/* Adds a connected, greeted socket; it belongs to the connection from here on. Under the engine's lock. -ENOSPC,
 * -ENOMEM, or epoll's -errno, and then the socket stays the caller's. */
int bnet_conn_add_stream(struct bnet_conn *conn, int fd);

/* Takes a stream out, any but the first; the last one gets its place. Its descriptor is the caller's then. The owner
 * only, under the engine's lock. */
int bnet_conn_drop_stream(struct bnet_conn *conn, int index);

/* Is something outstanding? A request may be done before its poster has come to counting it: then the count is
 * negative for a moment. */
static inline bool bnet_conn_has_work(const struct bnet_conn *conn)
{
	return (int32_t)atomic_load(&conn->outstanding) > 0;
}

/* Does whoever calls make passes? */
static inline bool bnet_conn_is_inline(const struct bnet_conn *conn)
{
	return !conn->worker || atomic_load_explicit(&conn->light, memory_order_relaxed);
}

/* Streams that may claim slices. The others rest: they end what they have begun. */
static inline int bnet_conn_active(const struct bnet_conn *conn)
{
	int level = atomic_load_explicit(&conn->level, memory_order_relaxed);
	int streams = atomic_load_explicit(&conn->nstreams, memory_order_acquire);

	return streams < level ? streams : level;
}

bool bnet_conn_try_own(struct bnet_conn *conn);
void bnet_conn_own(struct bnet_conn *conn); /* waits: only in deregMr, in close, and when all is lost */
void bnet_conn_disown(struct bnet_conn *conn);
/* One pass over everything that is posted; the owner only. True: something moved. */
bool bnet_conn_progress(struct bnet_conn *conn);
/* The owner gives the connection up; says why in one line the first time. */
__attribute__((format(printf, 3, 4))) void bnet_conn_fail(struct bnet_conn *conn, int error, const char *why, ...);

/* The caller's side. NULL: no slot is free, ask again later. */
struct bnet_request *bnet_conn_post(struct bnet_conn *conn, void *data, uint64_t size);
/* 1: done, and the slot is free again; 0: not yet; -errno: the connection has failed. */
int bnet_conn_test(struct bnet_request *request, uint64_t *size);
/* Forgets every request that uses the region: no thread touches its memory afterwards. A connection that loses an
 * unfinished request so can carry nothing further. */
void bnet_conn_quiesce(struct bnet_conn *conn, const struct bnet_mr *mr);

/* The slot of a message number; NULL when that message is not posted, or is over. */
struct bnet_request *bnet_conn_find(struct bnet_conn *conn, uint64_t message);

/* The two directions (tx.c, rx.c); the owner only. */
bool bnet_tx_progress(struct bnet_conn *conn);
/* So many bytes of a send are done, or 1 of an empty one; with the last ones it is. */
void bnet_request_sent(struct bnet_conn *conn, struct bnet_request *request, uint64_t bytes);
bool bnet_rx_progress(struct bnet_conn *conn);
/* A stalled stream may go on, now that one more message is posted. */
bool bnet_rx_waiting(const struct bnet_conn *conn);
/* Asks the kernel which streams have something; marks them. */
void bnet_conn_poll(struct bnet_conn *conn);

#endif
