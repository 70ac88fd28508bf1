/* SPDX-License-Identifier: MIT
 *
 * For fuzzers: an input that is read as a script, byte by byte, what must hold, and what may not be left behind. Behind
 * the end of an input come zeroes.
 */
#ifndef BNET_SCRIPT_H
#define BNET_SCRIPT_H

#include <fcntl.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/secret.h"

#define EXPECT(cond)                                            \
	do {                                                    \
		if (!(cond)) {                                  \
			fprintf(stderr, "broken: %s\n", #cond); \
			abort();                                \
		}                                               \
	} while (0)

/* What has happened in a run, beside the lines that it has reached: libFuzzer keeps an input for each. */
#define SITUATIONS 256
__attribute__((section("__libfuzzer_extra_counters"), used)) static uint8_t situations[SITUATIONS];

static inline void happens(unsigned what)
{
	situations[what % SITUATIONS] = 1;
}

struct script {
	const uint8_t *at;
	size_t left;
};

static inline uint8_t take(struct script *script)
{
	if (script->left == 0)
		return 0;
	script->left--;
	return *script->at++;
}

/* Up to so many bytes of the input itself. */
static inline size_t take_bytes(struct script *script, const uint8_t **bytes, size_t most)
{
	const size_t size = script->left < most ? script->left : most;

	*bytes = script->at;
	script->at += size;
	script->left -= size;
	return size;
}

/* The descriptors below 64 that are open. */
static inline int open_descriptors(void)
{
	int count = 0;

	for (int fd = 0; fd < 64; fd++)
		count += fcntl(fd, F_GETFD) >= 0;
	return count;
}

/* A secret is the process's from here on, or none is. */
static inline void use_secret(bool wanted)
{
	static const char text[] = "the secret of a fuzzer";
	static char file[32];
	char line[BNET_SECRET_LINE];

	if (!file[0]) {
		const int fd = memfd_create("secret", MFD_CLOEXEC);

		EXPECT(fd >= 0 && fchmod(fd, 0600) == 0 && write(fd, text, sizeof(text)) == sizeof(text));
		snprintf(file, sizeof(file), "/proc/self/fd/%d", fd);
	}
	if (bnet_secret_load(wanted ? file : "", line, sizeof(line)) < 0)
		fprintf(stderr, "%s\n", line);
	EXPECT(bnet_secret_is_set() == wanted);
}

#endif
