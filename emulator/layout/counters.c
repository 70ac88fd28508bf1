/* SPDX-License-Identifier: MIT
 *
 * The counters that NCCL's profiler reads (2.26 and later): each channel counts the works that it started and those
 * that it completed, across launches. The kernel counts where the profiler asked for it; here they always count,
 * which nobody else sees. Thread: a launch's.
 */
#include "layout/decode.h"

#include <time.h>

enum { SLOTS = 64 };

/* 2.27 and later: the slot of work n is n modulo SLOTS. */
struct channel_slots {
	struct {
		uint64_t counter, nanoseconds;
	} slot[SLOTS];
};

static uint64_t now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_REALTIME, &time);
	return (uint64_t)time.tv_sec * 1000000000 + (uint64_t)time.tv_nsec;
}

/* Sets the counter at offset of the communicator to all of (before, before + works]. */
static void publish(const struct emu_launch *launch, int offset, int id, uint64_t before, int works)
{
	void *counters = emu_read_pointer(launch->comm, offset);
	struct channel_slots *slots;
	uint64_t time;

	if (!counters)
		return;
	if (!launch->layout->comm->counters_have_slots) {
		__atomic_store_n((uint64_t *)counters + id, before + (uint64_t)works, __ATOMIC_RELEASE);
		return;
	}
	slots = (struct channel_slots *)counters + id;
	time = now();
	for (uint64_t n = before + 1; n <= before + (uint64_t)works; n++) {
		slots->slot[n % SLOTS].nanoseconds = time;
		__atomic_store_n(&slots->slot[n % SLOTS].counter, n, __ATOMIC_RELEASE);
	}
}

/* The channel's count of works; NULL before 2.26. */
static uint64_t *count_of(const struct emu_launch *launch, int id)
{
	const int offset = launch->layout->channel->work_counter;

	return offset == EMU_ABSENT ? NULL : (uint64_t *)(void *)(emu_launch_channel_at(launch, id) + offset);
}

void emu_counters_start(const struct emu_launch *launch, int id, int works)
{
	const uint64_t *count = count_of(launch, id);

	if (count)
		publish(launch, launch->layout->comm->work_started, id, *count, works);
}

void emu_counters_stop(const struct emu_launch *launch, int id, int works)
{
	uint64_t *count = count_of(launch, id);

	if (!count)
		return;
	publish(launch, launch->layout->comm->work_completed, id, *count, works);
	*count += (uint64_t)works;
}
