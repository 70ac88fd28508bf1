/* SPDX-License-Identifier: MIT */
#ifndef APART_H
#define APART_H

/* Nanoseconds for a cache line to go from the first processor that the calling thread may use to the second and back;
 * 0 where there is only one. From any thread, which it moves meanwhile: about a millisecond where both are idle. */
double apart_ns(void);

#endif
