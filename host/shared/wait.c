/* SPDX-License-Identifier: MIT
 *
 * See wait.h. The group's own thread.
 */
#include "shared/wait.h"

#include <errno.h>
#include <sched.h>
#include <string.h>

#include "common/clock.h"
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

/* A publisher that sees no sleeper published before this thread's last look; both orders are sequentially
 * consistent. */
static void sleep_once(struct bnet_shared_line *line, _Atomic uint32_t *word, uint32_t round)
{
	uint32_t seen;

	atomic_fetch_add(&line->sleepers, 1);
	seen = atomic_load(word);
	if ((int32_t)(seen - round) < 0 && atomic_load(&line->state) != BNET_SHARED_LEFT)
		bnet_futex_sleep(word, seen, LOOK_NS);
	atomic_fetch_sub(&line->sleepers, 1);
}

/* ---- what the others do ---- */

static uint64_t word_at(const struct bnet_shared_line *line, int i)
{
	return atomic_load_explicit(&line->call[i], memory_order_acquire);
}

void bnet_shared_begin(const struct bnet_segment *segment, const struct bnet_shared_note *note)
{
	struct bnet_shared_line *line = bnet_segment_line(segment, segment->index);

	atomic_store_explicit(&line->call[0], 0, memory_order_relaxed);
	for (int i = 1; i < BNET_SHARED_WORDS; i++)
		atomic_store_explicit(&line->call[i], note->words[i], memory_order_release);
	atomic_store_explicit(&line->call[0], note->words[0], memory_order_release);
}

bool bnet_shared_current(const struct bnet_segment *segment, int index, struct bnet_shared_note *note)
{
	const struct bnet_shared_line *line = bnet_segment_line(segment, index);

	for (int i = 0; i < BNET_SHARED_WORDS; i++)
		note->words[i] = word_at(line, i);
	return note->words[0] != 0 && word_at(line, 0) == note->words[0];
}

static bool does_something_else(const struct bnet_segment *segment, int index)
{
	struct bnet_shared_note own, theirs;

	return bnet_shared_current(segment, segment->index, &own) && bnet_shared_current(segment, index, &theirs) &&
	       own.words[0] == theirs.words[0] && memcmp(&own, &theirs, sizeof(own)) != 0;
}

void bnet_shared_moved(const struct bnet_segment *segment)
{
	atomic_fetch_add_explicit(&bnet_segment_line(segment, segment->index)->moved, 1, memory_order_relaxed);
}

/* Of any rank of the host: the one that is waited for may itself wait for that one. */
static uint32_t moves(const struct bnet_segment *segment)
{
	uint32_t sum = 0;

	for (int i = 0; i < segment->count; i++)
		sum += atomic_load_explicit(&bnet_segment_line(segment, i)->moved, memory_order_relaxed);
	return sum;
}

static int look(const struct bnet_segment *segment, int index, const struct bnet_shared_wait_limits *limits,
		uint64_t since)
{
	if (atomic_load_explicit(limits->aborted, memory_order_relaxed))
		return -ECANCELED;
	if (limits->interrupted != NULL && limits->interrupted() != 0)
		return -EINTR;
	if (atomic_load(&bnet_segment_line(segment, index)->state) == BNET_SHARED_LEFT ||
	    bnet_segment_process_gone(segment, index))
		return -ECONNRESET;
	if (does_something_else(segment, index))
		return -EPROTO;
	if (limits->timeout_ns > 0 && bnet_now_ns() - since > (uint64_t)limits->timeout_ns)
		return -ETIMEDOUT;
	return 0;
}

static int sleep_until(const struct bnet_segment *segment, int index, _Atomic uint32_t *at, uint32_t round,
		       const struct bnet_shared_wait_limits *limits, uint64_t since)
{
	struct bnet_shared_line *line = bnet_segment_line(segment, index);
	uint32_t moved = moves(segment);
	int rc;

	while (!reached(at, round)) {
		sleep_once(line, at, round);
		if (reached(at, round))
			return 0;
		if (moves(segment) != moved)
			since = bnet_now_ns();
		moved = moves(segment);
		rc = look(segment, index, limits, since);
		/* It may have published before it left. */
		if (rc != 0)
			return reached(at, round) ? 0 : rc;
	}
	return 0;
}

int bnet_shared_await(const struct bnet_segment *segment, int index, enum bnet_shared_word word, uint32_t round,
		      const struct bnet_shared_wait_limits *limits)
{
	_Atomic uint32_t *at = word_of(bnet_segment_line(segment, index), word);
	uint64_t since;
	int rc;

	if (reached(at, round) || (limits->spin_ns > 0 ? spin(at, round, limits->spin_ns) : yield(at, round)))
		return 0;
	since = bnet_now_ns();
	rc = sleep_until(segment, index, at, round, limits, since);
	if (limits->waited_ns != NULL)
		*limits->waited_ns += (int64_t)(bnet_now_ns() - since);
	return rc;
}

void bnet_shared_publish(const struct bnet_segment *segment, enum bnet_shared_word word, uint32_t round)
{
	struct bnet_shared_line *line = bnet_segment_line(segment, segment->index);
	_Atomic uint32_t *at = word_of(line, word);

	atomic_store(at, round);
	if (atomic_load(&line->sleepers) != 0)
		bnet_futex_wake(at);
}
