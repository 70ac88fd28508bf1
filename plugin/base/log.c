/* SPDX-License-Identifier: MIT
 *
 * The only place that calls NCCL's logger. Any thread.
 */
#include "base/log.h"

#include <errno.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#define LINE_SIZE 1024

static _Atomic(ncclDebugLogger_t) current_logger;

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

void bnet_log(ncclDebugLogLevel level, unsigned long subsys, const char *file, int line, const char *fmt, ...)
{
	ncclDebugLogger_t logger = atomic_load_explicit(&current_logger, memory_order_acquire);
	int saved_errno = errno;
	char text[LINE_SIZE];
	va_list args;
	int len;

	if (!logger)
		return;
	va_start(args, fmt);
	len = vsnprintf(text, sizeof(text), fmt, args);
	va_end(args);
	if (len < 0)
		snprintf(text, sizeof(text), "(a message that cannot be formatted: %s)", fmt);
	else if ((size_t)len >= sizeof(text))
		memcpy(text + sizeof(text) - 4, "...", 4);
	replace_control_characters(text);
	logger(level, subsys, file, line, "%s", text);
	errno = saved_errno;
}
