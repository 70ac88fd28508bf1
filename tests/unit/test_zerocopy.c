/* SPDX-License-Identifier: MIT
 *
 * Which way of sending a trial chooses, and when it has seen enough.
 */
#include "transport/zerocopy.h"

#include <stdint.h>

#include "check.h"

#define MIB (UINT64_C(1) << 20)

/* So many MiB each way, at so many ns for each. */
static enum bnet_zerocopy_mode judge(uint64_t copied, uint64_t copied_ns, uint64_t shared, uint64_t shared_ns)
{
	struct bnet_zerocopy zero = {
		.mode = BNET_ZEROCOPY_TRIAL,
		.copied = {.bytes = copied * MIB, .ns = copied * copied_ns},
		.shared = {.bytes = shared * MIB, .ns = shared * shared_ns},
	};

	return bnet_zerocopy_judge(&zero);
}

static void a_trial_needs_both_ways(void)
{
	check_int(judge(0, 0, 0, 0), BNET_ZEROCOPY_TRIAL);
	check_int(judge(100, 90000, 15, 1), BNET_ZEROCOPY_TRIAL);
	check_int(judge(15, 90000, 100, 1), BNET_ZEROCOPY_TRIAL);
	check_int(judge(16, 90000, 16, 1), BNET_ZEROCOPY_ON);
}

static void what_costs_less_wins(void)
{
	check_int(judge(16, 100000, 16, 50000), BNET_ZEROCOPY_ON);
	check_int(judge(16, 100000, 400, 90000), BNET_ZEROCOPY_ON);
	check_int(judge(400, 100000, 16, 91000), BNET_ZEROCOPY_OFF);
	check_int(judge(16, 100000, 16, 100000), BNET_ZEROCOPY_OFF);
	check_int(judge(16, 100000, 16, 400000), BNET_ZEROCOPY_OFF);
}

/* A clock that stood still decides nothing foolish. */
static void no_time_at_all(void)
{
	check_int(judge(16, 0, 16, 0), BNET_ZEROCOPY_ON);
	check_int(judge(16, 0, 16, 1000), BNET_ZEROCOPY_OFF);
}

int main(void)
{
	a_trial_needs_both_ways();
	what_costs_less_wins();
	no_time_at_all();
	return 0;
}
