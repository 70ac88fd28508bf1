/* SPDX-License-Identifier: MIT
 *
 * What NCCL hands its kernels, in one form for all its releases. A generation is a range of releases whose device
 * structures have the same layout; one file per generation says where the fields are. Everything here only reads
 * NCCL's memory, except through the pointers of struct emu_conn. A launch is used by the thread that plays it.
 */
#ifndef EMU_LAYOUT_H
#define EMU_LAYOUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

enum { EMU_STEPS = 8, EMU_PROTOCOLS = 3, EMU_TREE_ARITY = 3, EMU_BATCH_WORKS = 128 };

/* The values of ncclDataType_t, which no release has changed. */
enum emu_type {
	EMU_INT8,
	EMU_UINT8,
	EMU_INT32,
	EMU_UINT32,
	EMU_INT64,
	EMU_UINT64,
	EMU_FLOAT16,
	EMU_FLOAT32,
	EMU_FLOAT64,
	EMU_BFLOAT16,
	EMU_FLOAT8E4M3,
	EMU_FLOAT8E5M2,
	EMU_TYPES
};

enum emu_func {
	EMU_BROADCAST,
	EMU_REDUCE,
	EMU_ALL_GATHER,
	EMU_REDUCE_SCATTER,
	EMU_ALL_REDUCE,
	EMU_SEND_RECV,
	EMU_ALL_GATHER_V
};

enum emu_algo { EMU_TREE, EMU_RING, EMU_PAT };

/* The indices of NCCL's buffers. */
enum emu_proto { EMU_LL, EMU_LL128, EMU_SIMPLE };

/* EMU_PREMULSUM multiplies each rank's own input by the scalar whose bits are in arg (of the element type); the sum
 * follows. EMU_SUMPOSTDIV (integers only) divides the complete sum by arg. */
enum emu_op { EMU_SUM, EMU_PROD, EMU_MIN, EMU_MAX, EMU_PREMULSUM, EMU_SUMPOSTDIV };

/* Which elements of a collective a channel has, and in which portions. */
struct emu_schedule {
	enum { EMU_CONTIGUOUS, EMU_STRIDED } kind;
	/* EMU_CONTIGUOUS (2.20 and later): the channel has [offset, offset + count) of the elements. */
	ssize_t offset, count;
	ssize_t chunk;
	ssize_t last_chunk; /* ring allreduce in 2.20 and 2.21: the last loop's chunk; 0: derive it */
	/* EMU_STRIDED (before): the channels take turns over [0, size) */
	ssize_t size;
	ssize_t tree_chunk; /* lastChunkSize: the chunk of tree, broadcast and reduce with Simple, the last one's of the rest */
	int bid, channels, threads;
};

struct emu_coll {
	const void *sendbuff;
	void *recvbuff;
	size_t count; /* elements of one rank: how far the ranks' parts are apart in allgather and reducescatter */
	int root;
	struct emu_schedule schedule;
	uint64_t arg; /* the operation's scalar; a pointer has been dereferenced */
};

/* One direction has nothing to do where has_send or has_recv is false. send_rank == own rank: a copy. */
struct emu_p2p {
	void *send_addr, *recv_addr; /* this channel's part */
	size_t send_bytes, recv_bytes;
	int send_rank, recv_rank;
	int send_chunk, recv_chunk; /* bytes of data in a step */
	bool has_send, has_recv;
	bool send_ll, recv_ll;
};

/* A broadcast of the batched kind (2.29 and later). */
struct emu_bcast {
	int ring_depth;
	int chunk;
	const void *sendbuff;
	void *recvbuff;
	size_t bytes;
};

/* Works that NCCL's kernel starts together: the transfers of a batch run side by side, its collectives one after
 * another. */
struct emu_batch {
	enum emu_func func;
	enum emu_algo algo;
	enum emu_proto proto;
	enum emu_type type;
	enum emu_op op;
	int works;
	union {
		struct emu_coll coll[EMU_BATCH_WORKS];
		struct emu_p2p p2p[EMU_BATCH_WORKS];
		struct emu_bcast bcast[EMU_BATCH_WORKS];
	};
};

/* One direction of a connection to a peer: pointers into NCCL's memory. */
struct emu_conn {
	char *buffs[EMU_PROTOCOLS];
	uint64_t *tail, *head, *step;
	int step_bytes; /* distance of the Simple protocol's slots */
	/* What proxy and kernel tell each other about slot n: base + n * stride. NULL: the connection has none. */
	char *fifo_size;   /* kernel writes: bytes in the slot */
	char *fifo_offset; /* proxy writes: where the slot's data is, from buffs[EMU_SIMPLE] */
	char *fifo_mode;   /* proxy writes: 1 if fifo_offset counts; NULL: it always does where fifo_offset is given */
	size_t fifo_stride;
	int fifo_size_bytes;   /* 4 or 8 */
	int fifo_offset_bytes; /* 4 or 8 */
};

struct emu_channel {
	int id;
	int ring_prev, ring_next, ring_index;
	const int *ring_ranks;                  /* user ranks in the ring's order, from the own one */
	int tree_up, tree_down[EMU_TREE_ARITY]; /* -1: none */
};

struct emu_layout;

/* A kernel launch. */
struct emu_launch {
	const struct emu_layout *layout;
	int rank, ranks;
	int buffer_bytes[EMU_PROTOCOLS];
	int p2p_chunk_bytes; /* slot size of send and receive; 0: buffer_bytes[EMU_SIMPLE] / EMU_STEPS */
	const volatile uint32_t *abort_flag;
	int channels;
	int channel_ids[64];
	char *comm; /* NCCL's device communicator */
	char *args; /* own copy of the kernel's arguments; owner: the launch */
	size_t args_bytes;
};

/* Where a channel's walk through its batches stands. Zero before the first call. */
struct emu_cursor {
	bool started, done;
	int64_t at;
	int playing; /* works of the batch that was given out last */
};

/* The layout for a release, from ncclGetVersion's number; NULL if it has none. */
const struct emu_layout *emu_layout_find(int version);
/* The releases that have a layout, for people: "2.18.3, 2.20.5–2.21.5, …". */
const char *emu_layout_versions(void);

/* symbol(name) finds a symbol of the loaded NCCL (NULL: absent); the layout needs some tables. 0, or -1 with the name
 * of what is missing in *missing. */
int emu_layout_bind(const struct emu_layout *layout, void *(*symbol)(const char *name), const char **missing);

/* Copies the arguments of a kernel: as an array of pointers (before 2.22; cudaLaunchKernel) or as one buffer. 0, or -1
 * out of memory. emu_launch_close frees. */
int emu_launch_open(struct emu_launch *launch, const struct emu_layout *layout, void **pointers, const void *buffer,
		    size_t bytes);
void emu_launch_close(struct emu_launch *launch);

void emu_launch_channel(const struct emu_launch *launch, int id, struct emu_channel *channel);
void emu_launch_conn(const struct emu_launch *launch, int channel, int peer, bool send, int index,
		     struct emu_conn *conn);
/* The channel's next batch. 1, 0 after the last one, -1 for a kernel that is not emulated (what says which). What NCCL
 * wants to be told about consumed works is told here. index counts the launch's channels from 0. */
int emu_launch_next(const struct emu_launch *launch, int index, struct emu_cursor *cursor, struct emu_batch *batch,
		    const char **what);

#endif
