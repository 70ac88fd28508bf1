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

struct bnet_end bnet_end_of(uint64_t own, uint64_t all, uint64_t us)
{
	struct bnet_end end = {0};

	if (us == 0)
		return end;
	end.own = own * 1000 / us * 1000;
	if (all * 100 >= own * SEEN_PERCENT)
		end.all = all * 1000 / us * 1000;
	return end;
}

static bool shows_less(const struct bnet_end *fewer, const struct bnet_end *more, uint64_t percent)
{
	const uint64_t others = fewer->all > fewer->own ? fewer->all - fewer->own : 0;

	if (!fewer->all || !more->all || more->own <= fewer->own)
		return false;
	if (others * 100 < fewer->all * LITTLE_PERCENT)
		percent /= 3;
	return more->all < fewer->all || (more->all - fewer->all) * 100 < (more->own - fewer->own) * percent;
}

bool bnet_is_others_share(const struct bnet_carried *fewer, const struct bnet_carried *more, uint64_t percent)
{
	return shows_less(&fewer->sent, &more->sent, percent) || shows_less(&fewer->received, &more->received, percent);
}
