/* SPDX-License-Identifier: MIT
 *
 * Sends without a copy (MSG_ZEROCOPY). The kernel keeps references to a message's pages instead of copying them, and
 * reports on the socket's error queue, by the number of the call, when it has released them, which is after the peer
 * has acknowledged them. Until then the slice stays in the stream's ledger (ledger.h) and its request is not done, so
 * that its memory is not reused. The connection's owner only.
 *
 * With BAGUA_NET_ZEROCOPY=-1 a connection finds out whether that pays: it sends alternately with and without a copy,
 * and keeps what cost less time. Where the kernel copies anyway (to this machine, through virtual cables, under a
 * packet capture), the first notification reports it and disables zerocopy for the connection.
 */
#ifndef BNET_ZEROCOPY_H
#define BNET_ZEROCOPY_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "transport/conn.h"

/* Pure: what a trial has found so far. */
enum bnet_zerocopy_mode bnet_zerocopy_judge(const struct bnet_zerocopy *zerocopy);

/* A new sender, once its peer is known. */
void bnet_zerocopy_start(struct bnet_conn *conn);
/* Should the slice that the stream is writing go without a copy? */
bool bnet_zerocopy_wants(struct bnet_conn *conn, struct bnet_stream *stream);
/* Sends payload without a copy; where the kernel refuses that, with one. Bytes, or -errno. */
ssize_t bnet_zerocopy_send(struct bnet_conn *conn, struct bnet_stream *stream);
/* The cost of a call, during a trial: its begin, 0 where it does not count, and its end. */
uint64_t bnet_zerocopy_clock(const struct bnet_conn *conn, const struct bnet_stream *stream);
void bnet_zerocopy_cost(struct bnet_conn *conn, bool without_copy, uint64_t bytes, uint64_t since);
/* Reads the notifications that are there. */
void bnet_zerocopy_reap(struct bnet_conn *conn, struct bnet_stream *stream);
/* The connection is over: streams with unfinished calls are reset, so that the kernel forgets their unsent bytes. */
void bnet_zerocopy_reset(struct bnet_conn *conn);
/* Waits until the kernel has released everything, a tenth of a second at most; the memory may be freed then. */
void bnet_zerocopy_release(struct bnet_conn *conn);

#endif
