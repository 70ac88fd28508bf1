/* SPDX-License-Identifier: MIT
 *
 * The logger that the collectives give to a network. It keeps the last warning, which holds the reason of an error that
 * NCCL's result code only classifies. Any thread may log. Nothing goes to stdout; stderr gets what NCCL_DEBUG asks for.
 */
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "coll.h"

struct warning {
	unsigned number; /* 0: none */
	char text[512];
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct warning last; /* of any thread: a network may fail in a thread of its own */
static _Thread_local struct warning own;

static void remember(const char *text)
{
	pthread_mutex_lock(&lock);
	last.number++;
	snprintf(last.text, sizeof(last.text), "%s", text);
	own = last;
	pthread_mutex_unlock(&lock);
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
	char text[512];
	va_list args;

	(void)flags;
	if (level != NCCL_LOG_WARN && !wanted(level))
		return;
	va_start(args, fmt);
	vsnprintf(text, sizeof(text), fmt, args);
	va_end(args);
	if (level == NCCL_LOG_WARN)
		remember(text);
	if (wanted(level))
		fprintf(stderr, "%s %s:%d %s\n", level == NCCL_LOG_WARN ? "WARN" : "INFO", file, line, text);
}

unsigned bnet_coll_warnings(void)
{
	unsigned number;

	pthread_mutex_lock(&lock);
	number = last.number;
	pthread_mutex_unlock(&lock);
	return number;
}

void bnet_coll_last_warning(unsigned since, char *out, size_t size)
{
	const struct warning *newest = own.number > since ? &own : &last;

	pthread_mutex_lock(&lock);
	snprintf(out, size, "%s", newest->number > since ? newest->text : "");
	pthread_mutex_unlock(&lock);
}
