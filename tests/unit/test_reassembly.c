/* SPDX-License-Identifier: MIT
 *
 * The receiver's map of arrived slices: each slice counts once, in any order, and overlaps are refused.
 */
#include "transport/reassembly.h"

#include <errno.h>

#include "check.h"

static void place_all(struct bnet_reassembly *reassembly, uint64_t size, uint64_t slice)
{
	uint64_t n = size / slice + (size % slice != 0);

	bnet_reassembly_start(reassembly, size);
	for (uint64_t i = 0; i < n; i++) {
		uint64_t at = (i * 7 + 3) % n * slice; /* a permutation: 7 divides none of the n below */
		uint64_t length = at + slice > size ? size - at : slice;

		check_int(bnet_reassembly_place(reassembly, at, length), 0);
		check_int(bnet_reassembly_place(reassembly, at, length), 1); /* a duplicate, before and after arrival */
		check_int(bnet_reassembly_arrived(reassembly, length), i == n - 1);
		check_int(bnet_reassembly_place(reassembly, at, length), 1);
	}
}

static void test_every_slice_counts_once(void)
{
	struct bnet_reassembly reassembly;

	bnet_reassembly_init(&reassembly);
	place_all(&reassembly, 5 * 4096 + 17, 4096);
	place_all(&reassembly, 1, 4096);
	place_all(&reassembly, 300 * 4096 + 1, 3 * 4096); /* slices that span words of the map */
	bnet_reassembly_start(&reassembly, 0);
	check_int(bnet_reassembly_place(&reassembly, 0, 0), 0);
	check(bnet_reassembly_arrived(&reassembly, 0));

	check_int(bnet_reassembly_reserve(&reassembly, UINT64_C(1) << 30), 0);
	place_all(&reassembly, (UINT64_C(1) << 30) - 5, 1 << 20);
	place_all(&reassembly, 4096, 4096); /* a small message in a large map */
	bnet_reassembly_destroy(&reassembly);
}

static void test_overlap_is_refused(void)
{
	struct bnet_reassembly reassembly;

	bnet_reassembly_init(&reassembly);
	bnet_reassembly_start(&reassembly, 64 * 4096);
	check_int(bnet_reassembly_place(&reassembly, 4 * 4096, 4 * 4096), 0);
	check_int(bnet_reassembly_place(&reassembly, 4 * 4096, 4 * 4096), 1);
	check_int(bnet_reassembly_place(&reassembly, 5 * 4096, 2 * 4096), 1);
	check_int(bnet_reassembly_place(&reassembly, 0, 5 * 4096), -EBADMSG);
	check_int(bnet_reassembly_place(&reassembly, 0, 64 * 4096), -EBADMSG);
	check_int(bnet_reassembly_place(&reassembly, 0, 4 * 4096), 0);
	check_int(bnet_reassembly_place(&reassembly, 8 * 4096, 4 * 4096), 0);
}

int main(void)
{
	test_every_slice_counts_once();
	test_overlap_is_refused();
	return 0;
}
