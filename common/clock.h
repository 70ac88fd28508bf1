/* SPDX-License-Identifier: MIT
 *
 * Clocks and random numbers. Any thread; no state.
 */
#ifndef BNET_CLOCK_H
#define BNET_CLOCK_H

#include <stdint.h>

/* Time since an arbitrary start; never decreases. */
uint64_t bnet_now_ns(void);
uint64_t bnet_now_us(void);
uint64_t bnet_now_ms(void);

/* Of processor time that the calling thread has used. */
uint64_t bnet_thread_us(void);

/* The wall clock, which hosts have in common as far as their administrators see to it; it may be set. */
uint64_t bnet_wall_us(void);

/* Never zero. */
uint64_t bnet_random(void);

#endif
