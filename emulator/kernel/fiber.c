/* SPDX-License-Identifier: MIT
 *
 * The fibers of a thread: their stacks, the switch between them, and who runs next. A fiber that waits is not switched
 * to: the scheduler evaluates its condition. Everything here belongs to the calling thread.
 */
#include "kernel/fiber.h"

#include <pthread.h>
#include <sched.h>
#include <stddef.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#if defined(__has_feature)
#define HAS_FEATURE(x) __has_feature(x)
#else
#define HAS_FEATURE(x) 0
#endif
#if defined(__SANITIZE_ADDRESS__) || HAS_FEATURE(address_sanitizer)
#define ADDRESS_SANITIZER 1
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#else
#define ADDRESS_SANITIZER 0
#endif
#if defined(__SANITIZE_THREAD__) || HAS_FEATURE(thread_sanitizer)
#define THREAD_SANITIZER 1
#include <sanitizer/tsan_interface.h>
#else
#define THREAD_SANITIZER 0
#endif

enum {
	STACK_BYTES = 256 * 1024, /* a batch of works and blocks of lines lie on it; untouched pages cost nothing */
	PAUSES = 16,              /* idle rounds before the processor is offered to others */
	PAUSE_LENGTH = 8
};

/* What a sanitizer has to know about a stack. */
struct stack {
	const void *bottom;
	size_t bytes;
	void *fake;   /* AddressSanitizer's */
	void *shadow; /* ThreadSanitizer's */
};

struct fiber {
	struct fiber *next; /* in the round, or in the pool */
	void *sp;
	char *mapping; /* starts with the guard page; this structure is at its end */
	emu_fiber_fn *run;
	void *arg;
	struct emu_fiber_group *group;
	emu_ready_fn *ready; /* NULL: nothing to wait for */
	const void *condition;
	bool joins; /* waits for fibers: a cancelled run does not end it */
	bool ended;
	struct stack stack;
};

struct emu_fibers {
	struct fiber *first, **end; /* this round, in order */
	struct fiber *pool;
	struct fiber *current;
	void *sp; /* the scheduler's */
	struct stack stack;
	size_t page;
	bool cancelled;
};

/* ---- the switch ---- */

/* Saves the callee-saved registers on the stack and its pointer in *from; restores those at to. */
void emu_fiber_switch(void **from, void *to);

#if defined(__x86_64__)
__asm__(".text\n"
	".globl emu_fiber_switch\n"
	".hidden emu_fiber_switch\n"
	".type emu_fiber_switch, @function\n"
	".align 16\n"
	"emu_fiber_switch:\n"
	"	pushq %rbp\n"
	"	pushq %rbx\n"
	"	pushq %r12\n"
	"	pushq %r13\n"
	"	pushq %r14\n"
	"	pushq %r15\n"
	"	movq %rsp, (%rdi)\n"
	"	movq %rsi, %rsp\n"
	"	popq %r15\n"
	"	popq %r14\n"
	"	popq %r13\n"
	"	popq %r12\n"
	"	popq %rbx\n"
	"	popq %rbp\n"
	"	ret\n"
	".size emu_fiber_switch, . - emu_fiber_switch\n");

enum { SAVED_WORDS = 8, ENTRY_WORD = 6 }; /* the last word is the entry's own return address: none */
#elif defined(__aarch64__)
__asm__(".text\n"
	".globl emu_fiber_switch\n"
	".hidden emu_fiber_switch\n"
	".type emu_fiber_switch, %function\n"
	".align 4\n"
	"emu_fiber_switch:\n"
	"	sub sp, sp, #160\n"
	"	stp x19, x20, [sp, #0]\n"
	"	stp x21, x22, [sp, #16]\n"
	"	stp x23, x24, [sp, #32]\n"
	"	stp x25, x26, [sp, #48]\n"
	"	stp x27, x28, [sp, #64]\n"
	"	stp x29, x30, [sp, #80]\n"
	"	stp d8, d9, [sp, #96]\n"
	"	stp d10, d11, [sp, #112]\n"
	"	stp d12, d13, [sp, #128]\n"
	"	stp d14, d15, [sp, #144]\n"
	"	mov x9, sp\n"
	"	str x9, [x0]\n"
	"	mov sp, x1\n"
	"	ldp x19, x20, [sp, #0]\n"
	"	ldp x21, x22, [sp, #16]\n"
	"	ldp x23, x24, [sp, #32]\n"
	"	ldp x25, x26, [sp, #48]\n"
	"	ldp x27, x28, [sp, #64]\n"
	"	ldp x29, x30, [sp, #80]\n"
	"	ldp d8, d9, [sp, #96]\n"
	"	ldp d10, d11, [sp, #112]\n"
	"	ldp d12, d13, [sp, #128]\n"
	"	ldp d14, d15, [sp, #144]\n"
	"	add sp, sp, #160\n"
	"	ret\n"
	".size emu_fiber_switch, . - emu_fiber_switch\n");

