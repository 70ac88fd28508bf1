/* SPDX-License-Identifier: MIT
 *
 * When which streams are read, and told that they have run dry: those of connections that move, path by path. The
 * control thread, under the engine's lock.
 */
#ifndef BNET_SAMPLER_H
#define BNET_SAMPLER_H

#include <stdbool.h>
#include <stdint.h>

#include "transport/conn.h"

/* Something was posted on the connection: its streams, if it is a sender, are read until it is found idle. */
void bnet_sampler_begin(struct bnet_conn *conn);
/* Reads the streams of all paths that are due and acts on it. */
void bnet_sampler_read(uint64_t now_us);
/* Whether senders move on long paths. */
bool bnet_sampler_any_far(void);
/* Notes which streams of those have run dry (transport/tx.h). */
void bnet_sampler_note_dry(void);

#endif
