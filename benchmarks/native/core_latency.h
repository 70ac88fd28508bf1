/* SPDX-License-Identifier: MIT */
#ifndef CORE_LATENCY_H
#define CORE_LATENCY_H

/* Nanoseconds for a cache line to go from the first processor that the calling thread may use to the second and back;
 * 0 where it may use only one, -1 where that cannot be read. From any thread: two of its own do it, in about a
 * millisecond where both processors are idle. */
double core_latency_ns(void);

#endif
