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

#endif
