/* SPDX-License-Identifier: MIT
 *
 * A connection: one direction between two ranks, with a ring of requests and up to 64 streams. This header is its data;
 * the functions here make and end it, add and drop streams, and pass the owner word. Requests are handled in request.h,
 * bytes are moved in progress.h.
 *
 * Ownership:
 *   - The caller's progress thread posts requests (isend, irecv), tests them, and frees their slots.
 *   - The *owner* moves data: the thread that holds `owner`. That is the caller's thread inside isend, irecv and
 *     test, a worker (worker.h), or the control thread when the caller has been away for a while. The word is taken
 *     by exchange and never waited for on the data path; deregMr and close wait for it, since a pass never blocks.
 *   - The control thread adds streams (`streams[i]` first, then `nstreams`), under the engine's lock, and drops them
 *     under the lock and as the owner.
 *   - A request's slot passes from the poster to the owner by `posted`, and back by the request's `done`.
 */
#ifndef BNET_CONN_H
#define BNET_CONN_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

#include "base/address.h"
#include "base/config.h"
#include "base/counters.h"
#include "common/abi.h"
#include "common/list.h"
#include "base/table.h"
#include "base/worklist.h"
#include "device/device.h"
#include "transport/admission.h"
#include "transport/delivery.h"
#include "transport/estimator.h"
#include "transport/ledger.h"
#include "transport/readiness.h"
#include "transport/seal.h"
#include "transport/reassembly.h"
#include "transport/slice.h"
#include "transport/zerocopy_state.h"
#include "wire/wire.h"

/* NCCL keeps at most 32 requests of a connection outstanding. Twice that leaves room for requests that are tested out
 * of order; beyond it isend and irecv answer "later". */
#define BNET_RING 64
#define BNET_MAX_STREAMS 64
/* A receiver has others as well: each that was reset, until its last bytes are read. Those may belong to messages
 * that are not posted, and what the receiver waits for may come on one that has no place yet: too few places are a
 * deadlock. */
#define BNET_MOST_PLACES 4096
/* What a receive call may fetch beyond the payload it is for: the next header and, of a small message, everything. A
 * message of 4 KiB, of which a longer one than this would take two calls, fits with its header. */
#define BNET_READ_AHEAD (BNET_UNIT + BNET_WIRE_DATA_HEADER)

/* Of a connection without a living stream: a peer that refuses for so long has ended. */
#define BNET_REPAIR_REFUSED_MS 500

struct bnet_conn;
struct bnet_path;
struct bnet_failed_pairs;
struct bnet_worker;

struct bnet_request {
	struct bnet_conn *conn;
	char *data;
	uint64_t capacity;     /* as posted; of a send, its size */
	_Atomic uint64_t size; /* of a receive: the sender's size, valid once known */
	_Atomic uint64_t number;
	uint64_t left;                     /* of a send: bytes that have not been sent; 1 for an empty message */
	_Atomic bool known;                /* of a receive: its first slice has arrived */
	_Atomic bool done;                 /* released by the owner, acquired by test */
	_Atomic bool busy;                 /* from post to the test that completes it; the poster's, read by deregMr */
	uint64_t posted_us;                /* 0: it is neither timed nor recorded */
	void *profiled;                    /* its event, a profiler's; NULL: none. The poster's */
	struct bnet_reassembly reassembly; /* of a receive */
};

/* The slice that a stream is writing. */
struct bnet_outgoing {
	bool active; /* there is one */
	uint8_t header[BNET_WIRE_DATA_HEADER];
	size_t header_left;
	const char *data;
	uint64_t left;
	uint64_t length;
	bool pinned;                  /* some of its bytes went without a copy */
	struct bnet_request *request; /* NULL: it is done, and the bytes are in the copy */
	void *copy;                   /* the frame, kept until it is acknowledged; NULL: none was made */
	uint64_t began_us;            /* 0: it is not recorded */
};

