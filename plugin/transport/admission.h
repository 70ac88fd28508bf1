/* SPDX-License-Identifier: MIT
 *
 * Admission: how much a stream may hold, and when it would deliver more. Pure: times are ns of any clock, rates bytes/s
 * (0: unknown).
 *
 * No other stream can deliver what a slow stream has claimed. So a stream is admitted to a slice only within its
 * in-flight limit, and slices go to the stream that would complete first (earliest-completion-first).
 */
#ifndef BNET_ADMISSION_H
#define BNET_ADMISSION_H

#include <stdbool.h>
#include <stdint.h>

/* The account of a stream's bytes in flight: written, sent or not, and not acknowledged. It is the kernel's figure of a
 * moment, plus what was written since, less what the stream's rate has carried since. */
struct bnet_inflight {
	uint64_t bytes; /* at at_ns */
	uint64_t at_ns;
	uint64_t asked_ns; /* when the kernel was last asked */
};

/* A stream that may hold this or more is bounded by its send buffer, and the account is not consulted. */
#define BNET_ADMISSION_UNBOUNDED (UINT64_C(512) << 10)

uint64_t bnet_inflight_now(const struct bnet_inflight *inflight, uint64_t rate, uint64_t now);
void bnet_inflight_written(struct bnet_inflight *inflight, uint64_t rate, uint64_t bytes, uint64_t now);
/* The kernel's figure (SIOCOUTQ) replaces the account. */
void bnet_inflight_measured(struct bnet_inflight *inflight, uint64_t bytes, uint64_t now);
/* The account is too old to go on without the kernel's figure. */
bool bnet_inflight_is_stale(const struct bnet_inflight *inflight, uint64_t rate, uint64_t now);

/* In how many ns would the stream have delivered a little more than it holds? A stream of unknown rate is worth a try
 * once it holds nothing. first: the connection's first stream, at which a receiver looks more often. */
uint64_t bnet_admission_completes_in(const struct bnet_inflight *inflight, uint64_t rate, bool first, uint64_t now);

/* The slice to ask for under an in-flight limit, when `want` bytes would suit the message. */
uint64_t bnet_admission_slice(uint64_t limit, uint64_t want);
/* May the stream take `want` more bytes? One that holds nothing always may. */
bool bnet_admission_allows(const struct bnet_inflight *inflight, uint64_t limit, uint64_t rate, uint64_t want,
			   uint64_t now);

#endif
