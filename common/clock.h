/* SPDX-License-Identifier: MIT
 *
 * The monotonic clock and random numbers. Any thread; no state.
 */
#ifndef BNET_CLOCK_H
#define BNET_CLOCK_H

#include <stdint.h>

/* Time since an arbitrary start; never decreases. */
uint64_t bnet_now_ns(void);
uint64_t bnet_now_us(void);
uint64_t bnet_now_ms(void);

/* Never zero. */
uint64_t bnet_random(void);

#endif
