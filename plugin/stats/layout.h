/* SPDX-License-Identifier: MIT
 *
 * The file in which a process shows what it does: `bagua-net top` reads it while the job runs, hangs, or has crashed.
 * It contains numbers and offsets, and no pointer. A text in it names each field with its place, so that a reader of
 * another version finds those that it knows.
 *
 *   header, text, the process's row, connections' rows, streams' rows, operations' rows
 *
 * One thread writes, the control thread, under the engine's lock. A row begins and ends with the same number, another
 * one each time, so that a reader knows when it was being written. `used` is 0 in a row of nothing.
 */
#ifndef BNET_STATS_LAYOUT_H
#define BNET_STATS_LAYOUT_H

#include <stdint.h>

#include "base/counters.h"

#define BNET_STATS_MAGIC "BNETSTAT"
#define BNET_STATS_VERSION 1
#define BNET_STATS_TEXT 64
#define BNET_STATS_CONNECTIONS 256
#define BNET_STATS_STREAMS 1024
#define BNET_STATS_OPERATIONS 32

/* Times are of the wall clock, in µs since 1970; durations in µs. N: a number. T: a text that ends with a zero byte. */
#define BNET_STATS_PROCESS(N, T)                                                        \
	N(pid)                                                                          \
	N(started_us)                                                                   \
	N(published_us)         /* the last round over all rows ended then */           \
	N(processor_us)         /* of all threads together */                           \
	N(contended)            /* 1: it shares its processors */                       \
	N(connections_left_out) /* for which there was no row */                        \
	N(streams_left_out)                                                             \
	N(events_dropped) /* in recordings for `bagua-net trace`: they found no room */ \
	N(connecting)                                                                   \
	N(connecting_since_us) /* the oldest of them */                                 \
	T(version)                                                                      \
	T(program)                                                                      \
	T(host)                                                                         \
	T(rank) /* as the launcher says, as the following; or empty */                  \
	T(world_size)                                                                   \
	T(local_rank)                                                                   \
	T(job)

/* Of a connection, since its beginning. */
#define BNET_STATS_CONNECTION(N, T)                                                    \
	N(id)                                                                          \
	N(communicator) /* NCCL's commId; 0: not known */                              \
	N(sender)                                                                      \
	N(opened_us)                                                                   \
	N(published_us) /* the row is of this time */                                  \
	N(error)        /* errno; 0: it works */                                       \
	N(streams)                                                                     \
	N(level)       /* of a sender: streams that take slices */                     \
	N(most)        /* of a sender: streams that it may have */                     \
	N(outstanding) /* messages now */                                              \
	N(posted_us)   /* for so long some were */                                     \
	N(still_us)    /* some are, and for so long nothing has moved */               \
	N(local_peer)  /* 1: the peer is this machine */                               \
	N(device_us)   /* its counters are of this time */                             \
	N(device_sent) /* bytes of its device, of all users; 0: not known */           \
	N(device_received)                                                             \
	N(device_mbps) /* 0: not known */                                              \
	N(kept_us)     /* when the last trial of more streams was kept; 0: none was */ \
	N(kept_fewer)                                                                  \
	N(kept_more)                                                                   \
	N(kept_with_fewer) /* bytes/s of all connections to that host */               \
	N(kept_with_more)                                                              \
	N(refused_us) /* … and the last one that was not */                          \
	N(refused_fewer)                                                               \
	N(refused_more)                                                                \
	N(refused_with_fewer)                                                          \
	N(refused_with_more)                                                           \
	N(latency_us) /* of the messages that were timed, together */                  \
	T(device)                                                                      \
	T(peer)

/* Messages of a connection that took less than 2^N µs from the post until they were done, and not less than half of it;
 * the last one: all that took longer. One of four is timed. */
#define BNET_STATS_LATENCY(N) \
	N(latency_0)          \
	N(latency_1)          \
	N(latency_2)          \
	N(latency_3)          \
	N(latency_4)          \
	N(latency_5)          \
	N(latency_6)          \
	N(latency_7)          \
	N(latency_8)          \
	N(latency_9)          \
	N(latency_10)         \
	N(latency_11)         \
	N(latency_12)         \
	N(latency_13)         \
	N(latency_14)         \
	N(latency_15)         \
	N(latency_16)         \
	N(latency_17)         \
	N(latency_18)         \
	N(latency_19)         \
	N(latency_20)         \
	N(latency_21)         \
	N(latency_22)         \
	N(latency_23)

/* Of a stream, since its beginning, as the kernel counts. */
#define BNET_STATS_STREAM(N, T)                                           \
	N(connection) /* its id */                                        \
	N(sender)                                                         \
	N(serial)                                                         \
	N(bytes_acked)                                                    \
	N(bytes_received)                                                 \
	N(busy_us)         /* with bytes in flight */                     \
	N(rwnd_limited_us) /* … of it, limited by the peer's window */  \
	N(sndbuf_limited_us)                                              \
	N(rtt_us)                                                         \
	N(rttvar_us)                                                      \
	N(min_rtt_us)                                                     \
	N(delivery_rate)     /* bytes/s, of what was acknowledged last */ \
	N(congestion_window) /* segments */                               \
	N(segment)           /* bytes */                                  \
	N(segments_sent)     /* with data */                              \
	N(segments_received)                                              \
	N(retransmits)                                                    \
	N(unacked)   /* segments */                                       \
	N(probes)    /* that the peer's kernel has not answered */        \
	N(unsent)    /* bytes */                                          \
	N(silent_us) /* since something came from the peer's host */      \
	N(broken)                                                         \
	T(local)                                                          \
	T(remote)                                                         \
	T(congestion_control)

/* Of operations of one kind, where the process runs collectives of its own: common/look.h. */
#define BNET_STATS_OPERATION(N, T) \
	N(calls)                   \
	N(failed)                  \
	N(bytes)                   \
	N(time_us)                 \
	N(waiting_us)              \
	N(running)                 \
	N(began_us)                \
	T(operation)

#define BNET_STATS_NUMBER(name) uint64_t name;
#define BNET_STATS_CHARS(name) char name[BNET_STATS_TEXT];

struct bnet_stats_process {
	uint64_t begins, used;
	BNET_STATS_PROCESS(BNET_STATS_NUMBER, BNET_STATS_CHARS)
	BNET_PROCESS_COUNTERS(BNET_STATS_NUMBER)
	BNET_CONN_COUNTERS(BNET_STATS_NUMBER) /* of all connections, and of those that are no more */
	uint64_t ends;
};

struct bnet_stats_connection {
	uint64_t begins, used;
	BNET_STATS_CONNECTION(BNET_STATS_NUMBER, BNET_STATS_CHARS)
	BNET_CONN_COUNTERS(BNET_STATS_NUMBER)
	BNET_STATS_LATENCY(BNET_STATS_NUMBER)
	uint64_t ends;
};

struct bnet_stats_stream {
	uint64_t begins, used;
	BNET_STATS_STREAM(BNET_STATS_NUMBER, BNET_STATS_CHARS)
	uint64_t ends;
};

struct bnet_stats_operation {
	uint64_t begins, used;
	BNET_STATS_OPERATION(BNET_STATS_NUMBER, BNET_STATS_CHARS)
	uint64_t ends;
};

struct bnet_stats_header {
	char magic[8];
	uint64_t version; /* changes when older readers would be wrong */
	uint64_t size;    /* of the file */
	uint64_t text_at, text_size;
};

#endif
