/* SPDX-License-Identifier: MIT
 *
 * See admission.h.
 */
#include "transport/admission.h"

/* The size of the imagined next slice when streams are compared. */
#define PROBE_BYTES 16384
/* A receiver looks at the first stream more often than at the others, so these must be earlier by this much. */
#define LATER_NS 50000
/* Stands in for the completion time of a stream of unknown rate that holds something. */
#define UNKNOWN_NS 2000000
/* The age at which the account needs the kernel's figure. */
#define STALE_NS 2000000
/* … of a stream of unknown rate. */
#define STALE_UNKNOWN_NS 100000
/* … and at which it counts as empty. */
#define FORGET_US 1000000

uint64_t bnet_inflight_now(const struct bnet_inflight *inflight, uint64_t rate, uint64_t now)
{
	uint64_t us = (now - inflight->at_ns) / 1000, gone = us * rate / 1000000;

	return us < FORGET_US && inflight->bytes > gone ? inflight->bytes - gone : 0;
}

void bnet_inflight_written(struct bnet_inflight *inflight, uint64_t rate, uint64_t bytes, uint64_t now)
{
	inflight->bytes = bnet_inflight_now(inflight, rate, now) + bytes;
	/* Whole µs have been counted; the remainder counts next time. */
	inflight->at_ns = now - (now - inflight->at_ns) % 1000;
}

void bnet_inflight_measured(struct bnet_inflight *inflight, uint64_t bytes, uint64_t now)
{
	inflight->bytes = bytes;
	inflight->at_ns = inflight->asked_ns = now;
}

bool bnet_inflight_is_stale(const struct bnet_inflight *inflight, uint64_t rate, uint64_t now)
{
	return now - inflight->asked_ns > (rate ? STALE_NS : STALE_UNKNOWN_NS);
}

uint64_t bnet_admission_completes_in(const struct bnet_inflight *inflight, uint64_t rate, bool first, uint64_t now)
{
	uint64_t later = first ? 0 : LATER_NS;

	if (rate == 0)
		return later + (inflight->bytes ? UNKNOWN_NS : 0);
	return later + (bnet_inflight_now(inflight, rate, now) + PROBE_BYTES) * 1000000 / rate * 1000;
}

uint64_t bnet_admission_slice(uint64_t limit, uint64_t want)
{
	uint64_t most = limit / 4 ? limit / 4 : 1;

	return want < most ? want : most;
}

bool bnet_admission_allows(const struct bnet_inflight *inflight, uint64_t limit, uint64_t rate, uint64_t want,
			   uint64_t now)
{
	return inflight->bytes == 0 || bnet_inflight_now(inflight, rate, now) + want <= limit;
}