enum { SAVED_WORDS = 20, ENTRY_WORD = 11 };
#else
#error "no stack switch for this processor"
#endif

static void pause_briefly(void)
{
#if defined(__x86_64__)
	__builtin_ia32_pause();
#else
	__asm__ volatile("yield");
#endif
}

/* Called on the stack that is left. gone: it will not be returned to. */
static void switch_stacks(void **sp, struct stack *left, void *to_sp, struct stack *to, bool gone)
{
#if ADDRESS_SANITIZER
	__sanitizer_start_switch_fiber(gone ? NULL : &left->fake, to->bottom, to->bytes);
#elif THREAD_SANITIZER
	left->shadow = __tsan_get_current_fiber();
	__tsan_switch_to_fiber(to->shadow, 0);
#endif
	(void)left, (void)to, (void)gone;
	emu_fiber_switch(sp, to_sp);
#if ADDRESS_SANITIZER
	__sanitizer_finish_switch_fiber(left->fake, NULL, NULL);
#endif
}

/* ---- fibers ---- */

static _Thread_local struct emu_fibers *mine;

static _Noreturn void end_fiber(struct emu_fibers *fibers)
{
	struct fiber *fiber = fibers->current;

	fiber->ended = true;
	if (fiber->group != NULL)
		fiber->group->running--;
	switch_stacks(&fiber->sp, &fiber->stack, fibers->sp, &fibers->stack, true);
	__builtin_unreachable();
}

/* A new stack's first function. */
static void enter(void)
{
	struct emu_fibers *fibers = mine;
	struct fiber *fiber = fibers->current;

#if ADDRESS_SANITIZER
	/* The thread's own stack is known only from here. */
	__sanitizer_finish_switch_fiber(NULL, &fibers->stack.bottom, &fibers->stack.bytes);
#endif
	fiber->run(fiber->arg);
	end_fiber(fibers);
}

static void *initial_stack(struct fiber *fiber)
{
	const uintptr_t top = (uintptr_t)fiber & ~(uintptr_t)15;
	uintptr_t *words = (uintptr_t *)top - SAVED_WORDS;

	for (int i = 0; i < SAVED_WORDS; i++)
		words[i] = 0;
	words[ENTRY_WORD] = (uintptr_t)enter;
	return words;
}

static struct fiber *map_fiber(const struct emu_fibers *fibers)
{
	const size_t bytes = STACK_BYTES + fibers->page;
	char *mapping = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
			     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
	struct fiber *fiber;

	if (mapping == MAP_FAILED)
		return NULL;
	if (mprotect(mapping, fibers->page, PROT_NONE) != 0) {
		munmap(mapping, bytes);
		return NULL;
	}
	fiber = (struct fiber *)(mapping + bytes - sizeof(*fiber));
	fiber->mapping = mapping;
	fiber->stack.bottom = mapping + fibers->page;
	fiber->stack.bytes = (size_t)((char *)fiber - (mapping + fibers->page));
#if THREAD_SANITIZER
	fiber->stack.shadow = __tsan_create_fiber(0);
#endif
	return fiber;
}

static struct fiber *take_fiber(struct emu_fibers *fibers)
{
	struct fiber *fiber = fibers->pool;

	if (fiber == NULL)
		return map_fiber(fibers);
	fibers->pool = fiber->next;
#if ADDRESS_SANITIZER
	__asan_unpoison_memory_region(fiber->stack.bottom, fiber->stack.bytes); /* of frames that never returned */
#endif
	return fiber;
}

bool emu_fiber_start(struct emu_fibers *fibers, struct emu_fiber_group *group, emu_fiber_fn *run, void *arg)
{
	struct fiber *fiber = take_fiber(fibers);

	if (fiber == NULL)
		return false;
	fiber->next = NULL;
	fiber->run = run;
	fiber->arg = arg;
	fiber->group = group;
	fiber->ready = NULL;
	fiber->joins = false;
	fiber->ended = false;
	fiber->sp = initial_stack(fiber);
	if (group != NULL)
		group->running++;
	*fibers->end = fiber;
	fibers->end = &fiber->next;
	return true;
}

