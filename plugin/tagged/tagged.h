/* SPDX-License-Identifier: MIT
 *
 * Tagged messages between any two ranks, in any order, besides the collectives: what torch calls point-to-point.
 *
 *   mail.c       operations: posted by any thread, begun and finished by the one that makes progress
 *   mail_match.c what arrives, and which receive it is for
 *   mail_link.c  frames to and from one peer
 *
 * An ncclNet connection keeps the order of messages, and a receive must be there first. Tags ask for neither. So what
 * travels are frames, and a rank has a receive posted for a peer's next one whenever it waits for anything from there:
 *
 *   LETTER    a small message, payload included. Kept by the receiver until somebody asks for it; a sender has no more
 *             than WINDOW bytes of them that the receiver has not said to have handed on.
 *   ANNOUNCE  a large message, or a small one beyond the window: tag and size. The payload stays where it is
 *   GO        the answer, once a receive matches: its size, and its buffer is ready if that is the message's. Of an
 *             empty message it is the end
 *   PARCEL    the payload follows, in chunks, into that buffer
 *   TAKEN     nothing but what every frame carries: how many bytes of letters were handed on
 *
 * So no message waits for one that nobody asked for yet, whatever the order of sends and receives on both sides, and
 * the letters that the receiver keeps are bounded. Announcements are not: some hundred bytes for each message of a size
 * that nobody has asked for. Frames are in the machine's byte order, as the elements are.
 */
#ifndef BNET_TAGGED_H
#define BNET_TAGGED_H

#include <pthread.h>

#include "coll/coll.h"
#include "coll/connect.h"
#include "coll/log.h"
#include "coll/size.h"
#include "coll/wait.h"
#include "base/list.h"

#define BNET_LETTER_MAX ((size_t)8 * 1024)
/* A letter's place in it: payload and header, so that empty ones are bounded, too. */
#define BNET_LETTER_WINDOW ((uint64_t)256 * 1024)

enum { FRAME_LETTER = 1, FRAME_ANNOUNCE, FRAME_GO, FRAME_PARCEL, FRAME_TAKEN };

struct bnet_tagged_frame {
	uint64_t kind;
	uint64_t key;   /* of an announced message, chosen by its sender */
	int64_t tag;
	uint64_t bytes; /* of the message; GO: of the receive */
	uint64_t taken; /* bytes of letters handed on since the last frame */
};

#define BNET_SLOT (sizeof(struct bnet_tagged_frame) + BNET_LETTER_MAX)

/* A send or a receive. In exactly one list, or none while its last bytes move. */
struct bnet_op {
	struct bnet_node node;
	uint64_t id; /* the caller's */
	bool sends;
	char *buf;
	size_t bytes;
	int peer;         /* -1: any, until it is matched */
	int64_t tag;
	int64_t deadline; /* ns of bnet_coll_now; 0: none */
	uint64_t key;
	void *mhandle;    /* of buf, while a parcel moves */
	bool registered;
	bool awaits;      /* counted in its peer's box, or in mail->any: something must come for this to go on */
	int rc;
	char *error;      /* NULL, or what went wrong */
};

/* A frame that waits to be sent. */
struct bnet_outgoing {
	struct bnet_node node;
	struct bnet_tagged_frame frame;
	struct bnet_op *op; /* LETTER, PARCEL */
};

/* A message that nobody has asked for yet. */
struct bnet_unclaimed {
	struct bnet_node node;
	int peer;
	struct bnet_tagged_frame frame;
	char payload[]; /* LETTER */
};

struct bnet_moving {
	void *request;
	struct bnet_op *op; /* finished with this message; NULL: with a later one, or none */
	size_t bytes;       /* expected */
};

/* All that there is of one peer. */
struct bnet_box {
	int peer;
	int lost;         /* 0, or why this peer is no longer there: -errno */
	int out_lost;     /* 0, or why nothing goes to it any more; what it has sent may still come */
	int64_t grace;    /* until when a connection from it may still turn up then */
	unsigned awaited; /* operations for which something must come from this peer */
	char *slots;      /* BNET_COLL_DEPTH to send from, one to receive into */

