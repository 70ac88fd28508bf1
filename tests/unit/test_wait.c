/* SPDX-License-Identifier: MIT
 *
 * When a poll loop that waits for its peers gives up the processor. The tests count polls. The clock is interposed: it
 * goes on with each look at it, and a wait is long because the test lets time pass in it.
 */
#include <stdint.h>
#include <time.h>

#include "check.h"
#include "coll/wait.h"

#define NAP_AFTER 2000
#define LOOK_NS 1000
#define MS 1000000

static int64_t now_ns;

int clock_gettime(clockid_t clock, struct timespec *now)
{
	(void)clock;
	now_ns += LOOK_NS;
	*now = (struct timespec){.tv_sec = now_ns / 1000000000, .tv_nsec = now_ns % 1000000000};
	return 0;
}

/* A wait of `polls` fruitless polls, and of that time after the last one. Returns the last nap. */
static long wait_once(struct bnet_coll_wait *wait, int polls, long ns)
{
	long nap_ns = 0;

	for (int i = 0; i < polls; i++)
		nap_ns = bnet_coll_wait_fruitless(wait);
	now_ns += ns;
	bnet_coll_wait_over(wait);
	return nap_ns;
}

static void naps_begin_late_and_grow(void)
{
	struct bnet_coll_wait wait = {.nap_after = NAP_AFTER}, never = {.nap_after = 0};
	long last = 0;

	for (int i = 1; i < 10 * NAP_AFTER; i++) {
		const long nap_ns = bnet_coll_wait_fruitless(&wait);

		check((nap_ns > 0) == (i >= NAP_AFTER));
		check(nap_ns >= last);
		check_int(bnet_coll_wait_fruitless(&never), 0);
		last = nap_ns;
	}
	check(last > MS && last < 2 * MS); /* a sixteenth of the time since the first look */
	bnet_coll_wait_reset(&wait);
	check_int(bnet_coll_wait_fruitless(&wait), 0);
}

/* Waits of milliseconds make early naps; after short waits that is soon forgotten. */
static void naps_begin_soon_where_waits_are_long(void)
{
	struct bnet_coll_wait wait = {.nap_after = NAP_AFTER};

	for (int i = 0; i < 1000; i++)
		wait_once(&wait, 10, 0);
	check_int(wait_once(&wait, 500, 0), 0);
	for (int i = 0; i < 40; i++)
		wait_once(&wait, 100, 4 * MS);
	check(wait_once(&wait, 500, 0) > 0);
	check_int(wait_once(&wait, 10, 0), 0); /* the peer may be ready */
	/* Waits of a few polls do not count. */
	for (int i = 0; i < 1000; i++)
		wait_once(&wait, 10, 0);
	check(wait_once(&wait, 500, 0) > 0);
	/* Neither do waits that end with a reset, as between operations. */
	wait.usual_ns = 0;
	for (int i = 0; i < 40; i++) {
		for (int n = 0; n < 100; n++)
			bnet_coll_wait_fruitless(&wait);
		bnet_coll_wait_reset(&wait);
	}
	check_int(wait.usual_ns, 0);
	for (int i = 0; i < 40; i++)
		wait_once(&wait, 100, 4 * MS);
	/* Short waits end the early naps. */
	for (int i = 0; i < 40; i++)
		wait_once(&wait, 100, 0);
	check_int(wait_once(&wait, 500, 0), 0);
}

int main(void)
{
	naps_begin_late_and_grow();
	naps_begin_soon_where_waits_are_long();
	return 0;
}
