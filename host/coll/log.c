/* SPDX-License-Identifier: MIT
 *
 * The logger that the collectives give to a network. It keeps the warnings of each thread's current operation and the
 * last one of all threads. Any thread may log.
 */
#include "coll/log.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#define TEXT_SIZE 512
#define JOINED_SIZE 384 /* fits into a group's error text */

struct warning {
	unsigned number; /* 0: none */
	char text[TEXT_SIZE];
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct warning last;              /* of any thread: a network may fail in its own thread */
static _Thread_local struct warning own; /* all since this thread's operation began, as many as fit */
static _Thread_local unsigned began;
static _Thread_local bool muted;

/* ---- the lock ---- */

/* In a child of fork(), where no other thread is: one may have had the lock and have been writing. Nothing takes the
 * lock before fork(), since a network may log under a lock that it takes then. */
static void begin_anew(void)
{
	pthread_mutex_init(&mutex, NULL);
	last.text[0] = '\0';
}

static void watch_forks(void)
{
	pthread_atfork(NULL, NULL, begin_anew);
}

static void lock(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, watch_forks);
	pthread_mutex_lock(&mutex);
}

static void unlock(void)
{
	pthread_mutex_unlock(&mutex);
}

/* ---- warnings ---- */

/* A network may log the reason first and details after it: keep all that fit. */
static void add_to_own(const char *text)
{
	size_t used = own.number > began ? strlen(own.text) : 0;

	if (used == 0)
		snprintf(own.text, sizeof(own.text), "%s", text);
	else if (used + strlen("; ") + strlen(text) < JOINED_SIZE)
		stpcpy(stpcpy(own.text + used, "; "), text);
	own.number = last.number;
}

static void remember(const char *text)
{
	lock();
	last.number++;
	snprintf(last.text, sizeof(last.text), "%s", text);
	add_to_own(text);
	unlock();
}

static bool wanted(ncclDebugLogLevel level)
{
	const char *debug = getenv("NCCL_DEBUG");

	if (debug == NULL)
		return false;
	if (level == NCCL_LOG_WARN)
		return strcasecmp(debug, "WARN") == 0 || strcasecmp(debug, "INFO") == 0 ||
		       strcasecmp(debug, "ABORT") == 0 || strcasecmp(debug, "TRACE") == 0;
	if (level == NCCL_LOG_INFO)
		return strcasecmp(debug, "INFO") == 0 || strcasecmp(debug, "TRACE") == 0;
	return strcasecmp(debug, "TRACE") == 0;
}

void bnet_coll_logger(ncclDebugLogLevel level, unsigned long flags, const char *file, int line, const char *fmt, ...)
{
	char text[TEXT_SIZE];
	va_list args;

	if (muted && level == NCCL_LOG_WARN)
		return;
	if (level != NCCL_LOG_WARN && !wanted(level))
		return;
	va_start(args, fmt);
	vsnprintf(text, sizeof(text), fmt, args);
	va_end(args);
	/* Our network warns of a wait, during which nothing has failed, in the name of this subsystem; of all else, and
	 * other networks of everything, in that of all. */
	if (level == NCCL_LOG_WARN && flags != NCCL_NET)
		remember(text);
	if (wanted(level))
		fprintf(stderr, "[%d] %s %s:%d %s\n", getpid(), level == NCCL_LOG_WARN ? "WARN" : "INFO", file, line,
			text);
}

void bnet_coll_tell(atomic_bool *told, const char *fmt, ...)
{
	char text[TEXT_SIZE];
	va_list args;

	if (atomic_exchange(told, true))
		return;
	va_start(args, fmt);
	vsnprintf(text, sizeof(text), fmt, args);
	va_end(args);
	fprintf(stderr, "%s\n", text);
}

void bnet_coll_mute(bool mute)
{
	muted = mute;
}

unsigned bnet_coll_warnings(void)
{
	lock();
	began = last.number;
	unlock();
	return began;
}

void bnet_coll_last_warning(unsigned since, char *out, size_t size)
{
	const struct warning *newest = own.number > since ? &own : &last;

	lock();
	snprintf(out, size, "%s", newest->number > since ? newest->text : "");
	unlock();
}
