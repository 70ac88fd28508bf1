/* SPDX-License-Identifier: MIT
 *
 * For fuzz_tagged.c: the rank's two peers as they are heard and answered, the network in memory between them, and the
 * clock.
 */
#ifndef BNET_FUZZ_TAGGED_NETWORK_H
#define BNET_FUZZ_TAGGED_NETWORK_H

#include <errno.h>
#include <stdbool.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>

#include "coll/connect.h"
#include "script.h"
#include "tagged/tagged.h"

#define RANKS 3
#define TAGS 4
#define KEYS 8
#define OPS 48
#define LARGEST 600000 /* more than a chunk */
#define TOO_MUCH 5000  /* credit */
#define QUEUE 32       /* messages to this rank */
#define PASSES 10000   /* it hangs */

/* A message of the network; of one to this rank, its bytes are the queue's. */
struct message {
	char *data;
	size_t size;
	bool sends, used, is_packet;
	uint64_t hash; /* of a send, when it was posted */
};

struct peer {
	int rank;
	bool absent, lost; /* it has not connected; nothing moves any more */
	bool holds;        /* what it was sent stays under way */
	struct message queue[QUEUE], requests[2 * BNET_COLL_DEPTH];
	size_t queued, taken;
	char packet[BNET_TAGGED_SLOT];
	size_t packed;
	struct bnet_tagged_frame data; /* the last DATA that it has packed */
	/* what it has said and heard */
	uint64_t asked[KEYS], unanswered; /* of its own keys, and of all */
	uint64_t owed, charged;           /* credit: of its EAGER, and of those that it has got */
	uint64_t keys[KEYS];              /* the last ones that this rank has asked with */
	size_t nkeys;
	size_t incoming; /* bytes of the DATA that it is being sent */
};

struct op {
	char *buffer;
	size_t size;
	unsigned row; /* of sizes */
	int64_t tag;
	bool sends, over;
};

static struct {
	uint64_t now_ns;
	struct peer peers[RANKS];
	struct op ops[OPS];
	size_t nops, nover;
	int nlistens;
	bool forged; /* a peer has said something of its own making: the content is unknown */
	bnet_tagged_t *tagged;
} run;

static const size_t sizes[] = {0, 1, 100, BNET_TAGGED_EAGER_MAX, 20000, LARGEST};
#define CLASSES (sizeof(sizes) / sizeof(sizes[0]))
/* Of a tag's messages of each size. */
static char contents[TAGS][CLASSES][LARGEST];

/* ---- interposed ---- */

int clock_gettime(clockid_t clock, struct timespec *now)
{
	if (clock != CLOCK_MONOTONIC || run.now_ns == 0)
		return (int)syscall(SYS_clock_gettime, clock, now);
	run.now_ns += 1000000; /* so that whoever waits comes to an end */
	now->tv_sec = (time_t)(run.now_ns / 1000000000);
	now->tv_nsec = (long)(run.now_ns % 1000000000);
	return 0;
}

int nanosleep(const struct timespec *time, struct timespec *left)
{
	(void)left;
	run.now_ns += (uint64_t)time->tv_sec * 1000000000 + (uint64_t)time->tv_nsec;
	return 0;
}

/* Other processes are none of the input's business. */
ssize_t process_vm_readv(pid_t process, const struct iovec *here, unsigned long nhere, const struct iovec *there,
			 unsigned long nthere, unsigned long flags)
{
	if (process == getpid())
		return syscall(SYS_process_vm_readv, process, here, nhere, there, nthere, flags);
	errno = ESRCH;
	return -1;
}

/* ---- what this rank says ---- */

static uint64_t hash_of(const char *data, size_t size)
{
	uint64_t hash = 14695981039346656037ULL;

	for (size_t at = 0; at < size; at += size < 64 ? 1 : size / 64)
		hash = (hash ^ (uint8_t)data[at]) * 1099511628211ULL;
	return hash;
}

static void hear_frame(struct peer *peer, const struct bnet_tagged_frame *frame)
{
	EXPECT(frame->credit <= peer->owed);
	peer->owed -= frame->credit;
	if (frame->kind == BNET_TAGGED_CTS || frame->kind == BNET_TAGGED_READ) {
		EXPECT(peer->unanswered > 0);
		peer->unanswered--;
	}
	if (frame->kind == BNET_TAGGED_EAGER) {
		peer->charged += bnet_tagged_frame_cost(frame);
		EXPECT(peer->charged <= BNET_TAGGED_WINDOW);
	}
	if (frame->kind == BNET_TAGGED_RTS || frame->kind == BNET_TAGGED_OFFER)
		peer->keys[peer->nkeys++ % KEYS] = frame->key;
	EXPECT(frame->kind != BNET_TAGGED_OFFER || peer->rank == 1);
	if (frame->kind == BNET_TAGGED_DATA)
		peer->incoming = frame->bytes;
}

/* Frames, or a part of what the last one announced. */
static void hear(struct peer *peer, const char *data, size_t size)
{
	const char *const end = data + size;

	if (peer->incoming) {
		EXPECT(size > 0 && size <= peer->incoming && size <= BNET_COLL_CHUNK);
		peer->incoming -= size;
		return;
	}
	EXPECT(size > 0 && size <= BNET_TAGGED_SLOT);
	while (data < end) {
		struct bnet_tagged_frame frame;
		const char *payload = bnet_tagged_frame_decode(data, (size_t)(end - data), &frame);

		EXPECT(payload && !peer->incoming);
		hear_frame(peer, &frame);
		data = payload + bnet_tagged_frame_payload(&frame);
	}
}

