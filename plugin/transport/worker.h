/* SPDX-License-Identifier: MIT
 *
 * Threads that move data in place of NCCL's. Each connection is assigned to at most one worker, which makes the same
 * passes over it as the caller's thread would, under the same owner word; a worker that has nothing to do makes some of
 * those of a busy one. The caller only posts, wakes the worker and reads flags, except for small messages, which it
 * moves itself. A worker spins for a moment when nothing moves, then sleeps in epoll until a socket has something or a
 * post wakes it. Workers start with the first connection and end with the control thread.
 */
#ifndef BNET_WORKER_H
#define BNET_WORKER_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "transport/conn.h"

#define BNET_MAX_WORKERS 16

/* How many workers suit a process that shares `processors` with the `ranks` of its host (itself included), over links
 * of speed_mbps in total. Pure. */
int bnet_workers_for(int processors, int ranks, int64_t speed_mbps);
/* Ranks of this host, from the launcher's environment variables; 1 without any. */
int bnet_local_ranks(void);

/* BAGUA_NET_THREADS, or the number that suits the processors that the calling thread may use. */
int bnet_workers_choose(const struct bnet_config *config, const struct bnet_device_table *devices);
/* The number of workers, set once under the engine's lock; it does not depend on the processors of later callers.
 * Forked children keep it. */
void bnet_workers_want(int count);
int bnet_workers_wanted(void);
/* Under the engine's lock. A connection gets a worker, if there are any and one has room. */
void bnet_worker_adopt(struct bnet_conn *conn);
/* Under the engine's lock: the connection has no worker from here on, but they may still look at it. */
void bnet_worker_release(struct bnet_conn *conn);
/* After that, for a connection that is still in the engine's list, and not under the lock, since it waits for a round
 * of each worker: none touches the connection any more. */
void bnet_workers_await(void);
/* Under the engine's lock, from the control thread. They have ended when this returns. */
void bnet_workers_stop(void);
/* In a forked child: the threads are not there any more. */
void bnet_workers_forget(void);

/* Something was posted on a connection that has a worker: the worker wakes if it sleeps, another one if it is busy with
 * other connections. Any thread. */
void bnet_worker_wake(const struct bnet_conn *conn);

#endif