/* What the next bytes of a stream belong to. */
enum bnet_incoming_state {
	BNET_INCOMING_HEADER,  /* a frame's header */
	BNET_INCOMING_PAYLOAD, /* a payload of which `left` bytes are missing */
	BNET_INCOMING_STALLED, /* a header was read whose message is not posted yet; the bytes stay in the kernel */
	BNET_INCOMING_ENDED,   /* nothing: the peer closed the stream after a whole frame */
};

/* Bytes that were fetched and not parsed: from … to of bytes. */
struct bnet_read_ahead {
	uint8_t bytes[BNET_READ_AHEAD];
	uint32_t from, to;
	/* Of a small frame that arrives alone the bytes are only peeked at first (rx.c). */
	uint32_t peeked;        /* bytes before `to` that are parsed and still in the kernel */
	bool expect_lone_frame; /* the last receive call brought one small, whole frame */
};

struct bnet_incoming {
	enum bnet_incoming_state state;
	struct bnet_read_ahead ahead;
	struct bnet_wire_data data;
	struct bnet_request *request; /* NULL: the payload is skipped (a duplicate, an unknown frame) */
	uint8_t *to;                  /* the payload's place; NULL: none */
	uint64_t length, left;        /* … and its bytes */
	const uint8_t *frame; /* of an encrypted stream: one that was verified, and waits for its message; or NULL */
	size_t frame_size;
	bool used;                /* the stream has carried a frame */
	uint64_t handshake_bytes; /* received before the stream joined */
	uint64_t taken;           /* bytes that were taken out of the socket */
	uint64_t limit;           /* … and no more than this: the rest comes on the stream that takes its place */
	uint32_t repairs;         /* the serial of the stream whose place it took; 0: of none */
	uint32_t awaits;          /* one that repairs this serial, and has not joined yet; 0: none */
	uint64_t began_us;        /* the slice; 0: it is not recorded */
};

struct bnet_stream {
	int fd;
	int index;
	bool writable; /* the last send found room; set again by the connection's epoll */
	bool readable; /* not known to be empty */
	bool hangup;   /* the kernel reported the end: read up to it */
	/* It was reset, or counts as lost: it moves nothing more, and is dropped or repaired. The owner writes it. */
	_Atomic bool broken;
	bool timed_out; /* a receiver's that is broken: by no reset, its kernel's probes had no answer */
	uint32_t serial;
	int dialed;             /* of a sender: its number when it was opened, by which it has its pair of addresses */
	bool away;              /* … which failed then, so that it has another one */
	struct bnet_seal *seal; /* NULL: it is not encrypted */
	struct bnet_outgoing out;
	struct bnet_incoming in;
	struct bnet_estimator estimator; /* of a sender */
	struct bnet_inflight inflight;   /* of a sender; the owner's account */
	struct bnet_delivery delivery;   /* of a sender */
	uint64_t message;                /* of a sender: the last one that it has carried a slice of */
	bool bbr;                        /* of a sender: its congestion control; the control thread's */
	bool landed; /* of a sender: all was acknowledged when last looked at, and nothing written since */
	struct bnet_zerocopy_calls zerocopy;
	struct bnet_ledger ledger; /* of a sender */
	/* of a sender's stream that has taken the place of a broken one */
	struct bnet_stream *replaces; /* until it has sent again what that one's ledger holds */
	bool settled;                 /* that ledger holds nothing more that has arrived */
	uint64_t position;            /* bytes of it that have; so of a receiver's */
	/* of a broken one, after it was dropped; under the engine's lock */
	struct bnet_node node; /* in its connection's list */
	uint64_t broken_us;
	int row; /* as in struct bnet_seen */
};

/* How a stream joins its connection. */
struct bnet_stream_start {
	uint32_t serial;
	int dialed;
	bool away;
	struct bnet_stream *replaces; /* a sender's */
	uint64_t position;
	uint32_t repairs;       /* a receiver's */
	struct bnet_seal *seal; /* the stream's from here on; NULL: it is not encrypted */
};

