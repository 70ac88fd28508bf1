/* SPDX-License-Identifier: MIT
 *
 * When a collective that waits for its peers gives its processor away. Polls are counted, and time passes for real: a
 * wait is made long by sleeping through it, and short by not doing so.
 */
#include <time.h>

#include "check.h"
#include "coll/wait.h"

#define NAP_AFTER 2000
#define MS 1000000

/* A wait of so many fruitless polls, the last of them without haste; the last nap. */
static long wait_once(struct bnet_coll_wait *wait, int polls, long sleep_ns)
{
	const struct timespec time = {.tv_nsec = sleep_ns};
	long nap_ns = 0;

	for (int i = 0; i < polls; i++) {
		nap_ns = bnet_coll_wait_fruitless(wait);
		if (i == polls - 1 && sleep_ns)
			nanosleep(&time, NULL);
	}
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
		check(nap_ns >= last && nap_ns < 2 * MS);
		check_int(bnet_coll_wait_fruitless(&never), 0);
		last = nap_ns;
	}
	bnet_coll_wait_reset(&wait);
	check_int(bnet_coll_wait_fruitless(&wait), 0);
}

/* Whoever has waited for milliseconds every time does so again; if not, it is soon forgotten. */
static void naps_begin_soon_where_waits_are_long(void)
{
	struct bnet_coll_wait wait = {.nap_after = NAP_AFTER};

	for (int i = 0; i < 1000; i++)
		wait_once(&wait, 10, 0);
	check_int(wait_once(&wait, 500, 0), 0);
	for (int i = 0; i < 40; i++)
		wait_once(&wait, 100, 4 * MS);
	check(wait_once(&wait, 500, 0) > 0);
	check_int(wait_once(&wait, 10, 0), 0); /* the peer may be there */
	/* Those of no more than a few polls say nothing. */
	for (int i = 0; i < 1000; i++)
		wait_once(&wait, 10, 0);
	check(wait_once(&wait, 500, 0) > 0);
	/* What is waited for between operations does not count. */
	wait.usual_ns = 0;
	for (int i = 0; i < 40; i++) {
		for (int n = 0; n < 100; n++)
			bnet_coll_wait_fruitless(&wait);
		bnet_coll_wait_reset(&wait);
	}
	check_int(wait.usual_ns, 0);
	for (int i = 0; i < 40; i++)
		wait_once(&wait, 100, 4 * MS);
	/* However often this thread itself is made to wait, it ends. */
	while (wait_once(&wait, 500, 0) > 0)
		;
}

int main(void)
{
	naps_begin_late_and_grow();
	naps_begin_soon_where_waits_are_long();
	return 0;
}
