/* SPDX-License-Identifier: MIT
 *
 * What a sender's stream was given and its peer's kernel has not acknowledged, slice by slice: a stream that takes its
 * place sends it again. Until then a slice's bytes are there, in the request's memory, which is not done before, or in
 * a copy. No system call. The connection's owner only.
 */
#ifndef BNET_LEDGER_H
#define BNET_LEDGER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "wire/wire.h"

struct bnet_request;

/* A slice that was not written whole ends nowhere. */
#define BNET_UNWRITTEN UINT64_MAX

struct bnet_sent_slice {
	struct bnet_wire_data data;
	const char *bytes;
	struct bnet_request *request; /* credited when the slice is released; NULL: it has been */
	void *copy;                   /* which `bytes` are in; NULL: the request's memory */
	uint64_t end;                 /* bytes of the stream until then; BNET_UNWRITTEN */
	uint32_t calls; /* the stream's first calls without a copy, which end before the slice is released */
	bool pinned;    /* … of which some are the slice's own: the kernel reads the request's memory */
};

struct bnet_ledger {
	struct bnet_sent_slice *rows; /* a ring */
	uint32_t capacity, first, count;
	uint32_t held;     /* those with a request */
	uint64_t released; /* the end of the last one that was released */
};

/* Makes room for one more. -ENOMEM. */
int bnet_ledger_reserve(struct bnet_ledger *ledger);
/* There must be room. */
void bnet_ledger_add(struct bnet_ledger *ledger, const struct bnet_sent_slice *slice);
/* The i-th, from the oldest. */
struct bnet_sent_slice *bnet_ledger_at(struct bnet_ledger *ledger, uint32_t i);
/* Removes the oldest one. There must be one. */
struct bnet_sent_slice bnet_ledger_take(struct bnet_ledger *ledger);
void bnet_ledger_free(struct bnet_ledger *ledger);

static inline bool bnet_ledger_is_full(const struct bnet_ledger *ledger)
{
	return ledger->count == ledger->capacity;
}

/* ---- copies ---- */

/* Of a connection. Those that are free are kept for the next ones, in classes of BNET_SMALL_COPY bytes, of twice as
 * many, and so on up to 1 MiB; of all but the first class up to BNET_COPIES_KEPT bytes. An allreduce of 16 MiB over
 * a line of 20 ms takes 22 ms of a processor so, and 30 where each copy is allocated, since the kernel clears the
 * pages. */
#define BNET_SMALL_COPY UINT64_C(2048)
#define BNET_COPY_CLASSES 10
#define BNET_COPIES_KEPT (UINT64_C(8) << 20)
struct bnet_copies {
	void *free[BNET_COPY_CLASSES];
	uint64_t bytes; /* of those in use */
	uint64_t kept;  /* of those that are free, without the first class */
	bool used;      /* since bnet_copies_rest was called last */
};

/* Memory for a slice's header, and for its bytes at BNET_WIRE_DATA_HEADER. NULL: none is left. */
void *bnet_copy_get(struct bnet_copies *copies, uint64_t length);
/* Takes back one for as many bytes. */
void bnet_copy_put(struct bnet_copies *copies, void *copy, uint64_t length);
void bnet_copies_free(struct bnet_copies *copies);
/* Frees some of those that are free, unless one was taken since the last call. False: none is left. */
bool bnet_copies_rest(struct bnet_copies *copies);

#endif
