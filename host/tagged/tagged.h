/* SPDX-License-Identifier: MIT
 *
 * Tagged messages between any two ranks, in any order, independent of the collectives: torch's point-to-point. This
 * header has the data of the subsystem and the life of an operation.
 *
 * The files of this folder, lowest first; each includes only files before it:
 *
 *   frame.{c,h}   the frame codec
 *   pull.{c,h}    a message read out of another process's memory
 *   tagged.{c,h}  the object and its peers; operations: posted by any thread, queued, finished
 *   match.{c,h}   which receive an arriving message belongs to
 *   link.{c,h}    frames to and from one peer
 *   progress.c    begins operations, moves data, handles lost peers, reports; its functions are public
 *
 * An ncclNet connection keeps the order of its messages, and a receive must be posted before its message. Tags promise
 * neither. So the ranks exchange frames (frame.h), and a rank keeps a receive posted for a peer's next frame as long as
 * it waits for anything from that peer.
 *
 * No message waits for another one whose receive is not posted, whatever the order of sends and receives on both sides.
 * A message that arrives before its receive is unexpected. The window bounds the unexpected EAGER, whose payload the
 * receiver keeps. Unexpected RTS are not bounded: each takes some hundred bytes at the receiver.
 *
 * Any thread may post and stop. Whoever makes a pass, one thread at a time, owns everything else and is called the
 * progress thread here.
 */
#ifndef BNET_TAGGED_H
#define BNET_TAGGED_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "bagua_net_host.h"
#include "common/list.h"
#include "coll/coll.h"
#include "tagged/frame.h"

/* A send or a receive. Always in exactly one list. */
struct bnet_tagged_op {
	struct bnet_node node;
	uint64_t id; /* the caller's */
	bool sends;
	char *buf;
	size_t bytes;
	int peer; /* -1: any, until it is matched */
	int64_t tag;
	uint64_t key;           /* of its RTS or OFFER */
	_Atomic uint64_t token; /* of its OFFER; 0: the buffer must not be read */
	void *mhandle;          /* of buf, while DATA moves */
	bool registered;
	bool awaits; /* it needs a frame from its peer, and counts in the peer's `awaited` or in `any` */
	struct bnet_tagged_op *with; /* NULL, or the next one that ends with the same ncclNet message */
	int rc;
	char *error; /* NULL, or the reason of the failure */
};

/* A frame in a peer's queue. */
struct bnet_tagged_outgoing {
	struct bnet_node node;
	struct bnet_tagged_frame frame;
	struct bnet_tagged_op *op; /* EAGER, DATA: the send; READ: the receive; both end with this frame */
	struct bnet_tagged_offer offer;
};

/* An unexpected message. */
struct bnet_tagged_unexpected {
	struct bnet_node node;
	int peer;
	struct bnet_tagged_frame frame; /* EAGER, RTS or OFFER */
	char payload[];
};

/* An ncclNet message in flight. */
struct bnet_tagged_flight {
	void *request;
	struct bnet_tagged_op *op; /* the first that is complete with this message; NULL: none is */
	size_t bytes;              /* expected */
};

/* The queue of frames to one peer, and the state of both connections with it. */
struct bnet_tagged_peer {
	int rank;
	bool local;          /* on this host: it may be able to read this process's memory, and … */
	bool unreadable;     /* … this process not its: the kernel has refused */
	int lost;            /* 0, or why nothing can be received from it any more: -errno */
	int out_lost;        /* 0, or the error that ended sending to it; its own messages may still arrive */
	int64_t grace_until; /* with out_lost: until when a connection from it may still appear */
	unsigned awaited;    /* operations that need a frame from this peer */
	char *slots;         /* BNET_COLL_DEPTH to send from, one to receive into */

	struct bnet_node out; /* frames, in order; the first may be partly sent */
	void *out_mhandle;
	bool out_ready; /* connected, and the slots are registered */
	size_t out_posted, out_done;
	bool header_sent;    /* of the first frame, a DATA */
	size_t out_sent;     /* bytes of its payload */
	uint64_t uncredited; /* bytes of eager messages that count in the window */
	int64_t probe_at;    /* when to send a CREDIT as a probe, because the peer's end would not be noticed */
	struct bnet_tagged_flight out_flight[BNET_COLL_DEPTH];

	void *in_mhandle;
	bool in_ready;
	struct bnet_tagged_op *into; /* whose DATA arrives; NULL: the next message is a frame */
	size_t in_posted, in_done;   /* messages of this DATA, or of one frame */
	size_t in_bytes;             /* of this DATA: bytes that receives are posted for */
	uint64_t unexpected_bytes;   /* eager messages that no receive has matched */
	uint64_t credit_due;         /* eager messages handed on, which the peer is still to be told */
	struct bnet_tagged_flight in_flight[BNET_COLL_DEPTH];
};

struct bnet_tagged {
	struct bnet_coll *coll;

	pthread_mutex_t lock; /* of `incoming` and `stopped` */
	pthread_cond_t posted;
	struct bnet_node incoming; /* operations that the progress thread has not seen */
	bool stopped;

	struct bnet_node receives;   /* not matched, oldest first */
	struct bnet_node granted;    /* receives whose CTS is queued or sent */
	struct bnet_node requested;  /* sends whose RTS is queued or sent */
	struct bnet_node sending;    /* what ends with its last frame, queued or in flight */
	struct bnet_node unexpected; /* messages, in order of arrival */
	struct bnet_node finished;
	struct bnet_node reported; /* the caller may still read their error texts */
	size_t outstanding;        /* operations seen and not finished */
	unsigned any;              /* receives from any source, not matched */
	uint64_t next_key;
	uint64_t secret; /* tokens differ from what memory happens to hold */
	bool begun;      /* a pass was made, the last one by this thread: */
	pthread_t thread;
	int failed;
	struct bnet_tagged_peer *peers;
};

/* Moves the operation to the end of another list. */
static inline void bnet_tagged_enlist(struct bnet_node *list, struct bnet_tagged_op *op)
{
	bnet_list_remove(&op->node);
	bnet_list_add(list, &op->node);
}

/* From here on the operation needs a frame from its peer, or no longer. */
void bnet_tagged_await(struct bnet_tagged *tagged, struct bnet_tagged_op *op, bool awaits);
/* Puts a frame at the end of this peer's queue; drops it if nothing can be sent there any more. 0 or -ENOMEM. */
int bnet_tagged_queue(struct bnet_tagged *tagged, struct bnet_tagged_peer *peer, const struct bnet_tagged_frame *frame,
		      struct bnet_tagged_op *op);
/* The same for the OFFER of a send. */
int bnet_tagged_queue_offer(struct bnet_tagged *tagged, struct bnet_tagged_peer *peer, struct bnet_tagged_op *op);
/* Fruitless passes before the first nap: some hundred microseconds, within which an active peer answers. */
#define BNET_TAGGED_PASSES 256
/* By one thread at a time. Begins what was posted and moves what can be moved, without sleeping. Returns how many ends
 * it has written to `done`, or -ESHUTDOWN: stopped, and all are reported. *moved: another pass may move more. */
int bnet_tagged_pass(struct bnet_tagged *tagged, bnet_tagged_done_t *done, int max, bool *moved);
/* By that thread: nothing to move, nothing to report and nothing posted? */
bool bnet_tagged_idle(struct bnet_tagged *tagged);
/* Ends the operation; no connection may touch its buffer any more. rc: 0, or that of the group's error. */
void bnet_tagged_finish(struct bnet_tagged *tagged, struct bnet_tagged_op *op, int rc);

#endif
