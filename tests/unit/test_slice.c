/* SPDX-License-Identifier: MIT
 *
 * The sender's cutting: every byte of every message is claimed exactly once.
 */
#include "transport/slice.h"

#include "check.h"
#include "wire/wire.h"

#define MESSAGES 2000

static uint64_t size_of(uint64_t message)
{
	return message % 7 == 0 ? 0 : message * 7919 % 300000;
}

/* Of one message, in slices of different sizes. */
static void take_all(struct bnet_claim *claim, uint64_t message)
{
	const uint64_t size = size_of(message);
	uint64_t taken = 0, want = BNET_UNIT;

	while (bnet_claim_messages(claim) == message) {
		struct bnet_slice slice = bnet_claim_take(claim, size, want);

		check_int(slice.message, message);
		check_int(slice.offset, taken);
		check(slice.length % BNET_UNIT == 0 || slice.offset + slice.length == size);
		check(slice.length <= want);
		taken += slice.length;
		want = want % (8 * BNET_UNIT) + BNET_UNIT;
	}
	check_int(taken, size);
}

static void test_each_byte_is_claimed_once(void)
{
	struct bnet_claim claim;

	bnet_claim_init(&claim);
	for (uint64_t message = 0; message < MESSAGES; message++)
		take_all(&claim, message);
	check_int(bnet_claim_messages(&claim), MESSAGES);
}

static void test_cuts(void)
{
	struct bnet_claim claim;

	bnet_claim_init(&claim);
	check_int(bnet_claim_take(&claim, 10000, 1).length, 4096); /* rounded up to a unit */
	check_int(bnet_claim_take(&claim, 10000, 4096).offset, 4096);
	check_int(bnet_claim_take(&claim, 10000, 4096).length, 1808);
	check_int(bnet_claim_messages(&claim), 1); /* nothing left: the next message */
	check_int(bnet_claim_take(&claim, 4096, 4096).length, 4096);
	check_int(bnet_claim_messages(&claim), 2);
	check_int(bnet_claim_take(&claim, 0, 65536).length, 0); /* an empty message is a slice */
	check_int(bnet_claim_messages(&claim), 3);
}

static void test_want(void)
{
	check_int(bnet_slice_want(100, 1, 65536, 1048576), 1048576);     /* a lone stream takes the maximum */
	check_int(bnet_slice_want(8 << 20, 4, 65536, 1048576), 1048576); /* half a share */
	check_int(bnet_slice_want(2 << 20, 4, 65536, 1048576), 262144);
	check_int(bnet_slice_want(1000, 4, 65536, 1048576), 65536); /* never below the minimum */
	check_int(bnet_slice_want(UINT64_C(1) << 40, 2, 65536, 1048576), 1048576);
}

static void test_small_backlog_reaches_all_slow_streams(void)
{
	check_int(bnet_slice_least(256 << 10, 8, 1000, 65536), 32768);  /* an equal share */
	check_int(bnet_slice_least(8 << 20, 8, 1000, 65536), 65536);    /* … but at most the configured minimum */
	check_int(bnet_slice_least(256 << 10, 8, 50000, 65536), 50000); /* slices of a fast stream stay large */
	check_int(bnet_slice_least(256 << 10, 8, UINT64_C(1) << 40, 65536), 65536);
	check_int(bnet_slice_least(256 << 10, 64, 1000, 65536), 16384);
	check_int(bnet_slice_least(0, 64, 0, 8192), 8192); /* never above the configured minimum */
}

int main(void)
{
	test_each_byte_is_claimed_once();
	test_cuts();
	test_want();
	test_small_backlog_reaches_all_slow_streams();
	return 0;
}