	struct bnet_node out; /* frames, in order; the first may be on its way */
	void *out_mhandle;
	bool out_ready;       /* connected, registered */
	size_t out_posted, out_done;
	bool header_sent;     /* of the first frame, a parcel */
	size_t out_sent;      /* bytes of its payload */
	uint64_t unconfirmed; /* letters' bytes that count in the window */
	int64_t ask_at;       /* when to see whether this peer is there, if nothing says so by itself */
	struct bnet_moving out_flight[BNET_COLL_DEPTH];

	void *in_mhandle;
	bool in_ready;
	struct bnet_op *into; /* whose parcel comes; NULL: the next frame */
	size_t in_posted, in_done; /* messages of this parcel, or of one frame */
	size_t in_asked;      /* bytes of the parcel for which a receive is posted */
	uint64_t kept;        /* letters' bytes that nobody has asked for */
	uint64_t handed_on;   /* letters' bytes that the peer has not heard of */
	struct bnet_moving in_flight[BNET_COLL_DEPTH];
};

struct bnet_tagged {
	struct bnet_coll *coll;

	pthread_mutex_t lock; /* of `incoming` and `stopped`; the rest is the progress thread's */
	pthread_cond_t posted;
	struct bnet_node incoming; /* operations that the progress thread has not seen */
	bool stopped;

	struct bnet_node receives; /* that match nothing yet, oldest first */
	struct bnet_node promised; /* receives whose GO is out */
	struct bnet_node announced; /* sends that wait for GO */
	struct bnet_node unclaimed; /* in order of arrival */
	struct bnet_node finished;
	struct bnet_node reported; /* whose error texts the caller may be reading */
	struct bnet_node sending; /* sends whose bytes are queued or moving */
	size_t outstanding; /* seen and not finished */
	unsigned any; /* receives from any source that match nothing yet */
	uint64_t next_key;
	unsigned passes;
	bool begun; /* progress was called */
	int failed;
	struct bnet_box *boxes;
};

/* ---- mail.c ---- */

/* The operation is over; the connections no longer touch its buffer. rc: 0, or that of the group's error. */
void bnet_tagged_finish(struct bnet_tagged *mail, struct bnet_op *op, int rc);
void bnet_tagged_await(struct bnet_tagged *mail, struct bnet_op *op, bool awaits);

static inline void bnet_tagged_enlist(struct bnet_node *list, struct bnet_op *op)
{
	bnet_list_remove(&op->node);
	bnet_list_add(list, &op->node);
}

/* ---- mail_match.c ---- */

/* A frame has arrived; payload is a letter's. 0 or -errno with the group's error set. */
int bnet_tagged_arrived(struct bnet_tagged *mail, struct bnet_box *box, const struct bnet_tagged_frame *frame,
		      const char *payload);
/* Looks for a message that has arrived, for a receive that is in its list. 0 or -errno with the group's error set. */
int bnet_tagged_match(struct bnet_tagged *mail, struct bnet_op *op);
void bnet_tagged_forget(struct bnet_unclaimed *unclaimed);

/* ---- mail_link.c ---- */

/* Puts a frame behind all others for this peer, and drops it where nothing goes there any more. -ENOMEM. */
int bnet_tagged_queue(struct bnet_tagged *mail, struct bnet_box *box, const struct bnet_tagged_frame *frame, struct bnet_op *op);
/* One pass over what goes to a peer, or comes from it; sets *progress if anything moved. */
int bnet_tagged_move_out(struct bnet_tagged *mail, struct bnet_box *box, bool *progress);
int bnet_tagged_move_in(struct bnet_tagged *mail, struct bnet_box *box, bool *progress);
/* Is a frame queued for this peer, or on its way? */
bool bnet_tagged_has_frames(const struct bnet_box *box);
/* One pass over what goes to a peer that is owed an answer. True: it still is. */
bool bnet_tagged_answer(struct bnet_tagged *mail, struct bnet_box *box);
/* Gives back all that the box holds of the connections, or of the one to the peer. They are closed next. */
void bnet_tagged_release(struct bnet_tagged *mail, struct bnet_box *box);
void bnet_tagged_release_out(struct bnet_tagged *mail, struct bnet_box *box);

#endif
