/* SPDX-License-Identifier: MIT
 *
 * Streams run their operations in the order of the calls; events and gates order streams among each other.
 */
#include "device/stream.h"

#include <dirent.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <time.h>

#include "check.h"
#include "device/memory.h"

enum { MANY = 1000 };

static int order[MANY + 1];
static atomic_int ran;

static int note(void *arg)
{
	order[atomic_fetch_add(&ran, 1)] = *(int *)arg;
	return 0;
}

/* An operation that lasts until the test lets it end. */
static int hold(void *arg)
{
	sem_t *gate = arg;

	while (sem_wait(gate) != 0)
		;
	return 0;
}

static int fail(void *arg)
{
	(void)arg;
	return 719;
}

static void operations_run_in_order(void)
{
	static int numbers[MANY];
	struct emu_stream *stream = emu_stream_new();
	sem_t gate;

	sem_init(&gate, 0, 0);
	atomic_store(&ran, 0);
	check_int(emu_stream_run(stream, hold, &gate, false), 0);
	for (int i = 0; i < MANY; i++) {
		numbers[i] = i;
		/* a short one waits for its turn as well */
		check_int(emu_stream_run(stream, note, &numbers[i], i % 2 == 0), 0);
	}
	check_int(atomic_load(&ran), 0);
	check(!emu_stream_idle(stream));
	sem_post(&gate);
	check_int(emu_stream_wait(stream), 0);
	check(emu_stream_idle(stream));
	for (int i = 0; i < MANY; i++)
		check_int(order[i], i);
	emu_stream_drop(stream);
}

static void a_short_operation_on_an_idle_stream_is_done_at_once(void)
{
	struct emu_stream *stream = emu_stream_new();
	int number = 7;

	atomic_store(&ran, 0);
	check_int(emu_stream_run(stream, note, &number, true), 0);
	check_int(atomic_load(&ran), 1);
	emu_stream_drop(stream);
}

static void a_stream_keeps_its_first_error(void)
{
	struct emu_stream *stream = emu_stream_new();
	int number = 1;

	check_int(emu_stream_run(stream, fail, NULL, false), 0);
	check_int(emu_stream_run(stream, note, &number, false), 0);
	check_int(emu_stream_wait(stream), 719);
	emu_stream_drop(stream);
}

static void a_gate_orders_two_streams(void)
{
	struct emu_stream *first = emu_stream_new(), *second = emu_stream_new();
	struct emu_event *event = emu_event_new();
	int one = 1, two = 2;
	sem_t gate;

	sem_init(&gate, 0, 0);
	atomic_store(&ran, 0);
	check(emu_event_done(event)); /* never recorded */
	check_int(emu_stream_run(first, hold, &gate, false), 0);
	check_int(emu_stream_run(first, note, &one, false), 0);
	emu_event_record(event, first);
	check(!emu_event_done(event));
	check_int(emu_event_gate(event, second), 0);
	check_int(emu_stream_run(second, note, &two, true), 0);
	check_int(atomic_load(&ran), 0);
	sem_post(&gate);
	check_int(emu_stream_wait(second), 0);
	check(emu_event_done(event));
	check_int(order[0], 1);
	check_int(order[1], 2);
	emu_event_wait(event);
	emu_event_drop(event);
	emu_stream_drop(first);
	emu_stream_drop(second);
}

/* What came after the record does not count, and a dropped stream still ends its work. */
static void an_event_is_a_position(void)
{
	struct emu_stream *stream = emu_stream_new();
	struct emu_event *event = emu_event_new();
	int one = 1;
	sem_t gate;

	sem_init(&gate, 0, 0);
	atomic_store(&ran, 0);
	check_int(emu_stream_run(stream, note, &one, false), 0);
	emu_event_record(event, stream);
	check_int(emu_stream_run(stream, hold, &gate, false), 0);
	emu_event_wait(event);
	check_int(atomic_load(&ran), 1);
	emu_event_record(event, stream);
	emu_stream_drop(stream);
	check(!emu_event_done(event));
	sem_post(&gate);
	emu_event_wait(event);
	emu_event_drop(event);
}

static int threads(void)
{
	DIR *tasks = opendir("/proc/self/task");
	int count = 0;

	check(tasks != NULL);
	while (readdir(tasks) != NULL)
		count++;
	closedir(tasks);
	return count;
}

/* A stream's thread ends with the stream. The kernel removes it from the list a moment after its last instruction. */
static void no_thread_is_left(int before)
{
	for (int tries = 0; threads() > before && tries < 10000; tries++)
		nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
	check_int(threads(), before);
}

static void freeing_waits_for_every_stream(void)
{
	struct emu_stream *stream = emu_stream_new();
	void *memory;
	int one = 1;

	atomic_store(&ran, 0);
	check_int(emu_malloc(&memory, 10), 0);
	memset(memory, 1, 10);
	for (int i = 0; i < MANY; i++)
		check_int(emu_stream_run(stream, note, &one, false), 0);
	check_int(emu_free(memory), 0);
	check_int(atomic_load(&ran), MANY);
	check_int(emu_free(NULL), 0);
	check_int(emu_malloc(&memory, SIZE_MAX), 2);
	check(memory == NULL);
	emu_stream_drop(stream);
}

static void *nothing(void *arg)
{
	return arg;
}

int main(void)
{
	pthread_t first; /* ThreadSanitizer adds a thread of its own to the first one */
	int before;

	check_int(pthread_create(&first, NULL, nothing, NULL), 0);
	pthread_join(first, NULL);
	before = threads();
	operations_run_in_order();
	a_short_operation_on_an_idle_stream_is_done_at_once();
	a_stream_keeps_its_first_error();
	a_gate_orders_two_streams();
	an_event_is_a_position();
	freeing_waits_for_every_stream();
	no_thread_is_left(before);
	return 0;
}