/* The establishing of a connection; under the engine's lock. */
struct bnet_setup {
	const void *context; /* its communicator, for finalize */
	int npeers; /* the addresses at which the peer listens: a sender's, the handle's first; a receiver's one */
	struct sockaddr_storage peers[BNET_ADDRESSES];
	bool local;                             /* a sender's: they are this machine's */
	struct bnet_failed_pairs *failed_pairs; /* its path's candidate pairs without a route */
	int traffic_class;                      /* of every stream; BNET_NO_TRAFFIC_CLASS: the system's */
	bool ready;                             /* the first stream's handshake is complete */
	bool handed_out;                        /* connect or accept has returned it */
	bool closed;                            /* … and close has taken it back */
	int most;                               /* streams that both ends allow */
	int share;                              /* … and the device's quota; 0: not divided yet */
	int peer_keepalive;          /* a sender's: the peer's BAGUA_NET_KEEPALIVE in seconds; 0: it sends no probes */
	int wanted;                  /* streams that were opened, or tried */
	int enough;                  /* an idle connection opens no more */
	int connecting;              /* streams that are being opened */
	uint64_t caught_up_us;       /* when missing streams were last opened outside a change of the level, … */
	uint64_t catch_up_after_us;  /* … and how soon again; more each time that none can be opened; 0: one was */
	struct bnet_node connectors; /* … by these */
	struct bnet_node missing;    /* in the engine's list of connections that lack streams */
	uint64_t started_ms;
	uint64_t warn_at_ms;
	int last_error;            /* of the first stream's tries; 0: none has failed */
	uint64_t refused_since_ms; /* each of them since then was refused; 0: the last one was not */
	int looks;                 /* of the control thread since an attempt's caller has asked for it */
	/* until it is handed out: a receiver's in its listen object's queue, a sender's in the engine's list of
	 * attempts; after it was closed, a sender's in that of senders that owe something */
	struct bnet_node pending;
	uint64_t until_ms; /* it is in that list at most so long */
};

/* How a connection shares its device with others (scaling/quota.h). The control thread's. */
struct bnet_company {
	uint64_t posted;   /* at the last look */
	uint32_t looks;    /* in a row that found it in use; 0: it was not */
	uint32_t together; /* connections in use when this one is, in 1/64; 0: not known */
	uint32_t learnt;   /* the quota's tick in which that was learnt last, … */
	uint32_t lasting;  /* … and in which three looks in a row found it in use; 0: never */
	int early;         /* streams that it has before it has moved */
	bool waits;        /* it opens no more streams until it has a share */
};

/* How large a sender's messages are, on average, at the last reading that saw any. Under the engine's lock. */
struct bnet_sizes {
	uint64_t posted, bytes; /* at the last reading */
	bool large;
};

/* Of a receiver that asks whether its sender is still there (control/repair.h). Under the engine's lock. */
struct bnet_asking {
	bool pending;
	int times;
	uint64_t refused_since_ms; /* each time since then was refused; 0: the last one was not */
};

/* Time in which a receiver's bytes arrived, and the bytes that its device received in that time. */
struct bnet_metered {
	uint64_t moved_us, received;
};

/* Of a receiver whose peer has asked for these (handshake/meter.h). Under the engine's lock. */
struct bnet_meter {
	struct bnet_node node; /* in the engine's list of them */
	uint64_t until_us;
	uint32_t rtt_us;
	uint64_t moves; /* bnet_conn_moves at the last look */
	/* since the last look that saw them grow: what the device has received, and whether that is a pause */
	struct bnet_metered held;
	bool paused;
	struct bnet_metered seen;
};

/* What stats/ and control/watchdog.h keep of a connection. The control thread's. */
struct bnet_seen {
	int row; /* its number, from 1; 0: it has none */
	uint32_t round;
	uint64_t opened_us;
	uint64_t sampled_us, posted_us, still_us, moves;
	bool worked; /* something was posted then */
};

struct bnet_conn {
	struct bnet_node node; /* in the engine's list of connections */
	struct bnet_table_entry by_id;
	bool sender;
	uint64_t id;
	uint64_t communicator; /* NCCL's, of the caller that was handed it; 0: not known. Under the engine's lock */
	ncclProfilerCallback_t profiler; /* NCCL's, likewise; NULL: none. The poster's */
	uint8_t token[BNET_TOKEN_SIZE];
	const struct bnet_device *dev;
	const struct bnet_config *config;
	char peer[BNET_ADDRESS_TEXT];
	const char *sealed; /* its streams, for the log; NULL: none has joined yet */
	struct bnet_setup setup;

