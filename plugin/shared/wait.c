/* SPDX-License-Identifier: MIT
 *
 * See wait.h. The group's own thread.
 */
#include "shared/wait.h"

#include <errno.h>
#include <sched.h>

#include "base/clock.h"
#include "shared/futex.h"

/* Between two looks whether the other rank is alive and this one is still wanted. */
#define LOOK_NS 100000000
/* Polls between two readings of the clock. */
#define POLLS 64
/* Where ranks outnumber processors, the one that is waited for may need this one. A yield costs less than a sleep if it
 * is soon done: four ranks on two processors, 1 KiB and 64 KiB: 0.6 to 1.0 of the time. */
#define YIELDS 20
/* A yield that took longer gave the processor to a thread that computes. Another one would again; who sleeps is woken
 * before such a thread has used up its time. */
#define LONG_YIELD_NS 500000

#if defined(__x86_64__) || defined(__i386__)
#define pause_processor() __builtin_ia32_pause()
#elif defined(__aarch64__)
#define pause_processor() __asm__ volatile("yield")
#else
#define pause_processor() ((void)0)
#endif

static _Atomic uint32_t *word_of(struct bnet_shared_line *line, enum bnet_shared_word word)
{
	return word == BNET_SHARED_PUT ? &line->put : &line->got;
}

/* Counters wrap around. */
static bool reached(_Atomic uint32_t *word, uint32_t round)
{
	return (int32_t)(atomic_load_explicit(word, memory_order_acquire) - round) >= 0;
}

static bool spin(_Atomic uint32_t *word, uint32_t round, int64_t ns)
{
	const uint64_t until = bnet_now_ns() + (uint64_t)ns;

	do {
		for (int i = 0; i < POLLS; i++) {
			if (reached(word, round))
				return true;
			pause_processor();
		}
	} while (bnet_now_ns() < until);
	return false;
}

static bool yield(_Atomic uint32_t *word, uint32_t round)
{
	uint64_t before = bnet_now_ns();

	for (int i = 0; i < YIELDS; i++) {
		uint64_t after;

		sched_yield();
		if (reached(word, round))
			return true;
		after = bnet_now_ns();
		if (after - before > LONG_YIELD_NS)
			return false;
		before = after;
	}
	return false;
}

/* A publisher that sees no sleeper published before this thread's last look; both orders are sequentially consistent. */
static void sleep_once(struct bnet_shared_line *line, _Atomic uint32_t *word, uint32_t round)
{
	uint32_t seen;

	atomic_fetch_add(&line->sleepers, 1);
	seen = atomic_load(word);
	if ((int32_t)(seen - round) < 0 && atomic_load(&line->state) != BNET_SHARED_LEFT)
		bnet_futex_sleep(word, seen, LOOK_NS);
	atomic_fetch_sub(&line->sleepers, 1);
}

static int look(const struct bnet_segment *segment, int index, const struct bnet_shared_patience *patience,
		uint64_t since)
{
	if (atomic_load_explicit(patience->aborted, memory_order_relaxed))
		return -ECANCELED;
	if (patience->interrupted != NULL && patience->interrupted() != 0)
		return -EINTR;
	if (atomic_load(&bnet_segment_line(segment, index)->state) == BNET_SHARED_LEFT ||
	    bnet_segment_process_gone(segment, index))
		return -ECONNRESET;
	if (patience->timeout_ns > 0 && bnet_now_ns() - since > (uint64_t)patience->timeout_ns)
		return -ETIMEDOUT;
	return 0;
}

int bnet_shared_await(const struct bnet_segment *segment, int index, enum bnet_shared_word word, uint32_t round,
		      const struct bnet_shared_patience *patience)
{
	struct bnet_shared_line *line = bnet_segment_line(segment, index);
	_Atomic uint32_t *at = word_of(line, word);
	uint64_t since;
	int rc = 0;

	if (reached(at, round) || (patience->spin_ns > 0 ? spin(at, round, patience->spin_ns) : yield(at, round)))
		return 0;
	since = bnet_now_ns();
	while (!reached(at, round)) {
		sleep_once(line, at, round);
		if (reached(at, round))
			return 0;
		rc = look(segment, index, patience, since);
		/* It may have published before it left. */
		if (rc != 0)
			return reached(at, round) ? 0 : rc;
	}
	return 0;
}

void bnet_shared_publish(const struct bnet_segment *segment, enum bnet_shared_word word, uint32_t round)
{
	struct bnet_shared_line *line = bnet_segment_line(segment, segment->index);
	_Atomic uint32_t *at = word_of(line, word);

	atomic_store(at, round);
	if (atomic_load(&line->sleepers) != 0)
		bnet_futex_wake(at);
}
