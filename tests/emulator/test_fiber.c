/* SPDX-License-Identifier: MIT
 *
 * Fibers: they take turns, wait for each other, keep their stacks and registers, end with a cancelled run, and belong
 * to their thread.
 */
#include <pthread.h>
#include <stdint.h>

#include "check.h"
#include "kernel/fiber.h"

enum { FIBERS = 40, TURNS = 50 };

struct turn {
	struct emu_fibers *fibers;
	int *counter;
	int own, count;
	double sum;
};

static bool is_turn(const void *condition)
{
	const struct turn *turn = condition;

	return *turn->counter % FIBERS == turn->own;
}

/* Something on the stack and in registers lives across the switches. */
static void take_turns(void *arg)
{
	struct turn *turn = arg;
	volatile char frame[2000];
	double sum = turn->own;

	for (size_t i = 0; i < sizeof(frame); i++)
		frame[i] = (char)turn->own;
	for (int i = 0; i < TURNS; i++) {
		emu_fiber_wait(turn->fibers, is_turn, turn);
		check_int(*turn->counter, i * FIBERS + turn->own);
		++*turn->counter;
		sum += 0.5 * i;
	}
	for (size_t i = 0; i < sizeof(frame); i++)
		check_int(frame[i], (char)turn->own);
	turn->sum = sum;
}

static void test_turns(void)
{
	struct emu_fibers *fibers = emu_fibers_of_thread();
	struct turn turns[FIBERS];
	int counter = 0;

	check(fibers != NULL && fibers == emu_fibers_of_thread());
	for (int i = 0; i < FIBERS; i++) { /* the last one starts first */
		turns[i] = (struct turn){.fibers = fibers, .counter = &counter, .own = FIBERS - 1 - i};
		check(emu_fiber_start(fibers, NULL, take_turns, &turns[i]));
	}
	check(emu_fibers_run(fibers, NULL));
	check_int(counter, FIBERS * TURNS);
	for (int i = 0; i < FIBERS; i++)
		check(turns[i].sum == turns[i].own + 0.25 * TURNS * (TURNS - 1));
}

/* ---- groups ---- */

struct family {
	struct emu_fibers *fibers;
	int depth, *ended;
};

static bool never(const void *condition)
{
	(void)condition;
	return false;
}

static void have_children(void *arg)
{
	const struct family *self = arg;
	struct family children[3];
	struct emu_fiber_group group = {0};
	const int before = *self->ended;

	for (int i = 0; i < 3 && self->depth > 0; i++) {
		children[i] = (struct family){self->fibers, self->depth - 1, self->ended};
		check(emu_fiber_start(self->fibers, &group, have_children, &children[i]));
	}
	emu_fiber_join(self->fibers, &group);
	check_int(group.running, 0);
	check(self->depth == 0 || *self->ended >= before + 3);
	++*self->ended;
}

static void test_groups(void)
{
	int ended = 0;
	struct family first = {emu_fibers_of_thread(), 3, &ended};

	check(emu_fiber_start(first.fibers, NULL, have_children, &first));
	check(emu_fibers_run(first.fibers, NULL));
	check_int(ended, 1 + 3 + 9 + 27);
}

/* ---- the end of a run ---- */

static void wait_forever(void *arg)
{
	const struct family *self = arg;

	emu_fiber_wait(self->fibers, never, NULL);
	++*self->ended; /* not reached */
}

/* The children use the parent's stack: it must stay until they have ended. */
static void wait_for_children(void *arg)
{
	const struct family *self = arg;
	struct family children[3];
	struct emu_fiber_group group = {0};

	for (int i = 0; i < 3; i++) {
		children[i] = *self;
		check(emu_fiber_start(self->fibers, &group, wait_forever, &children[i]));
	}
	emu_fiber_join(self->fibers, &group);
	check_int(group.running, 0);
	++*self->ended;
	emu_fiber_wait(self->fibers, never, NULL);
	++*self->ended; /* not reached */
}

static void cancel(void *arg)
{
	emu_fibers_cancel(((const struct family *)arg)->fibers);
}

static void test_cancel(void)
{
	int ended = 0;
	struct family self = {emu_fibers_of_thread(), 0, &ended};
	volatile uint32_t abort = 1;

	check(emu_fiber_start(self.fibers, NULL, wait_for_children, &self));
	check(emu_fiber_start(self.fibers, NULL, wait_forever, &self));
	check(emu_fiber_start(self.fibers, NULL, cancel, &self));
	check(!emu_fibers_run(self.fibers, NULL));
	check_int(ended, 1);
	check(emu_fiber_start(self.fibers, NULL, wait_for_children, &self));
	check(!emu_fibers_run(self.fibers, &abort));
	check_int(ended, 2);
	abort = 0;
	check(emu_fiber_start(self.fibers, NULL, have_children, &self)); /* the next run starts afresh */
	check(emu_fibers_run(self.fibers, &abort));
	check_int(ended, 3);
}

/* ---- threads ---- */

static void *set_abort(void *arg)
{
	__atomic_store_n((uint32_t *)arg, 1, __ATOMIC_RELEASE);
	return NULL;
}

/* Another thread ends the run, as NCCL does. */
static void test_abort(void)
{
	int ended = 0;
	struct family self = {emu_fibers_of_thread(), 0, &ended};
	uint32_t abort = 0;
	pthread_t thread;

	check(emu_fiber_start(self.fibers, NULL, wait_forever, &self));
	check_int(pthread_create(&thread, NULL, set_abort, &abort), 0);
	check(!emu_fibers_run(self.fibers, &abort));
	pthread_join(thread, NULL);
	check_int(ended, 0);
}

static void *run_all(void *arg)
{
	(void)arg;
	for (int i = 0; i < 20; i++) {
		test_turns();
		test_groups();
		test_cancel();
	}
	return NULL;
}

static void test_threads(void)
{
	pthread_t threads[4];

	for (int i = 0; i < 4; i++)
		check_int(pthread_create(&threads[i], NULL, run_all, NULL), 0);
	for (int i = 0; i < 4; i++)
		pthread_join(threads[i], NULL);
}

int main(void)
{
	test_turns();
	test_groups();
	test_cancel();
	test_abort();
	test_threads();
	return 0;
}
