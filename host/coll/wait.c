/* SPDX-License-Identifier: MIT
 *
 * When a poll loop yields, when it naps and for how long; when an operation asks its caller whether it goes on. The
 * thread of the loop.
 */
#include "coll/wait.h"

#include <errno.h>
#include <sched.h>
#include <time.h>

#include "common/clock.h"

/* Polls between two clock readings. A row of fewer polls does not count as a wait. */
#define CLOCK_EVERY 64
/* Where waits are usually longer than this, a nap costs less than polling, although it lasts twice as long. */
#define LONG_WAIT_NS 1000000
/* The last wait enters the mean by a quarter and capped: a pause such as a checkpoint does not repeat soon. */
#define WAIT_READINGS 4
#define MAX_WAIT_NS (4 * LONG_WAIT_NS)
/* A nap lasts a sixteenth of the wait so far: it is no large part of the wait, and one of seconds costs a few
 * thousandths of a processor. */
#define NAP_FRACTION 16
#define SHORTEST_NAP_NS 50000
#define LONGEST_NAP_NS 40000000

/* A yield of this length gave the processor to a thread that computes. Another one would again, while a thread that
 * naps gets it back when its timer fires. So for some time every yield is a nap. */
#define LONG_YIELD_NS 1000000
#define CONTENDED_NS 20000000

/* Between two questions to `interrupted` of an operation that waits, and of one that moves: Python's takes the lock of
 * its interpreter, for which a busy thread lets it wait some ms. */
#define ASK_NS 100000000
#define ASK_MOVING_NS 1000000000
/* Steps between two clock readings for it. A step moves some chunks or banks at most, and a small operation takes fewer
 * of them. */
#define STEPS 8

int64_t bnet_coll_now(void)
{
	return (int64_t)bnet_now_ns();
}

void bnet_coll_wait_over(struct bnet_coll_wait *wait)
{
	if (wait->since != 0) {
		const int64_t ns = bnet_coll_now() - wait->since;

		wait->waited_ns += ns;
		wait->usual_ns += ((ns < MAX_WAIT_NS ? ns : MAX_WAIT_NS) - wait->usual_ns) / WAIT_READINGS;
	}
	bnet_coll_wait_reset(wait);
}

void bnet_coll_wait_reset(struct bnet_coll_wait *wait)
{
	wait->idle = 0;
	wait->since = 0;
}

static long nap_of(const struct bnet_coll_wait *wait)
{
	const int64_t nap = (bnet_coll_now() - wait->since) / NAP_FRACTION;

	if (nap > LONGEST_NAP_NS)
		return LONGEST_NAP_NS;
	return nap > SHORTEST_NAP_NS ? (long)nap : SHORTEST_NAP_NS;
}

long bnet_coll_wait_fruitless(struct bnet_coll_wait *wait)
{
	const unsigned nap_after = wait->usual_ns > LONG_WAIT_NS ? CLOCK_EVERY : wait->nap_after;
	bool naps;

	wait->idle++;
	naps = wait->nap_after != 0 && wait->idle >= nap_after;
	if (wait->since == 0 && (naps || wait->idle >= CLOCK_EVERY))
		wait->since = bnet_coll_now();
	return naps ? nap_of(wait) : 0;
}

/* Yields from the first fruitless poll on: where ranks outnumber processors, the peer may be waiting for this one;
 * elsewhere a yield is one more system call among others. */
static void yield(struct bnet_coll *coll)
{
	const int64_t before = bnet_coll_now();
	const struct timespec nap = {.tv_nsec = SHORTEST_NAP_NS};
	int64_t after;

	if (before < coll->contended_until) {
		nanosleep(&nap, NULL);
		return;
	}
	sched_yield();
	after = bnet_coll_now();
	if (after - before > LONG_YIELD_NS)
		coll->contended_until = after + CONTENDED_NS;
}

/* ---- whether the operation is still wanted ---- */

static bool is_aborted(const struct bnet_coll *coll)
{
	return atomic_load_explicit(&coll->aborted, memory_order_relaxed);
}

/* now: or 0, to read it where somebody may be asked. */
static int wanted(struct bnet_coll *coll, int64_t now, int64_t every_ns)
{

	if (is_aborted(coll))
		return -ECANCELED;
	if (coll->interrupted == NULL)
		return 0;
	coll->steps = 0;
	if (now == 0)
		now = bnet_coll_now();
	if (now - coll->asked_ns < every_ns)
		return 0;
	coll->asked_ns = now;
	if (coll->interrupted() != 0)
		return -EINTR;
	return is_aborted(coll) ? -ECANCELED : 0; /* a signal handler may have done so */
}

int bnet_coll_wanted(struct bnet_coll *coll)
{
	return wanted(coll, 0, ASK_MOVING_NS);
}

int bnet_coll_step(struct bnet_coll *coll)
{
	if (++coll->steps >= STEPS)
		return bnet_coll_wanted(coll);
	return is_aborted(coll) ? -ECANCELED : 0;
}

int bnet_coll_given_up(struct bnet_coll *coll, int rc)
{
	return bnet_coll_fail(coll, rc, "%s: %s", coll->operation, rc == -EINTR ? "interrupted" : "aborted");
}

/* ---- a fruitless poll ---- */

int bnet_coll_wait_idle(struct bnet_coll *coll, struct bnet_coll_wait *wait)
{
	struct timespec nap;
	int64_t now;
	int rc;

	if (is_aborted(coll))
		return -ECANCELED;
	nap = (struct timespec){.tv_nsec = bnet_coll_wait_fruitless(wait)};
	if (nap.tv_nsec > 0)
		nanosleep(&nap, NULL);
	else
		yield(coll);
	if (nap.tv_nsec == 0 && wait->idle % CLOCK_EVERY != 0)
		return 0;
	now = bnet_coll_now();
	rc = wanted(coll, now, now - wait->since >= ASK_NS ? ASK_NS : ASK_MOVING_NS);
	if (rc != 0)
		return rc;
	return wait->timeout_ns > 0 && now - wait->since > wait->timeout_ns ? -ETIMEDOUT : 0;
}
