/* SPDX-License-Identifier: MIT
 *
 * Where the bytes of a receiver's stream come from: its socket, until its end, its reset, or the limit that it has once
 * another stream takes its place. They go into the payload's place where one is under way, and into the stream's
 * read-ahead, which rx.c parses. The connection's owner only.
 */
#ifndef BNET_SOURCE_H
#define BNET_SOURCE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "transport/conn.h"

/* One receive call, where the read-ahead is empty or holds the beginning of a header. New bytes, 0 for nothing now or
 * the end, or -errno, and the connection has failed. drained: the socket held less than it was asked for. */
ssize_t bnet_source_receive(struct bnet_conn *conn, struct bnet_stream *stream, bool *drained);
/* Bytes behind the read-ahead's next `size` that the stream brings. */
uint64_t bnet_source_left_behind(const struct bnet_incoming *in, uint32_t size);
/* Fails the connection: what is outstanding cannot arrive any more. Returns the error, a negative errno. */
int bnet_source_lost(struct bnet_conn *conn, int error, const char *how);

static inline uint32_t bnet_source_unparsed(const struct bnet_read_ahead *ahead)
{
	return ahead->to - ahead->from;
}

/* Another stream takes the place of the one with the serial start->repairs. start->position: how many bytes of that one
 * are, or will be, received; its sender sends the slices that end behind them again, on the new one. The same answer to
 * the same question, until the new one has carried something. -ESTALE: a later try has taken that place. The owner, who
 * adds the stream then, under the engine's lock. */
int bnet_source_replace(struct bnet_conn *conn, struct bnet_stream_start *start);

#endif
