/* SPDX-License-Identifier: MIT
 *
 * Sends without a copy (MSG_ZEROCOPY). The kernel keeps references to a message's pages instead of copying them, and
 * says on the socket's error queue, by the number of the call, when it has let go of them: not before the peer has
 * acknowledged them. Until then the request is not done, so that nobody reuses its memory. Only the connection's owner
 * comes here.
 *
 * Left to itself, a connection finds out whether that pays: it sends in turn with and without a copy, and takes what
 * cost less time. Where the kernel copies all the same (to this machine, through virtual cables, under a packet
 * capture), the first notification says so, and that was it.
 */
#ifndef BNET_ZEROCOPY_H
#define BNET_ZEROCOPY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct bnet_conn;
struct bnet_request;
struct bnet_stream;

enum bnet_zerocopy_mode {
	BNET_ZEROCOPY_OFF,
	BNET_ZEROCOPY_TRIAL,
	BNET_ZEROCOPY_ON,
};

/* Of a connection. */
struct bnet_zerocopy {
	enum bnet_zerocopy_mode mode;
	bool forced;       /* also where the kernel copies */
	struct bnet_zerocopy_cost {
		uint64_t bytes;
		uint64_t ns;   /* in the calls that sent them, and that asked for their notifications */
	} copied, shared;  /* of the trial */
};

struct bnet_zerocopy_call {
	struct bnet_request *request; /* NULL: given up */
	uint64_t bytes;
	bool over;                    /* told before an earlier one */
};

/* Of a stream: the calls whose end has not been told. The kernel has room for the notifications of some 170
 * (net.core.optmem_max). */
#define BNET_ZEROCOPY_PENDING 64
struct bnet_zerocopy_calls {
	bool enabled;      /* SO_ZEROCOPY is set */
	uint32_t made;     /* the kernel's number of the next one */
	uint32_t told;     /* … of the first one whose end has not been told */
	struct bnet_zerocopy_call rows[BNET_ZEROCOPY_PENDING];
};

static inline bool bnet_zerocopy_pending(const struct bnet_zerocopy_calls *calls)
{
	return calls->made != calls->told;
}

/* Pure: what a trial has found out so far. */
enum bnet_zerocopy_mode bnet_zerocopy_judge(const struct bnet_zerocopy *zero);

/* A new sender, once its peer is known. */
void bnet_zerocopy_start(struct bnet_conn *conn);
/* Should what the stream has begun go without a copy? */
bool bnet_zerocopy_wants(struct bnet_conn *conn, struct bnet_stream *stream);
/* Sends payload only, without a copy; where the kernel refuses that, with one. Bytes, or -errno. What went without a
 * copy counts as sent when the kernel has let go of it. */
ssize_t bnet_zerocopy_send(struct bnet_conn *conn, struct bnet_stream *stream);
/* What a call costs, during a trial: when it began, 0 where nobody wants to know; and its end. */
uint64_t bnet_zerocopy_clock(const struct bnet_conn *conn, const struct bnet_stream *stream);
void bnet_zerocopy_cost(struct bnet_conn *conn, bool shared, uint64_t bytes, uint64_t since);
/* Takes the notifications that are there; counts their bytes as sent. */
void bnet_zerocopy_reap(struct bnet_conn *conn, struct bnet_stream *stream);
/* The connection is over. Streams that have unfinished calls are reset, which makes the kernel forget what it has not
 * sent. */
void bnet_zerocopy_reset(struct bnet_conn *conn);
/* … and waits, a tenth of a second at the most, until the kernel has let go of everything: its memory may go then. */
void bnet_zerocopy_release(struct bnet_conn *conn);

#endif
