/* SPDX-License-Identifier: MIT
 *
 * See futex.h.
 */
#include "shared/futex.h"

#include <limits.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define NS_PER_S 1000000000

void bnet_futex_sleep(_Atomic uint32_t *word, uint32_t seen, int64_t ns)
{
	const struct timespec limit = {.tv_sec = ns / NS_PER_S, .tv_nsec = ns % NS_PER_S};

	syscall(SYS_futex, word, FUTEX_WAIT, seen, &limit, NULL, 0);
}

void bnet_futex_wake(_Atomic uint32_t *word)
{
	syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}
