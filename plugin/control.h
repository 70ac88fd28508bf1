/* SPDX-License-Identifier: MIT
 *
 * The control thread.
 */
#ifndef BNET_CONTROL_H
#define BNET_CONTROL_H

#include <stdint.h>

/* Starts it, all signals blocked; it ends by itself when nothing is left to look after. Under the engine's lock. 0 or
 * -errno. */
int bnet_control_spawn(void);

/* Gives a sender's streams the send buffers that their paths want. Under the engine's lock. */
struct bnet_conn;
void bnet_control_fit(struct bnet_conn *conn, uint64_t now);

#endif
