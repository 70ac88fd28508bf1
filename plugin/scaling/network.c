/* SPDX-License-Identifier: MIT
 *
 * See network.h.
 */
#include "scaling/network.h"

/* A counter counts if it shows this share of what the path has carried, in percent: readings are not simultaneous. */
#define SEEN_PERCENT 85
/* Others carry little below this share of what a device carries, in percent: headers and marks that are not
 * simultaneous look like as much. */
#define LITTLE_PERCENT 20

static uint64_t rate(uint64_t from, uint64_t to, uint64_t us, uint64_t own)
{
	uint64_t now;

	if (!from || to < from || !us)
		return 0;
	now = (to - from) * 1000 / us * 1000;
	return now >= own / 100 * SEEN_PERCENT ? now : 0;
}

struct bnet_network bnet_network_between(const struct bnet_mark *from, const struct bnet_mark *to, uint64_t own)
{
	return (struct bnet_network){
		.sent = rate(from->sent, to->sent, to->now_us - from->now_us, own),
		.received = rate(from->received, to->received, to->at_us - from->at_us, own),
	};
}

static bool shows_less(uint64_t fewer, uint64_t more, const struct bnet_carried *before, uint64_t change,
		       uint64_t percent)
{
	const uint64_t others = fewer > before->own ? fewer - before->own : 0;

	if (!fewer || !more)
		return false;
	if (others * 100 < fewer * LITTLE_PERCENT)
		percent /= 3;
	return more < fewer || (more - fewer) * 100 < change * percent;
}

bool bnet_is_others_share(const struct bnet_carried *fewer, const struct bnet_carried *more, uint64_t percent)
{
	uint64_t change = more->own > fewer->own ? more->own - fewer->own : 0;

	return shows_less(fewer->network.sent, more->network.sent, fewer, change, percent) ||
	       shows_less(fewer->network.received, more->network.received, fewer, change, percent);
}