	struct bnet_worker *worker; /* moves its data; NULL: its caller does */
	const _Atomic bool *worker_sleeps;
	_Atomic bool owner;
	_Atomic uint64_t posted;      /* requests so far: the number of the next one */
	_Atomic uint32_t outstanding; /* posted and not done: work for the owner */
	_Atomic bool light;           /* so little is posted that the caller moves it, worker or not */
	_Atomic uint32_t passes;      /* of any owner; the control thread sees whether the caller polls */
	_Atomic bool reap;            /* one of several streams has ended */
	_Atomic int error;            /* 0 or -errno: the connection is unusable; the first error is kept */
	struct bnet_conn_counts counts;
	struct bnet_latencies latencies;
	/* the control thread's; near the above, since it looks at both */
	struct bnet_work_item work; /* in the engine's list of active connections */
	struct bnet_node of_path;   /* a sender's: in one of its path's lists */
	struct bnet_path *path;     /* of a sender */
	struct bnet_meter meter;    /* of a receiver */
	uint32_t passes_seen;
	uint64_t moves_seen;
	uint32_t passes_sampled;
	uint32_t sample;    /* of its path, in which it was read last */
	uint32_t noted;     /* the last round over senders on long paths that noted dry streams here */
	uint32_t looked_at; /* the last round over all senders that looked for undelivered bytes here */
	bool was_idle;      /* at the last sampling time the connection was idle */
	struct bnet_company company;
	struct bnet_sizes sizes;
	struct bnet_seen seen;

	struct bnet_ready ready; /* a receiver's place in the set of many */

	_Atomic int nstreams;
	_Atomic int level;            /* how many of them, from the first, may claim slices; of a sender */
	struct bnet_stream **streams; /* grows under the engine's lock, by the owner */
	int places;                   /* … which it has */
	struct bnet_stream *usual[BNET_MAX_STREAMS];
	_Atomic int epoll; /* all streams, edge-triggered, from the second stream on or with a worker; else -1 */
	bool watched;      /* a worker sleeps on `epoll` */
	bool repairs;      /* both ends take part in the repair of a stream */
	bool closed;       /* a receiver's: the peer has said that it closes with nothing outstanding; the owner's */
	_Atomic bool mute; /* a sender's: it fails while its owner, which is another thread, may write: without a word */
	bool gone;         /* a receiver's: a stream has ended; it may have been dropped since. The owner's */
	_Atomic uint64_t
		alone_us; /* a receiver's: since then only streams that wait for repair could bring more; a sender's:
				    * since then none has been left; 0: not so */
	struct bnet_asking asking; /* … whether its sender is still there */
	uint32_t quiet;            /* passes since a stream other than the first had something */

	/* sender */
	struct bnet_claim claim; /* the owner's, as is what follows */
	uint64_t claimed_bytes;
	bool held_back; /* a writable stream was refused by admission */
	struct bnet_zerocopy zerocopy;
	struct bnet_copies copies;
	uint32_t idle;           /* passes in a row that wrote nothing while slices were held */
	uint64_t idle_us;        /* since then nothing was acknowledged, either */
	_Atomic int error_of;    /* why a stream broke last: -errno; the owner writes it */
	uint32_t buried;         /* of `outstanding`: streams that broke, until what they owed was sent again */
	uint32_t serials;        /* given out; under the engine's lock */
	struct bnet_node broken; /* streams that were dropped and wait for the one that takes their place; likewise */
	_Atomic uint64_t posted_bytes;
	struct bnet_request ring[BNET_RING];
};

/* watched: a worker will sleep on the connection's epoll set. */
struct bnet_conn *bnet_conn_new(bool sender, const struct bnet_device *dev, const struct bnet_config *config,
				bool watched);
/* Closes the descriptors that nobody has taken. Only memory is left then. */
void bnet_conn_close(struct bnet_conn *conn);
/* After the connection has left its path. */
void bnet_conn_free(struct bnet_conn *conn);