static void wait(struct emu_fibers *fibers, emu_ready_fn *ready, const void *condition, bool joins)
{
	struct fiber *fiber = fibers->current;

	fiber->ready = ready;
	fiber->condition = condition;
	fiber->joins = joins;
	switch_stacks(&fiber->sp, &fiber->stack, fibers->sp, &fibers->stack, false);
	fiber->ready = NULL;
	if (fibers->cancelled && !joins)
		end_fiber(fibers);
}

void emu_fiber_wait(struct emu_fibers *fibers, emu_ready_fn *ready, const void *condition)
{
	if (!ready(condition))
		wait(fibers, ready, condition, false);
}

static bool group_ended(const void *condition)
{
	return ((const struct emu_fiber_group *)condition)->running == 0;
}

void emu_fiber_join(struct emu_fibers *fibers, struct emu_fiber_group *group)
{
	if (!group_ended(group))
		wait(fibers, group_ended, group, true);
}

void emu_fibers_cancel(struct emu_fibers *fibers)
{
	fibers->cancelled = true;
}

/* ---- the scheduler ---- */

static bool runnable(const struct emu_fibers *fibers, const struct fiber *fiber)
{
	return fiber->ready == NULL || (fibers->cancelled && !fiber->joins) || fiber->ready(fiber->condition);
}

/* One turn for every fiber. Did any of them run? */
static bool run_round(struct emu_fibers *fibers)
{
	bool progress = false;

	for (struct fiber **at = &fibers->first; *at != NULL;) {
		struct fiber *fiber = *at;

		if (runnable(fibers, fiber)) {
			progress = true;
			fibers->current = fiber;
			switch_stacks(&fibers->sp, &fibers->stack, fiber->sp, &fiber->stack, false);
		}
		if (!fiber->ended) {
			at = &fiber->next;
			continue;
		}
		*at = fiber->next;
		if (fiber->next == NULL)
			fibers->end = at;
		fiber->next = fibers->pool;
		fibers->pool = fiber;
	}
	return progress;
}

/* Nothing was ready in so many rounds in succession. The proxies that have to move something usually run on the other
 * processors; where they do not, this thread must make room. */
static void idle(unsigned rounds)
{
	if (rounds > PAUSES) {
		sched_yield();
		return;
	}
	for (int i = 0; i < PAUSE_LENGTH; i++)
		pause_briefly();
}

bool emu_fibers_run(struct emu_fibers *fibers, const volatile uint32_t *abort)
{
	unsigned idle_rounds = 0;
	bool completed;

#if THREAD_SANITIZER
	fibers->stack.shadow = __tsan_get_current_fiber();
#endif
	while (fibers->first != NULL) {
		if (abort != NULL && __atomic_load_n(abort, __ATOMIC_RELAXED) != 0)
			fibers->cancelled = true;
		if (run_round(fibers))
			idle_rounds = 0;
		else
			idle(++idle_rounds);
	}
	completed = !fibers->cancelled;
	fibers->cancelled = false;
	return completed;
}

/* ---- the thread ---- */

static pthread_key_t key;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static bool has_key;

static void release(void *value)
{
	struct emu_fibers *fibers = value;

	while (fibers->pool != NULL) {
		struct fiber *fiber = fibers->pool;

		fibers->pool = fiber->next;
#if THREAD_SANITIZER
		__tsan_destroy_fiber(fiber->stack.shadow);
#endif
		munmap(fiber->mapping, STACK_BYTES + fibers->page);
	}
	free(fibers);
	mine = NULL;
}

static void make_key(void)
{
	has_key = pthread_key_create(&key, release) == 0;
}

struct emu_fibers *emu_fibers_of_thread(void)
{
	struct emu_fibers *fibers;

	if (mine != NULL)
		return mine;
	pthread_once(&once, make_key);
	if (!has_key)
		return NULL;
	fibers = calloc(1, sizeof(*fibers));
	if (fibers == NULL || pthread_setspecific(key, fibers) != 0) {
		free(fibers);
		return NULL;
	}
	fibers->end = &fibers->first;
	fibers->page = (size_t)sysconf(_SC_PAGESIZE);
	mine = fibers;
	return fibers;
}
