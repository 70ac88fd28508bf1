/* SPDX-License-Identifier: MIT
 *
 * Core latency: the time for a cache line to travel from one processor to another and back. On a virtual machine it
 * changes with the host's placement of the processors, and with it the speed at which one process reads what another
 * wrote. Two threads of its own measure; callable from any thread.
 */
#include "core_latency.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <time.h>

#define BATCHES 40
#define ROUNDS 100 /* of a batch */
#define GIVEN_UP -1

/* A cache line that two threads write in turn: the first stores odd numbers, the second even ones. */
struct ball {
	_Alignas(128) _Atomic int turn;
	double ns;
};

static double now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}

/* False: the other thread gave up. */
static bool await(_Atomic int *turn, int value)
{
	int now;

	do
		now = atomic_load_explicit(turn, memory_order_acquire);
	while (now != value && now != GIVEN_UP);
	return now == value;
}

static void *answer(void *arg)
{
	struct ball *ball = arg;

	for (int i = 0; i < BATCHES * ROUNDS; i++) {
		if (!await(&ball->turn, 2 * i + 1))
			break;
		atomic_store_explicit(&ball->turn, 2 * i + 2, memory_order_release);
	}
	return NULL;
}

/* The shortest batch counts: longer ones were interrupted. */
static void *play(void *arg)
{
	struct ball *ball = arg;

	for (int batch = 0; batch < BATCHES; batch++) {
		const double start = now_ns();
		double ns;

		for (int i = batch * ROUNDS; i < (batch + 1) * ROUNDS; i++) {
			atomic_store_explicit(&ball->turn, 2 * i + 1, memory_order_release);
			await(&ball->turn, 2 * i + 2);
		}
		ns = (now_ns() - start) / ROUNDS;
		ball->ns = batch == 0 || ns < ball->ns ? ns : ball->ns;
	}
	return NULL;
}

/* 0 or an error number, e.g. for a processor outside the affinity mask. */
static int start_on(int processor, pthread_t *thread, void *(*body)(void *), struct ball *ball)
{
	pthread_attr_t where;
	cpu_set_t one;
	int err = pthread_attr_init(&where);

	if (err)
		return err;
	CPU_ZERO(&one);
	CPU_SET(processor, &one);
	err = pthread_attr_setaffinity_np(&where, sizeof(one), &one);
	if (!err)
		err = pthread_create(thread, &where, body, ball);
	pthread_attr_destroy(&where);
	return err;
}

/* Returns the number found, at most 2. */
static int first_two(const cpu_set_t *processors, int found[2])
{
	int count = 0;

	for (int i = 0; i < CPU_SETSIZE && count < 2; i++)
		if (CPU_ISSET(i, processors))
			found[count++] = i;
	return count;
}

double core_latency_ns(void)
{
	struct ball ball = {.turn = 0};
	pthread_t player, other;
	cpu_set_t mine;
	int two[2];
	int err;

	if (pthread_getaffinity_np(pthread_self(), sizeof(mine), &mine))
		return -1;
	if (first_two(&mine, two) < 2)
		return 0;
	if (start_on(two[1], &other, answer, &ball))
		return -1;
	err = start_on(two[0], &player, play, &ball);
	if (err)
		atomic_store(&ball.turn, GIVEN_UP);
	else
		pthread_join(player, NULL);
	pthread_join(other, NULL);
	return err ? -1 : ball.ns;
}
