/* SPDX-License-Identifier: MIT
 *
 * Checks for test programs: a failed check prints its operands and ends the program. Any thread.
 */
#ifndef BNET_CHECK_H
#define BNET_CHECK_H

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../sanitize.h"

#define check(cond)                                                                        \
	do {                                                                               \
		if (!(cond)) {                                                             \
			fprintf(stderr, "%s:%d: failed: %s\n", __FILE__, __LINE__, #cond); \
			exit(1);                                                           \
		}                                                                          \
	} while (0)

#define check_int(a, b)                                                                                                \
	do {                                                                                                           \
		long long a_ = (long long)(a), b_ = (long long)(b);                                                    \
		if (a_ != b_) {                                                                                        \
			fprintf(stderr, "%s:%d: %s is %lld, expected %s, %lld\n", __FILE__, __LINE__, #a, a_, #b, b_); \
			exit(1);                                                                                       \
		}                                                                                                      \
	} while (0)

#define check_str(a, b)                                                                                            \
	do {                                                                                                       \
		const char *a_ = (a), *b_ = (b);                                                                   \
		if (strcmp(a_, b_) != 0) {                                                                         \
			fprintf(stderr, "%s:%d: %s is \"%s\", expected \"%s\"\n", __FILE__, __LINE__, #a, a_, b_); \
			exit(1);                                                                                   \
		}                                                                                                  \
	} while (0)

/* Does this run also try what takes long? `.ci/nightly` does. */
static inline bool is_nightly(void)
{
	const char *tier = getenv("BNET_TEST_TIER");

	return tier && strcmp(tier, "nightly") == 0;
}

/* Under a sanitizer a program takes up to ten times as long. Before the night it sees few types there. */
static inline bool is_sanitized(void)
{
#if defined(SANITIZE_THREAD) || defined(SANITIZE_ADDRESS)
	return !is_nightly();
#else
	return false;
#endif
}

/* ThreadSanitizer looks at how threads share data: for that the gate needs each path, and not each size and type. */
static inline bool is_brief(void)
{
#if defined(SANITIZE_THREAD)
	return !is_nightly();
#else
	return false;
#endif
}

#endif
