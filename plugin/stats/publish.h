/* SPDX-License-Identifier: MIT
 *
 * Writes the rows of layout.h, in rounds over all connections. The control thread, under the engine's lock.
 */
#ifndef BNET_STATS_PUBLISH_H
#define BNET_STATS_PUBLISH_H

#include <stdbool.h>
#include <stdint.h>

#include "common/look.h"

/* Reads what the launcher says of this process. Before the control thread runs. */
void bnet_stats_configure(void);
/* Goes on with a round over all connections, or begins one, for some streams: each is a system call, and those who need
 * the lock wait meanwhile. True: the round has not come to its end. */
bool bnet_stats_publish(void);
/* From now on what it returns is shown. Under the engine's lock. */
void bnet_stats_show_operations(bnet_operation_reader *read);
bool bnet_stats_has_operations(void);
/* Shows them alone, where no connection moves: ranks of one host also wait for each other in memory. */
void bnet_stats_publish_operations(void);
/* Connections are being made, or were made, since the last round: one is due, though nothing moves. */
bool bnet_stats_is_behind(void);
/* Somebody waits for what is recorded: further rounds are due, though nothing moves. */
bool bnet_stats_is_awaited(void);
/* The control thread ends. */
void bnet_stats_end(void);
/* The process exits. It leaves no file, though it has closed nothing. */
void bnet_stats_exit(void);
/* In a forked child. */
void bnet_stats_forget(void);

#endif
