/* SPDX-License-Identifier: MIT */
#ifndef CORE_LATENCY_H
#define CORE_LATENCY_H

/* Nanoseconds for a cache line to travel from the first processor that the calling thread may use to the second and
 * back; 0 with only one processor, -1 on failure. Callable from any thread. Takes about a millisecond on idle
 * processors. */
double core_latency_ns(void);

#endif