/* ---- the network ---- */

static ncclResult_t net_init(ncclDebugLogger_t logger)
{
	(void)logger;
	return ncclSuccess;
}

static ncclResult_t net_devices(int *count)
{
	*count = 1;
	return ncclSuccess;
}

static ncclResult_t net_properties(int dev, ncclNetProperties_v8_t *props)
{
	(void)dev;
	*props = (ncclNetProperties_v8_t){.name = "memory"};
	return ncclSuccess;
}

/* Of the peers in their order. */
static ncclResult_t net_listen(int dev, void *handle, void **comm)
{
	(void)dev;
	(void)handle;
	*comm = &run.peers[++run.nlistens];
	return ncclSuccess;
}

static ncclResult_t net_connect(int dev, void *handle, void **comm, ncclNetDeviceHandle_t **device)
{
	struct peer *peer = &run.peers[*(const uint8_t *)handle];

	(void)dev;
	(void)device;
	*comm = peer->absent ? NULL : peer;
	return peer->lost ? ncclRemoteError : ncclSuccess;
}

static ncclResult_t net_accept(void *listen, void **comm, ncclNetDeviceHandle_t **device)
{
	struct peer *peer = listen;

	(void)device;
	*comm = peer->absent ? NULL : peer;
	return ncclSuccess;
}

static ncclResult_t net_reg(void *comm, void *data, size_t size, int type, void **mhandle)
{
	(void)comm;
	(void)size;
	(void)type;
	*mhandle = data;
	return ncclSuccess;
}

static ncclResult_t net_dereg(void *comm, void *mhandle)
{
	(void)comm;
	(void)mhandle;
	return ncclSuccess;
}

static ncclResult_t post(struct peer *peer, const struct message *message, void **request)
{
	for (size_t i = 0; i < sizeof(peer->requests) / sizeof(peer->requests[0]); i++) {
		if (peer->requests[i].used)
			continue;
		peer->requests[i] = *message;
		*request = &peer->requests[i];
		return ncclSuccess;
	}
	abort(); /* the library keeps no more under way */
}

static ncclResult_t net_isend(void *comm, void *data, int size, int tag, void *mhandle, void **request)
{
	(void)tag;
	(void)mhandle;
	hear(comm, data, (size_t)size);
	return post(comm,
		    &(struct message){.data = data,
				      .size = (size_t)size,
				      .sends = true,
				      .used = true,
				      .hash = hash_of(data, (size_t)size)},
		    request);
}

static ncclResult_t net_irecv(void *comm, int n, void **data, int *n_sizes, int *tags, void **mhandles, void **request)
{
	(void)n;
	(void)tags;
	(void)mhandles;
	return post(comm, &(struct message){.data = data[0], .size = (size_t)n_sizes[0], .used = true}, request);
}

static struct peer *peer_of(const struct message *request)
{
	for (int rank = 1; rank < RANKS; rank++)
		if (request >= run.peers[rank].requests && request < run.peers[rank].requests + 2 * BNET_COLL_DEPTH)
			return &run.peers[rank];
	abort();
}

/* The library may not change a buffer while its send is under way. */
static ncclResult_t test_send(const struct peer *peer, struct message *request, int *done)
{
	EXPECT(hash_of(request->data, request->size) == request->hash);
	*done = !peer->holds;
	request->used = peer->holds;
	return ncclSuccess;
}

/* What the library may take from a packet: up to where it is malformed. */
static void note(struct peer *peer, const struct message *packet)
{
	const char *at = packet->data, *const end = at + packet->size;
	struct bnet_tagged_frame frame;
	const char *payload;

	while (at < end && (payload = bnet_tagged_frame_decode(at, (size_t)(end - at), &frame))) {
		if (frame.kind == BNET_TAGGED_EAGER)
			peer->owed += bnet_tagged_frame_cost(&frame);
		if (frame.kind == BNET_TAGGED_RTS || frame.kind == BNET_TAGGED_OFFER)
			peer->unanswered++;
		peer->charged -= frame.credit < peer->charged ? frame.credit : peer->charged;
		at = payload + bnet_tagged_frame_payload(&frame);
	}
}

static ncclResult_t test_receive(struct peer *peer, struct message *request, int *done, int *size)
{
	const struct message *next = &peer->queue[peer->taken % QUEUE];

	*done = peer->taken < peer->queued;
	if (!*done)
		return ncclSuccess;
	if (next->size > request->size)
		return ncclInternalError; /* as bagua_net does */
	memcpy(request->data, next->data, next->size);
	if (next->is_packet)
		note(peer, next);
	if (size)
		*size = (int)next->size;
	free(next->data);
	peer->taken++;
	request->used = false;
	return ncclSuccess;
}

static ncclResult_t net_test(void *request, int *done, int *size)
{
	struct peer *peer = peer_of(request);

	*done = 0;
	if (peer->lost)
		return ncclRemoteError;
	return ((struct message *)request)->sends ? test_send(peer, request, done)
						  : test_receive(peer, request, done, size);
}

static ncclResult_t net_close(void *comm)
{
	(void)comm;
	return ncclSuccess;
}

static const ncclNet_v8_t network = {
	.name = "memory",
	.init = net_init,
	.devices = net_devices,
	.getProperties = net_properties,
	.listen = net_listen,
	.connect = net_connect,
	.accept = net_accept,
	.regMr = net_reg,
	.deregMr = net_dereg,
	.isend = net_isend,
	.irecv = net_irecv,
	.test = net_test,
	.closeSend = net_close,
	.closeRecv = net_close,
	.closeListen = net_close,
};

#endif
