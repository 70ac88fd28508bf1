/* SPDX-License-Identifier: MIT
 *
 * Cooperative fibers on the calling thread. Each thread has a scheduler of its own and never touches another's. The
 * stacks stay with the thread, so that a launch maps no memory once the thread has played one of its size.
 *
 * A fiber that ends without returning leaves its stack as it is: it must own nothing that has to be released.
 */
#ifndef EMU_KERNEL_FIBER_H
#define EMU_KERNEL_FIBER_H

#include <stdbool.h>
#include <stdint.h>

struct emu_fibers;

/* Fibers that somebody waits for together. Zero before the first one starts. */
struct emu_fiber_group {
	int running;
};

typedef void emu_fiber_fn(void *arg);
typedef bool emu_ready_fn(const void *condition);

/* The calling thread's scheduler; NULL without memory. */
struct emu_fibers *emu_fibers_of_thread(void);

/* Starts run(arg) as a fiber of this round, from outside or from another fiber. false without memory. group: may be
 * NULL. */
bool emu_fiber_start(struct emu_fibers *fibers, struct emu_fiber_group *group, emu_fiber_fn *run, void *arg);

/* Runs the fibers round-robin until all have ended. Once *abort is not zero (abort may be NULL) or a fiber has
 * cancelled the run, every fiber ends in its next wait. false if that happened. */
bool emu_fibers_run(struct emu_fibers *fibers, const volatile uint32_t *abort);

/* For the running fiber. Returns once ready(condition) is true; ends the fiber if the run is cancelled. */
void emu_fiber_wait(struct emu_fibers *fibers, emu_ready_fn *ready, const void *condition);
/* Returns when the group's fibers have ended, even if the run is cancelled: they may use the caller's stack. */
void emu_fiber_join(struct emu_fibers *fibers, struct emu_fiber_group *group);
/* Every fiber ends in its next wait, as after an abort. */
void emu_fibers_cancel(struct emu_fibers *fibers);

#endif
