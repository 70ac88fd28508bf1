/* SPDX-License-Identifier: MIT
 *
 * The mode that a zerocopy trial chooses, and when it has enough samples.
 */
#include "transport/zerocopy.h"

#include <stdint.h>

#include "check.h"

#define MIB (UINT64_C(1) << 20)

/* with, without: MiB sent with and without a copy; *_ns: ns for each MiB. */
static enum bnet_zerocopy_mode judge(uint64_t with, uint64_t with_ns, uint64_t without, uint64_t without_ns)
{
	struct bnet_zerocopy zerocopy = {
		.mode = BNET_ZEROCOPY_TRIAL,
		.with_copy = {.bytes = with * MIB, .ns = with * with_ns},
		.without_copy = {.bytes = without * MIB, .ns = without * without_ns},
	};

	return bnet_zerocopy_judge(&zerocopy);
}

static void a_trial_needs_samples_of_both_modes(void)
{
	check_int(judge(0, 0, 0, 0), BNET_ZEROCOPY_TRIAL);
	check_int(judge(100, 90000, 15, 1), BNET_ZEROCOPY_TRIAL);
	check_int(judge(15, 90000, 100, 1), BNET_ZEROCOPY_TRIAL);
	check_int(judge(16, 90000, 16, 1), BNET_ZEROCOPY_ON);
}

static void the_cheaper_mode_wins(void)
{
	check_int(judge(16, 100000, 16, 50000), BNET_ZEROCOPY_ON);
	check_int(judge(16, 100000, 400, 90000), BNET_ZEROCOPY_ON);
	check_int(judge(400, 100000, 16, 91000), BNET_ZEROCOPY_OFF);
	check_int(judge(16, 100000, 16, 100000), BNET_ZEROCOPY_OFF);
	check_int(judge(16, 100000, 16, 400000), BNET_ZEROCOPY_OFF);
}

/* A clock that did not advance leads to a sensible choice. */
static void zero_times_are_harmless(void)
{
	check_int(judge(16, 0, 16, 0), BNET_ZEROCOPY_ON);
	check_int(judge(16, 0, 16, 1000), BNET_ZEROCOPY_OFF);
}

int main(void)
{
	a_trial_needs_samples_of_both_modes();
	the_cheaper_mode_wins();
	zero_times_are_harmless();
	return 0;
}
