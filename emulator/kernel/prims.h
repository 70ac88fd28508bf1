/* SPDX-License-Identifier: MIT
 *
 * The primitives of NCCL's kernels: one chunk from up to three peers and the own buffer to up to three peers and the
 * own buffer, in the steps of the protocol. Called within a fiber; every call may give way to other fibers.
 */
#ifndef EMU_KERNEL_PRIMS_H
#define EMU_KERNEL_PRIMS_H

#include "kernel/play.h"

/* One direction of a connection while a primitive uses it. */
struct emu_link {
	struct emu_conn conn;
	uint64_t step; /* the next one */
	uint64_t seen; /* what the other side was last known to have reached: head for a sender, tail for a receiver */
};

/* What all moves of a primitive have in common. */
struct emu_kind {
	enum emu_proto proto;
	enum emu_type type;
	enum emu_op op;
	uint64_t scalar;
	/* Simple: a chunk is cut into this many slices of this many steps. */
	int slices, slice_steps;
	int step_bytes; /* 0: that of the protocol's buffer */
	int connection; /* 0: collectives, 1: send and receive */
};

/* Ranks, ended by -1 or by their number; NULL: none. */
struct emu_peers {
	const int *from, *to;
	int froms, tos;
};

struct emu_protocol;

struct emu_prims {
	struct emu_fibers *fibers;
	const struct emu_protocol *protocol;
	struct emu_kind kind;
	size_t element;    /* bytes */
	size_t step_bytes; /* of the buffer */
	struct emu_link from[EMU_TREE_ARITY], to[EMU_TREE_ARITY];
	int froms, tos;
};

struct emu_move {
	ssize_t count; /* elements; below 0 counts as 0 */
	bool receive, send;
	bool own;           /* the source is the rank's own input, to which EMU_PREMULSUM applies */
	bool complete;      /* the result is complete: EMU_SUMPOSTDIV applies */
	const void *source; /* NULL: none */
	void *destination;  /* NULL: none */
};

void emu_prims_open(struct emu_prims *prims, struct emu_lane *lane, const struct emu_kind *kind,
		    const struct emu_peers *peers);
void emu_prims_move(struct emu_prims *prims, const struct emu_move *move);
/* Saves the steps for the connection's next use. */
void emu_prims_close(struct emu_prims *prims);

/* ---- for the protocols ---- */

struct emu_protocol {
	void (*open)(struct emu_prims *prims);
	void (*move)(struct emu_prims *prims, const struct emu_move *move);
};

extern const struct emu_protocol emu_simple, emu_ll, emu_ll128;

/* send: the direction. connection: 0 for collectives, 1 for send and receive. */
void emu_link_open(struct emu_link *link, struct emu_lane *lane, int peer, bool send, int connection);
/* Waits until the link has steps more to receive; to send, room for steps more. */
void emu_link_wait_data(const struct emu_prims *prims, struct emu_link *link, int steps);
void emu_link_wait_room(const struct emu_prims *prims, struct emu_link *link, int steps);
/* Tells the proxy how much the slot of the current step holds. Before the tail. */
void emu_link_set_size(const struct emu_link *link, size_t bytes);
void emu_link_publish(uint64_t *counter, uint64_t value);

/* The sources, in order: the move's if it has one, then received ones. outputs: the move's destination if it has one,
 * then those sent. Reduces count elements of all sources into all outputs. Both arrays have room for one more. */
struct emu_parts {
	const void *sources[EMU_TREE_ARITY + 1];
	void *outputs[EMU_TREE_ARITY + 1];
	int source_count, output_count;
	bool own, complete;
};

void emu_prims_combine(const struct emu_prims *prims, const struct emu_parts *parts, size_t count);

#endif
