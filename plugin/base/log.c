/* SPDX-License-Identifier: MIT
 *
 * The only place that calls NCCL's logger or writes to stderr. Any thread.
 */
#include "base/log.h"

#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

#include "common/clock.h"

#define LINE_SIZE 1024

static _Atomic(ncclDebugLogger_t) current_logger;

/* A message without its text. */
struct about {
	ncclDebugLogLevel level;
	unsigned long subsys;
	const char *file;
	int line;
	bool visible; /* it goes to stderr as well */
};

/* A message that waits. */
struct bnet_held {
	struct bnet_held *next;
	struct about about;
	char text[];
};

#define SETTLE_MS 1000

/* Messages that are held, or owed. */
static atomic_int pending;

/* Of the thread that has the lock, which alone changes the list. No thread-local variables: where a library is loaded
 * late, the dynamic linker frees them behind ThreadSanitizer's back. */
static _Atomic uintptr_t holder;
static struct bnet_held *first, **last;

void bnet_log_set(ncclDebugLogger_t logger)
{
	atomic_store_explicit(&current_logger, logger, memory_order_release);
}

/* Keeps text from a peer or the environment on one line. UTF-8 passes unchanged. */
static void replace_control_characters(char *text)
{
	for (; *text; text++) {
		unsigned char c = (unsigned char)*text;

		if (c < ' ' || c == 0x7f)
			*text = ' ';
	}
}

static void format(char text[LINE_SIZE], const char *fmt, va_list args)
{
	int len = vsnprintf(text, LINE_SIZE, fmt, args);

	if (len < 0)
		snprintf(text, LINE_SIZE, "(a message that cannot be formatted: %s)", fmt);
	else if (len >= LINE_SIZE)
		memcpy(text + LINE_SIZE - 4, "...", 4);
	replace_control_characters(text);
}

static void pass_on(const struct about *about, const char *text)
{
	ncclDebugLogger_t logger = atomic_load_explicit(&current_logger, memory_order_acquire);

	if (logger)
		logger(about->level, about->subsys, about->file, about->line, "%s", text);
	if (about->visible)
		fprintf(stderr, "%s\n", text);
}

static uintptr_t this_thread(void)
{
	return (uintptr_t)pthread_self();
}

/* False: no memory. */
static bool hold(const struct about *about, const char *text)
{
	const size_t size = strlen(text) + 1;
	struct bnet_held *held = malloc(sizeof(*held) + size);

	if (!held)
		return false;
	*held = (struct bnet_held){.about = *about};
	memcpy(held->text, text, size);
	if (!first)
		last = &first;
	*last = held;
	last = &held->next;
	bnet_log_owe();
	return true;
}

void bnet_log_hold(void)
{
	atomic_store_explicit(&holder, this_thread(), memory_order_relaxed);
}

struct bnet_held *bnet_log_release(void)
{
	struct bnet_held *held = first;

	atomic_store_explicit(&holder, 0, memory_order_relaxed);
	first = NULL;
	return held;
}

struct bnet_held *bnet_log_release_in_child(void)
{
	struct bnet_held *held = bnet_log_release();
	int count = 0;

	for (const struct bnet_held *each = held; each; each = each->next)
		count++;
	atomic_store(&pending, count);
	return held;
}

void bnet_log_owe(void)
{
	atomic_fetch_add(&pending, 1);
}

void bnet_log_owe_no_more(void)
{
	atomic_fetch_sub(&pending, 1);
}

void bnet_log_settle(void)
{
	const struct timespec pause = {.tv_nsec = 100000};
	uint64_t until = 0;

	while (atomic_load(&pending) > 0) {
		const uint64_t now = bnet_now_ms();

		if (until == 0)
			until = now + SETTLE_MS;
		if (now >= until)
			return;
		nanosleep(&pause, NULL);
	}
}

void bnet_log_pass_on(struct bnet_held *held)
{
	int saved_errno = errno;

	while (held) {
		struct bnet_held *next = held->next;

		pass_on(&held->about, held->text);
		free(held);
		held = next;
		bnet_log_owe_no_more();
	}
	errno = saved_errno;
}

static void say(const struct about *about, const char *text)
{
	if (atomic_load_explicit(&holder, memory_order_relaxed) != this_thread() || !hold(about, text))
		pass_on(about, text);
}

void bnet_log(ncclDebugLogLevel level, unsigned long subsys, const char *file, int line, const char *fmt, ...)
{
	int saved_errno = errno;
	char text[LINE_SIZE];
	va_list args;

	if (!atomic_load_explicit(&current_logger, memory_order_acquire))
		return;
	va_start(args, fmt);
	format(text, fmt, args);
	va_end(args);
	say(&(struct about){.level = level, .subsys = subsys, .file = file, .line = line}, text);
	errno = saved_errno;
}

/* NCCL's levels that include warnings. */
static bool logger_shows_warnings(void)
{
	static const char *const levels[] = {"WARN", "INFO", "ABORT", "TRACE"};
	const char *debug = getenv("NCCL_DEBUG");

	for (size_t i = 0; debug && i < sizeof(levels) / sizeof(levels[0]); i++)
		if (strcasecmp(debug, levels[i]) == 0)
			return true;
	return false;
}

void bnet_log_visibly(atomic_bool *told, unsigned long subsys, const char *file, int line, const char *fmt, ...)
{
	struct about about = {.level = NCCL_LOG_WARN, .subsys = subsys, .file = file, .line = line};
	int saved_errno = errno;
	char text[LINE_SIZE];
	va_list args;

	va_start(args, fmt);
	format(text, fmt, args);
	va_end(args);
	about.visible = !atomic_exchange(told, true) && !logger_shows_warnings();
	say(&about, text);
	errno = saved_errno;
}
