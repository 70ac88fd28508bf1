/* SPDX-License-Identifier: MIT
 *
 * A quota of streams for each device of a host, divided among the processes and their connections, so that 63 peers do
 * not mean 64 streams for each of them. A connection shares it with those that are in use at the same time: a job may
 * alternate between an all-to-all of hundreds of connections and a ring of a few, and the ring's have it to themselves.
 * The control thread, under the engine's lock; bnet_quota_per_connection is pure.
 */
#ifndef BNET_QUOTA_H
#define BNET_QUOTA_H

#include <stdbool.h>
#include <stdint.h>

#include "device/device.h"
#include "transport/conn.h"

/* Streams that a device's connections may have together, beyond one for each. */
#define BNET_QUOTA 256

/* The most streams of a connection where a process of so many has so many connections in use. At least 1. */
int bnet_quota_per_connection(int processes, int connections);

/* A connection of this device is being made: other processes count this one from here on, until bnet_quota_end. */
void bnet_quota_join(const struct bnet_device *dev);
/* May this connection have so many streams before it has moved? As long as all of these are within this process's part,
 * by the launcher's word, since nobody has counted yet. */
bool bnet_quota_early(struct bnet_conn *conn, int streams);
/* It moves and lacks so many streams: before it is known with how many it shares, it waits for that or gets them as
 * above. */
void bnet_quota_admit(struct bnet_conn *conn, int missing);
/* It has moved, and has a share of its own by now; or it ends. */
void bnet_quota_early_over(struct bnet_conn *conn);
/* Counts the connections in use, among those that move. Where they are very many, not each time. */
void bnet_quota_look(uint64_t now_us);
/* This one moves no longer. */
void bnet_quota_unused(struct bnet_conn *conn);
/* Once a second: limits the connections and their paths to their part of it. */
void bnet_quota_tick(uint64_t now_us);
/* Withdraws what other processes see of this one: when the control thread ends, and in a forked child. */
void bnet_quota_end(void);

#endif
