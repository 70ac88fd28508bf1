/* SPDX-License-Identifier: MIT
 *
 * What the emulated device could not do.
 */
#include "device/error.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char sentence[256];
static atomic_bool set; /* the sentence is complete and does not change any more */

void emu_problem_set(const char *format, ...)
{
	va_list arguments;

	pthread_mutex_lock(&lock);
	if (!atomic_load(&set)) {
		va_start(arguments, format);
		vsnprintf(sentence, sizeof(sentence), format, arguments);
		va_end(arguments);
		atomic_store(&set, true);
	}
	pthread_mutex_unlock(&lock);
}

const char *emu_problem_text(void)
{
	return atomic_load(&set) ? sentence : "";
}
