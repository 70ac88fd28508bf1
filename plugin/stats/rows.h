/* SPDX-License-Identifier: MIT
 *
 * What the rows of layout.h contain. Counters stay where they are counted, and the kernel is asked for a stream's
 * numbers then, so that the data path knows nothing of this. The control thread, under the engine's lock.
 */
#ifndef BNET_STATS_ROWS_H
#define BNET_STATS_ROWS_H

#include "common/look.h"
#include "device/traffic.h"
#include "stats/layout.h"
#include "transport/conn.h"

/* What does not change: what the launcher says of this process. Before the control thread runs. */
void bnet_row_configure(struct bnet_stats_process *process);
/* What does; begins and ends, what was left out and what is connecting are the caller's. */
void bnet_row_of_process(struct bnet_stats_process *process);
/* Senders whose first stream's handshake is not complete. */
struct bnet_connecting {
	uint64_t count, since_ms; /* since_ms: when the oldest one began, or 0 */
};

struct bnet_connecting bnet_connecting_now(void);
/* What all users of a device have moved, in this round. */
struct bnet_device_row {
	uint32_t round;
	uint64_t at_us;
	struct bnet_traffic traffic;
};

void bnet_row_of_connection(struct bnet_stats_connection *row, const struct bnet_conn *conn,
			    const struct bnet_device_row *device);
void bnet_row_of_operation(struct bnet_stats_operation *row, const struct bnet_operation *operation);
/* A system call or four. */
void bnet_row_of_stream(struct bnet_stats_stream *row, const struct bnet_conn *conn, const struct bnet_stream *stream);

#endif
