/* SPDX-License-Identifier: MIT
 *
 * Which stream of a connection gets the next slice, how large it is, and whether the stream may hold it. The rules are
 * in admission.h and slice.h; this applies them to streams. The connection's owner only.
 */
#ifndef BNET_SCHEDULER_H
#define BNET_SCHEDULER_H

#include <stdint.h>

#include "transport/conn.h"

/* Bytes that have been posted and not claimed. */
uint64_t bnet_scheduler_unclaimed(const struct bnet_conn *conn);

/* The stream that would complete a slice first, among the first `active` that are writable, idle and not in `refused`
 * (a bit for each index). NULL: none. */
struct bnet_stream *bnet_scheduler_pick(struct bnet_conn *conn, int active, uint64_t refused, uint64_t now);

/* Bytes of a message of `size` bytes that the stream should claim now, when `streams` share the work. 0: none, since
 * the stream is at its in-flight limit. now is 0 for a lone stream, which no limit holds. */
uint64_t bnet_scheduler_slice(const struct bnet_conn *conn, struct bnet_stream *stream, int streams, uint64_t size,
			      uint64_t now);

/* The stream has written `bytes`. */
void bnet_scheduler_written(struct bnet_stream *stream, uint64_t bytes, uint64_t now);

#endif