/* Adds a connected socket after its handshake; the connection owns it from here on. start: NULL, nothing to know of it.
 * Under the engine's lock. -ENOSPC, -ENOMEM, or epoll's -errno, and then the socket stays the caller's. */
int bnet_conn_add_stream(struct bnet_conn *conn, int fd, const struct bnet_stream_start *start);
/* Takes a stream out; the last one takes its index. It and its descriptor are the caller's. The owner only, under the
 * engine's lock. */
struct bnet_stream *bnet_conn_take_stream(struct bnet_conn *conn, int index);
/* … and frees it. Returns the descriptor, which is the caller's. */
int bnet_conn_drop_stream(struct bnet_conn *conn, int index);
/* Its memory, and what it has in place of another one. Whoever has taken it out. */
void bnet_stream_free(struct bnet_conn *conn, struct bnet_stream *stream);
/* Asks the kernel which streams have something, and marks them. The owner only. */
void bnet_conn_poll(struct bnet_conn *conn);

/* Takes it out of the set of many receivers, if it is in it. As bnet_readiness_leave. */
void bnet_conn_unready(struct bnet_conn *conn);
/* A frame without a body, on a sender's stream between two slices. False: a slice is under way, or there is no room.
 * The owner only. */
bool bnet_stream_say(const struct bnet_stream *stream, enum bnet_wire_frame_type type);

bool bnet_conn_try_own(struct bnet_conn *conn);
/* Tries so often. Under the engine's lock nobody waits for an owner, but one pass takes only some microseconds. */
#define BNET_OWN_TRIES 1000
bool bnet_conn_try_own_for(struct bnet_conn *conn, int tries);
void bnet_conn_own(struct bnet_conn *conn); /* waits: only in deregMr, in close, and without memory */
void bnet_conn_disown(struct bnet_conn *conn);
/* The owner gives the connection up; the first call logs why, in one line: a warning, unless the error is
 * -ESHUTDOWN, the peer's orderly close. -ECANCELED, this end's own doing, is not logged. */
__attribute__((format(printf, 3, 4))) void bnet_conn_fail(struct bnet_conn *conn, int error, const char *why, ...);

/* Is something outstanding? A request may be done before its poster has counted it: then the count is negative for a
 * moment. */
static inline bool bnet_conn_has_work(const struct bnet_conn *conn)
{
	return (int32_t)atomic_load(&conn->outstanding) > 0;
}

/* How much, for a message: a request that is done before its poster has counted it makes the count negative. */
static inline unsigned bnet_conn_outstanding(const struct bnet_conn *conn)
{
	return bnet_conn_has_work(conn) ? atomic_load(&conn->outstanding) : 0;
}

/* … and can it still be done? */
static inline bool bnet_conn_is_workable(const struct bnet_conn *conn)
{
	return bnet_conn_has_work(conn) && !atomic_load_explicit(&conn->error, memory_order_relaxed);
}

/* Of a sender: is there no more to write than what streams have begun? */
static inline bool bnet_conn_all_is_claimed(const struct bnet_conn *conn)
{
	return bnet_claim_messages(&conn->claim) == atomic_load_explicit(&conn->posted, memory_order_acquire);
}

/* Are streams being opened, or still to be? Under the engine's lock. */
static inline bool bnet_conn_is_opening(const struct bnet_conn *conn)
{
	return conn->setup.connecting > 0 || !bnet_list_empty(&conn->setup.missing);
}

/* Does the caller make the passes? */
static inline bool bnet_conn_is_inline(const struct bnet_conn *conn)
{
	return !conn->worker || atomic_load_explicit(&conn->light, memory_order_relaxed);
}

/* Streams that may claim slices. The others are inactive: they only finish what they have begun. */
static inline int bnet_conn_active(const struct bnet_conn *conn)
{
	int level = atomic_load_explicit(&conn->level, memory_order_relaxed);
	int streams = atomic_load_explicit(&conn->nstreams, memory_order_acquire);

	return streams < level ? streams : level;
}

#endif
