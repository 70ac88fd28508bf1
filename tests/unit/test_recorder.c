/* SPDX-License-Identifier: MIT
 *
 * Recordings: what several threads record at a time is there once and whole, what finds no room is counted, and what
 * one recording has is no other one's.
 */
#include "check.h"
#include "base/recorder.h"

#include <pthread.h>

#define THREADS 4
#define EACH 20000
#define MORE 300000 /* than there are places */

static void *record_many(void *of)
{
	for (uint64_t i = 0; i < EACH; i++)
		if (bnet_recording_is_on())
			bnet_record(&(struct bnet_event){.kind = BNET_EVENT_SLICE,
							 .connection = (uint64_t)(uintptr_t)of,
							 .message = i,
							 .bytes = i * 3});
	return NULL;
}

/* As by a thread that has seen the flag of a recording, and not yet its places. */
static void test_who_is_early_records_nothing(void)
{
	uint64_t dropped;

	bnet_record(&(struct bnet_event){.kind = BNET_EVENT_SLICE});
	check_int(bnet_recording_size(&dropped), 0);
}

static void test_threads(void)
{
	pthread_t threads[THREADS];
	static bool seen[THREADS][EACH];
	uint64_t dropped;

	check(bnet_recording_begin());
	for (uintptr_t i = 0; i < THREADS; i++)
		check_int(pthread_create(&threads[i], NULL, record_many, (void *)i), 0);
	for (int i = 0; i < THREADS; i++)
		check_int(pthread_join(threads[i], NULL), 0);
	bnet_recording_stop();
	check_int(bnet_recording_size(&dropped), THREADS * EACH);
	check_int(dropped, 0);
	for (size_t i = 0; i < THREADS * EACH; i++) {
		struct bnet_event event;

		check(bnet_recording_get(i, &event));
		check(event.connection < THREADS && event.message < EACH);
		check_int(event.bytes, event.message * 3);
		check(!seen[event.connection][event.message]);
		seen[event.connection][event.message] = true;
	}
}

static void test_nothing_is_recorded_after_the_stop(void)
{
	uint64_t dropped;

	check(bnet_recording_begin());
	bnet_recording_stop();
	record_many(NULL);
	check_int(bnet_recording_size(&dropped), 0);
}

static void test_one_that_comes_late(void)
{
	struct bnet_event event;
	uint64_t dropped;

	check(bnet_recording_begin());
	bnet_record(&(struct bnet_event){.bytes = 1});
	check(bnet_recording_begin());
	bnet_recording_stop();
	check_int(bnet_recording_size(&dropped), 0);
	check(!bnet_recording_get(0, &event));
}

static void test_more_than_there_is_room_for(void)
{
	struct bnet_event event;
	uint64_t dropped;
	size_t size;

	check(bnet_recording_begin());
	for (uint64_t i = 0; i < MORE; i++)
		bnet_record(&(struct bnet_event){.message = i});
	bnet_recording_stop();
	size = bnet_recording_size(&dropped);
	check_int(size + dropped, MORE);
	check(dropped > 0);
	check(bnet_recording_get(size - 1, &event));
	check_int(event.message, size - 1);
}

int main(void)
{
	test_who_is_early_records_nothing();
	test_threads();
	test_nothing_is_recorded_after_the_stop();
	test_one_that_comes_late();
	test_more_than_there_is_room_for();
	return 0;
}
