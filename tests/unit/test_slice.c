/* SPDX-License-Identifier: MIT
 *
 * The sender's cutting: threads that claim concurrently take every byte of every message exactly once.
 */
#include "transport/slice.h"

#include <pthread.h>

#include "check.h"
#include "wire/wire.h"

#define MESSAGES 2000
#define THREADS 4

static struct bnet_claim shared;
static uint64_t sizes[MESSAGES];
static _Atomic uint64_t taken[MESSAGES];
static _Atomic uint32_t lasts[MESSAGES];

static void *claimant(void *arg)
{
	uint64_t want = (uint64_t)(uintptr_t)arg;
	struct bnet_claim_view view;
	struct bnet_slice slice;

	while ((view = bnet_claim_look(&shared, MESSAGES)).message < MESSAGES) {
		if (!bnet_claim_take(&shared, &view, sizes[view.message], want, &slice))
			continue;
		check(slice.offset % BNET_UNIT == 0);
		check(slice.length % BNET_UNIT == 0 || slice.offset + slice.length == sizes[slice.message]);
		check(slice.last == (slice.offset + slice.length == sizes[slice.message]));
		atomic_fetch_add(&taken[slice.message], slice.length);
		atomic_fetch_add(&lasts[slice.message], slice.last);
	}
	return NULL;
}

static void test_threads_take_each_byte_once(void)
{
	pthread_t threads[THREADS];

	bnet_claim_init(&shared);
	for (uint64_t i = 0; i < MESSAGES; i++)
		sizes[i] = i % 7 == 0 ? 0 : i * 7919 % 300000;
	for (uint64_t i = 0; i < THREADS; i++)
		check_int(pthread_create(&threads[i], NULL, claimant, (void *)(uintptr_t)(4096 << i)), 0);
	for (int i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	for (int i = 0; i < MESSAGES; i++) {
		check_int(taken[i], sizes[i]);
		check_int(lasts[i], 1);
	}
}

static void test_late_claim_fails(void)
{
	struct bnet_claim claim;
	struct bnet_claim_view early, view;
	struct bnet_slice slice;

	bnet_claim_init(&claim);
	early = bnet_claim_look(&claim, 1);
	view = early;
	check(bnet_claim_take(&claim, &view, 10000, 4096, &slice));
	check(!bnet_claim_take(&claim, &early, 10000, 4096, &slice));
	view = bnet_claim_look(&claim, 1);
	check_int(view.offset, 4096);
	check(bnet_claim_take(&claim, &view, 10000, 1, &slice)); /* rounded up to a unit */
	check_int(slice.length, 4096);
	view = bnet_claim_look(&claim, 1);
	check(bnet_claim_take(&claim, &view, 10000, 4096, &slice));
	check_int(slice.length, 1808);
	check(slice.last);
	check_int(bnet_claim_look(&claim, 1).message, 1); /* nothing left: the next message */
}

static void test_message_numbers_pass_32_bits(void)
{
	struct bnet_claim claim;
	uint64_t base = (UINT64_C(1) << 32) - 2;
	struct bnet_slice slice;

	atomic_init(&claim.word, base << 32);
	for (uint64_t i = 0; i < 5; i++) {
		struct bnet_claim_view view = bnet_claim_look(&claim, base + 5);

		check(view.message == base + i);
		check(bnet_claim_take(&claim, &view, 1, 4096, &slice));
		check(slice.message == base + i);
	}
	check(bnet_claim_look(&claim, base + 5).message == base + 5);
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
	test_threads_take_each_byte_once();
	test_late_claim_fails();
	test_message_numbers_pass_32_bits();
	test_want();
	test_small_backlog_reaches_all_slow_streams();
	return 0;
}
