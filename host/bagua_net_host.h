/* SPDX-License-Identifier: MIT
 *
 * The public interface of libbagua-net-host.so: collectives and messages on host memory, which use a network through
 * its ncclNet table, and codecs. Python reads the part between the two markers with cffi, so it holds plain
 * declarations only.
 *
 * Functions return 0 or a negative errno value, unless they say otherwise. Strings are owned by the library.
 */
#ifndef BAGUA_NET_HOST_H
#define BAGUA_NET_HOST_H

#include <stddef.h>
#include <stdint.h>

#if defined(__cplusplus)
extern "C" {
#endif
#if defined(__GNUC__)
#pragma GCC visibility push(default)
#endif

/* cffi: begin */

/* Incremented whenever a declaration below changes its meaning or layout. Python refuses a library with another one. */
int bnet_host_abi_version(void);

/* ---- collectives on host memory, over any ncclNet table from v8 on: ours or another network's ---- */

typedef struct bnet_coll bnet_coll_t;

enum { /* element types */
       BNET_INT8 = 0,
       BNET_UINT8 = 1,
       BNET_INT32 = 2,
       BNET_INT64 = 3,
       BNET_FLOAT16 = 4,
       BNET_BFLOAT16 = 5,
       BNET_FLOAT32 = 6,
       BNET_FLOAT64 = 7
};
enum { /* reductions; the average divides the sum by the number of ranks (integers round towards zero) */
       BNET_SUM = 0,
       BNET_PROD = 1,
       BNET_MIN = 2,
       BNET_MAX = 3,
       BNET_AVG = 4,
       BNET_BAND = 5, /* bitwise: integers only */
       BNET_BOR = 6,
       BNET_BXOR = 7
};
enum {                     /* allreduce algorithms */
       BNET_ALGO_AUTO = 0, /* by size and rank count */
       BNET_ALGO_RING = 1,
       BNET_ALGO_DIRECT = 2 /* fewer steps, more bytes: for small messages */
};

/* Bytes of one element; 0 for an unknown type. */
size_t bnet_coll_dtype_size(int dtype);
/* dst[i] = op(a[i], b[i]), on this rank alone; BNET_AVG sums. dst may be a or b. -EINVAL: unknown type or operation, or
 * a bitwise operation on floats. */
int bnet_coll_reduce_local(void *dst, const void *a, const void *b, size_t count, int dtype, int op);
/* buf[i] = buf[i] / n: the second step of BNET_AVG. */
int bnet_coll_scale_local(void *buf, size_t count, int dtype, int n);

/* A group of nranks processes or threads, each with its own object. table: an ncclNet table of this version (8 to 12);
 * dev: the number of a device of that network. An object belongs to one thread at a time. 0, or -errno with the text in
 * bnet_coll_error(NULL). */
int bnet_coll_create(bnet_coll_t **out, const void *table, int version, int dev, int rank, int nranks);
/* Before connect: look is bnet_net_look() of the network of the table. Waits for a peer that has ended are then over
 * within seconds, and their errors name addresses. */
void bnet_coll_look(bnet_coll_t *coll, const void *look);
/* After that and before listen: in place of dev, the device through which this machine reaches the job's rendezvous
 * (MASTER_ADDR), if one does; otherwise the first. */
void bnet_coll_follow_route(bnet_coll_t *coll);
/* Step 1: every rank listens and fills its row of bnet_coll_handle_size() bytes. The caller distributes all rows, in
 * rank order, to every rank. Step 2: every rank connects with them, and returns when all have. -ETIMEDOUT after
 * timeout_s seconds. */
size_t bnet_coll_handle_size(const bnet_coll_t *coll);
int bnet_coll_listen(bnet_coll_t *coll, void *row);
int bnet_coll_connect(bnet_coll_t *coll, const void *rows, double timeout_s);
/* Before listen, on all ranks or none: ranks of one host share memory for collectives, and read tagged messages out of
 * each other's memory, where the host permits it. */
void bnet_coll_share(bnet_coll_t *coll);
/* The same: before the first payload of an operation, every two ranks that exchange some compare what they call. Where
 * they differ it ends with -EPROTO, and the reason names both calls. Shared memory always does. */
void bnet_coll_check_calls(bnet_coll_t *coll);
/* Closes all connections and frees the object; coll may be NULL. */
void bnet_coll_destroy(bnet_coll_t *coll);
/* The reason of this object's last failure; coll NULL: of this thread's last failed create. */
const char *bnet_coll_error(const bnet_coll_t *coll);
/* Seconds without progress after which an operation fails with -ETIMEDOUT; 0: no limit; default 300. */
void bnet_coll_set_timeout(bnet_coll_t *coll, double seconds);
/* Makes the operation in progress and all later ones fail with -ECANCELED. Any thread may call it. */
void bnet_coll_abort(bnet_coll_t *coll);

enum { /* operations */
       BNET_COLL_CONNECT = 0,
       BNET_COLL_ALLREDUCE = 1,
       BNET_COLL_REDUCE_SCATTER = 2,
       BNET_COLL_ALL_GATHER = 3,
       BNET_COLL_BROADCAST = 4,
       BNET_COLL_ALL_TO_ALL = 5,
       BNET_COLL_ALL_TO_ALLV = 6,
       BNET_COLL_REDUCE = 7,
       BNET_COLL_GATHER = 8,
       BNET_COLL_SCATTER = 9,
       BNET_COLL_BARRIER = 10,
       BNET_COLL_ALLREDUCE_Q = 11,
       BNET_COLL_REDUCE_SCATTER_Q = 12,
       BNET_COLL_SEND = 13, /* from here on: not for bnet_coll_run */
       BNET_COLL_RECV = 14,
       BNET_COLL_SENDRECV = 15
};

/* One operation. A buffer of one block for each rank is contiguous, or `sends` or `recvs` have the address of each
 * block instead. */
typedef struct {
	int kind;
	int dtype;
	int op;       /* reductions */
	int root;     /* broadcast, reduce, gather, scatter */
	int algo;     /* allreduce */
	size_t count; /* elements: of one block, where a buffer has several */
	const void *send;
	void *recv;
	void *const *sends;
	void *const *recvs;
	const size_t *send_counts; /* BNET_COLL_ALL_TO_ALLV: elements of each block */
	const size_t *recv_counts;
	int codec;       /* compressed reductions: BNET_CODEC_… */
	size_t block;    /* the same: elements with a range of their own */
	float *residual; /* the same: NULL, or as many elements as this rank gives */
} bnet_op_t;

/* Runs any operation of the following, by its description. */
int bnet_coll_run(bnet_coll_t *coll, const bnet_op_t *op);

/* Counts are in elements. A send and a receive buffer of the same size may be the same memory (in place); all_gather
 * and reduce_scatter also take NCCL's in-place form (the small buffer is this rank's block of the large one). All ranks
 * call the same operations with the same arguments in the same order. 0 or -errno; an error other than -EINVAL and
 * -ENOTCONN makes the group unusable. */
int bnet_coll_allreduce(bnet_coll_t *coll, const void *send, void *recv, size_t count, int dtype, int op, int algo);
int bnet_coll_reduce_scatter(bnet_coll_t *coll, const void *send, void *recv, size_t count_per_rank, int dtype, int op);
int bnet_coll_all_gather(bnet_coll_t *coll, const void *send, void *recv, size_t count_per_rank, int dtype);
int bnet_coll_broadcast(bnet_coll_t *coll, void *buf, size_t count, int dtype, int root);
int bnet_coll_all_to_all(bnet_coll_t *coll, const void *send, void *recv, size_t count_per_rank, int dtype);
/* Blocks of different sizes, contiguous, in rank order; one count per rank. Not in place. */
int bnet_coll_all_to_allv(bnet_coll_t *coll, const void *send, const size_t *send_counts, void *recv,
			  const size_t *recv_counts, int dtype);
/* The large buffer, and recv of a reduce, are used on the root only. */
int bnet_coll_reduce(bnet_coll_t *coll, const void *send, void *recv, size_t count, int dtype, int op, int root);
int bnet_coll_gather(bnet_coll_t *coll, const void *send, void *recv, size_t count_per_rank, int dtype, int root);
int bnet_coll_scatter(bnet_coll_t *coll, const void *send, void *recv, size_t count_per_rank, int dtype, int root);
int bnet_coll_send(bnet_coll_t *coll, const void *buf, size_t count, int dtype, int peer);
int bnet_coll_recv(bnet_coll_t *coll, void *buf, size_t count, int dtype, int peer);
/* Both directions at the same time; a peer of -1: not in this direction. */
int bnet_coll_sendrecv(bnet_coll_t *coll, const void *send, size_t send_count, int send_peer, void *recv,
		       size_t recv_count, int recv_peer, int dtype);
int bnet_coll_barrier(bnet_coll_t *coll);

/* Compressed reductions of float32, BNET_SUM or BNET_AVG: what crosses the network is encoded (see the codecs below).
 * Each rank owns a shard of the elements. All ranks encode their inputs, each shard for its owner, which decodes and
 * adds them in the order of the ranks. In an allreduce the owner encodes the result once more, and every rank decodes
 * these bytes: all get the same bits. The error of an average is at most half a step of the inputs, in the mean of the
 * ranks, and in an allreduce half a step of the result besides; that of a sum, half a step of each input, and the same.
 * float32 rounds as well. A block that is not finite on any rank, or whose result is not, is NaN on all ranks.
 *
 * residual: NULL, or as many elements as this rank gives (reduce_scatter_q: a block for each rank, in rank order),
 * zeros before the first call, and kept by this rank from call to call. It is added to the input; afterwards it holds
 * what the codes have lost: of this rank's input, and in its own shard of an allreduce also of the result. Over any
 * number of calls, the results and the residuals that are left, reduced as the inputs are, are together what exact
 * reductions would have given. A block that is not finite keeps its residual.
 *
 * Ranks of one host that share memory add their inputs there, exactly. Between hosts travel codes of these sums, each
 * rank's of some of the elements; the residual of these is in that rank's buffer, of which the rest is not used. A
 * group of one rank, or of one host whose ranks share memory, encodes nothing and does not use the residual.
 *
 * codec and block: see bnet_codec_bytes; the same on all ranks. residual overlaps no other buffer. */
int bnet_coll_allreduce_q(bnet_coll_t *coll, const void *send, void *recv, size_t count, int op, int codec,
			  size_t block, float *residual);
int bnet_coll_reduce_scatter_q(bnet_coll_t *coll, const void *send, void *recv, size_t count_per_rank, int op,
			       int codec, size_t block, float *residual);

/* ---- codecs of float32: a code for each element, and a range for each block of them. Any thread ---- */

enum {
	BNET_CODEC_U8 = 1, /* a byte for each element */
	BNET_CODEC_U4 = 2  /* half a byte */
};

/* Bytes of so many encoded elements. block: elements, a multiple of 32 up to 4096. 0: unknown codec or wrong block. */
size_t bnet_codec_bytes(int codec, size_t block, size_t count);
/* A decoded element differs from x by half a step at most, besides the rounding of float32; a step is the range of the
 * block by 255 or by 15. A block with an element that is not finite decodes to NaN. The decoded bits are the same on
 * every machine. */
void bnet_codec_encode(int codec, size_t block, const float *x, size_t count, void *encoded);
/* 0, -EINVAL: unknown codec or wrong block, or -EMSGSIZE: other bytes than those of so many elements. */
int bnet_codec_decode(int codec, size_t block, const void *encoded, size_t bytes, float *x, size_t count);
/* The same, but x[i] += the decoded element. */
int bnet_codec_decode_add(int codec, size_t block, const void *encoded, size_t bytes, float *x, size_t count);

/* ---- signs of float32: a bit for each element, and a magnitude for each block of them. Any thread ---- */

/* Encodes x + residual; then the residual is what decoding does not give back. block: elements, a multiple of 32 up
 * to 4096. signs: block / 8 bytes for each block, also for a last one that is shorter; element i has bit i % 8 of
 * byte i / 8, 1 if it is negative. magnitudes: one for each block, the mean of its elements that are not zero. A
 * block with an element that is not finite, or with such a sum, decodes to NaN; its residual becomes 0. 0, or
 * -EINVAL: wrong block. */
int bnet_signs_encode(size_t block, const float *x, float *residual, size_t count, uint8_t *signs, float *magnitudes);
/* 0, or -EINVAL: wrong block. */
int bnet_signs_decode(size_t block, const uint8_t *signs, const float *magnitudes, float *x, size_t count);
/* The same, but x[i] += the decoded element. */
int bnet_signs_decode_add(size_t block, const uint8_t *signs, const float *magnitudes, float *x, size_t count);

/* ---- a queue of collectives: a thread of the library runs them in the order of the posts. Any thread may call these
 * functions ---- */

typedef struct bnet_queue bnet_queue_t;
typedef struct bnet_ticket bnet_ticket_t;

typedef struct {
	int rc;            /* 0 or -errno */
	int peer;          /* of a message: the other rank */
	const char *error; /* NULL, or the reason, valid as long as the ticket */
} bnet_result_t;

/* Takes over a group that was created and listens; nobody else calls it then, but for bnet_coll_abort. */
int bnet_queue_create(bnet_queue_t **out, bnet_coll_t *coll);
/* All ranks' rows, with which the group connects when its first operation is due. Until then, operations wait. */
int bnet_queue_connect(bnet_queue_t *queue, const void *rows, size_t bytes, double timeout_s);
/* Instead: there will be no rows, and every operation fails with -ETIMEDOUT and this reason. */
void bnet_queue_fail(bnet_queue_t *queue, const char *reason);
/* Posts an operation. Its buffers and arrays must stay valid until it is over. timeout_s: as bnet_coll_set_timeout.
 * -ESHUTDOWN: the queue is closed. */
int bnet_queue_post(bnet_queue_t *queue, const bnet_op_t *op, double timeout_s, bnet_ticket_t **ticket);
/* The same for a caller that waits for it. Where no other one is in progress, it runs on the calling thread and is over
 * on return. interrupted: NULL, or asked ten times a second while it waits, and once while it moves; any other answer
 * than 0 ends the operation, and with it the group. */
int bnet_queue_run(bnet_queue_t *queue, const bnet_op_t *op, double timeout_s, int (*interrupted)(void),
		   bnet_ticket_t **ticket);
/* The operation gets a turn: once it is over, nothing that others have posted runs until bnet_queue_leave, and until
 * all is over that the thread of bnet_queue_enter has posted between the two. So the place of what callbacks post does
 * not depend on when they run. A turn ends after ten seconds in which nothing ends, so that callbacks may wait for
 * others' operations. 1, or 0: the operation is over already, or out of memory. */
int bnet_queue_hold(bnet_queue_t *queue, bnet_ticket_t *ticket);
void bnet_queue_enter(bnet_queue_t *queue, bnet_ticket_t *ticket);
void bnet_queue_leave(bnet_queue_t *queue, bnet_ticket_t *ticket);
/* 0: the operation is not over. 1: it is, and has succeeded; -1: it has failed. */
int bnet_ticket_over(bnet_ticket_t *ticket);
/* Waits until it is, at most so many seconds. 0, or -ETIMEDOUT: it is not. */
int bnet_ticket_wait(bnet_ticket_t *ticket, double seconds);
/* The operation's result. 0, or -EINPROGRESS: it is not over. */
int bnet_ticket_result(bnet_ticket_t *ticket, bnet_result_t *out);
/* A ticket may be released before its operation is over, which does not end the operation. In a child of fork() every
 * operation of its parent is over, with -ECHILD. */
void bnet_ticket_release(bnet_ticket_t *ticket);
/* Waits until the number of operations that are over is not `seen`, and returns it; `seen`: the queue is closed. */
uint64_t bnet_queue_ended(bnet_queue_t *queue, uint64_t seen);
/* The operations that it has accepted so far; *ended: those that are over. It does not wait. */
uint64_t bnet_queue_posted(bnet_queue_t *queue, uint64_t *ended);
/* Accepts no more operations. */
void bnet_queue_close(bnet_queue_t *queue);
/* Waits until all are over, at most so many seconds. 0, or -ETIMEDOUT: some are not. */
int bnet_queue_drain(bnet_queue_t *queue, double seconds);
/* Both, without a limit, and destroys the group. Tickets stay valid. */
void bnet_queue_destroy(bnet_queue_t *queue);

/* ---- tagged messages on host memory, independent of the order of the collectives ---- */

typedef struct bnet_tagged bnet_tagged_t;

typedef struct {
	uint64_t id; /* the id of the send or receive */
	int rc;      /* 0 or -errno. The loss of a peer fails the operations with it, and receives from any source once
		      * all peers are lost */
	int peer;    /* the other rank */
	const char *error; /* the reason, valid until the next call of progress; NULL: success, or out of memory */
} bnet_tagged_done_t;

/* Takes over a group that was created and listens; rows: those of all ranks, in rank order. bnet_tagged_destroy
 * destroys the group. Two ranks connect when one of them first sends something to the other, so not every rank needs to
 * take part. On failure the caller keeps the group, which has the reason. */
int bnet_tagged_create(bnet_tagged_t **out, bnet_coll_t *coll, const void *rows);
/* Any thread may call these. The buffer must stay valid, and that of a send unchanged, until progress reports the
 * operation. Messages between two ranks with the same tag are received in the order of the sends. A receive must have
 * the size of its message: otherwise both operations fail with -EMSGSIZE, except the send of a small message, which may
 * have completed before; other operations continue. There is no time limit. The peer of a receive may be -1: any.
 * 0; -EINVAL: no such peer; -ENOMEM; -ECANCELED: stopped. */
int bnet_tagged_send(bnet_tagged_t *tagged, const void *buf, size_t bytes, int peer, int64_t tag, uint64_t id);
int bnet_tagged_recv(bnet_tagged_t *tagged, void *buf, size_t bytes, int peer, int64_t tag, uint64_t id);
/* Always from the same thread. Moves data, or sleeps while nothing moves, until operations are complete; returns their
 * number, at most max. 0: stopped, and all operations are reported. -EINVAL: max is not positive. */
int bnet_tagged_progress(bnet_tagged_t *tagged, bnet_tagged_done_t *done, int max);
/* Ends all operations with -ECANCELED and refuses new ones. Any thread may call it. */
void bnet_tagged_stop(bnet_tagged_t *tagged);
/* After the last call of progress. */
void bnet_tagged_destroy(bnet_tagged_t *tagged);

typedef struct bnet_messages bnet_messages_t;

/* Tagged messages that callers which wait, or else a thread of the library, move. Takes over an object without
 * operations. Any thread may call the following. */
int bnet_messages_create(bnet_messages_t **out, bnet_tagged_t *tagged);
/* As bnet_tagged_send and bnet_tagged_recv. */
int bnet_messages_send(bnet_messages_t *messages, const void *buf, size_t bytes, int peer, int64_t tag,
		       bnet_ticket_t **ticket);
int bnet_messages_recv(bnet_messages_t *messages, void *buf, size_t bytes, int peer, int64_t tag,
		       bnet_ticket_t **ticket);
/* Waits until the number of messages that are over is not `seen`, and returns it; `seen`: all are over, and stopped. */
uint64_t bnet_messages_ended(bnet_messages_t *messages, uint64_t seen);
/* Waits until all sends are over, at most so many seconds. 0, or -ETIMEDOUT: some are not. */
int bnet_messages_drain(bnet_messages_t *messages, double seconds);
/* Sends that are not over. */
uint64_t bnet_messages_sends(bnet_messages_t *messages);
/* The messages that were sent to a rank so far, whether they are over or not, and those that were received from it. */
void bnet_messages_count(bnet_messages_t *messages, int peer, uint64_t *sent, uint64_t *received);
/* Ends all messages with -ECANCELED and refuses new ones. */
void bnet_messages_stop(bnet_messages_t *messages);
/* The same, and frees it with the group. Tickets stay valid. */
void bnet_messages_destroy(bnet_messages_t *messages);

/* cffi: end */

#if defined(__GNUC__)
#pragma GCC visibility pop
#endif
#if defined(__cplusplus)
}
#endif

#endif
