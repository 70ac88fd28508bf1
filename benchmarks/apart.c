/* SPDX-License-Identifier: MIT
 *
 * How far apart two processors are: what it takes for a cache line to go from one to the other and back. On a virtual
 * machine that changes while it runs, with the places that the host gives its processors, and with it the speed of
 * whatever one process writes and another one reads.
 */
#include "apart.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <time.h>

#define BATCHES 40
#define ROUNDS 100 /* of a batch */

struct ball {
	_Alignas(128) _Atomic int turn;
	int processor;
};

static double now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}

static void stay_on(int processor)
{
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET(processor, &set);
	pthread_setaffinity_np(pthread_self(), sizeof(set), &set);
}

static void await(_Atomic int *turn, int value)
{
	while (atomic_load_explicit(turn, memory_order_acquire) != value)
		;
}

static void *answer(void *arg)
{
	struct ball *ball = arg;

	stay_on(ball->processor);
	for (int i = 0; i < BATCHES * ROUNDS; i++) {
		await(&ball->turn, 2 * i + 1);
		atomic_store_explicit(&ball->turn, 2 * i + 2, memory_order_release);
	}
	return NULL;
}

/* Of all batches the shortest: others were interrupted. */
static double play(struct ball *ball)
{
	double least = 0;

	for (int batch = 0; batch < BATCHES; batch++) {
		const double start = now_ns();
		double took;

		for (int i = batch * ROUNDS; i < (batch + 1) * ROUNDS; i++) {
			atomic_store_explicit(&ball->turn, 2 * i + 1, memory_order_release);
			await(&ball->turn, 2 * i + 2);
		}
		took = (now_ns() - start) / ROUNDS;
		least = batch == 0 || took < least ? took : least;
	}
	return least;
}

static bool first_two(const cpu_set_t *processors, int *first, int *second)
{
	*first = *second = -1;
	for (int i = 0; i < CPU_SETSIZE && *second < 0; i++)
		if (CPU_ISSET(i, processors))
			*(*first < 0 ? first : second) = i;
	return *second >= 0;
}

double apart_ns(void)
{
	struct ball ball = {.turn = 0};
	cpu_set_t before;
	pthread_t other;
	double ns;
	int first;

	if (pthread_getaffinity_np(pthread_self(), sizeof(before), &before) ||
	    !first_two(&before, &first, &ball.processor) || pthread_create(&other, NULL, answer, &ball))
		return 0;
	stay_on(first);
	ns = play(&ball);
	pthread_join(other, NULL);
	pthread_setaffinity_np(pthread_self(), sizeof(before), &before);
	return ns;
}
