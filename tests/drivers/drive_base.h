/* SPDX-License-Identifier: MIT
 *
 * Helpers of the driver programs: opening a network's table, a logger that remembers, failing with a reason, and data
 * that identifies its place. Any thread may call them.
 */
#ifndef BNET_DRIVE_BASE_H
#define BNET_DRIVE_BASE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "common/client.h"

/* ---- opening a table ---- */

#define DRIVE_MAX_PATCHES 4

/* By default the exported symbol ncclNetPlugin_v<api>. NCCL's own transport exports nothing: its table is found by
 * its offset in the file, and functions of it that need a GPU are patched to return 0. */
struct drive_source {
	const char *path;
	int api;
	uint64_t table_offset; /* 0: by symbol */
	uint64_t patch[DRIVE_MAX_PATCHES];
	int npatches;
};

/* Returns the table, or ends the program. *library receives the dlopen handle. */
const void *drive_open(const struct drive_source *source, void **library);

/* ---- failing ---- */

/* Prints the reason to stderr and ends the process with status 1, without running exit handlers. */
__attribute__((noreturn, format(printf, 1, 2))) void drive_fail(const char *fmt, ...);
/* The prefix of every line of this process, such as "rank 1". */
void drive_name(const char *name);
void drive_expect(ncclResult_t result, const char *call, const char *file, int line);

#define drive_ok(call) drive_expect((call), #call, __FILE_NAME__, __LINE__)
#define drive_check(cond, ...)                   \
	do {                                     \
		if (!(cond))                     \
			drive_fail(__VA_ARGS__); \
	} while (0)

/* ---- time ---- */

double drive_now(void); /* seconds, monotonic */

/* ---- the logger handed to init ---- */

void drive_logger(ncclDebugLogLevel level, unsigned long flags, const char *file, int line, const char *fmt, ...)
	__attribute__((format(printf, 5, 6)));
/* Also copies INFO lines to stderr; warnings always go there. */
void drive_log_verbose(bool on);
/* True if a logged line of at least this severity contains both texts. */
bool drive_log_has(ncclDebugLogLevel level, const char *text, const char *also);
int drive_log_count(ncclDebugLogLevel level);
/* Lines of that severity that contain the text. */
int drive_log_count_of(ncclDebugLogLevel level, const char *text);

/* ---- data that identifies its place ---- */

struct drive_stamp {
	uint32_t sender;
	uint32_t connection;
	uint64_t message;
};

/* Each 16-byte word is a hash of the stamp and of its offset. */
void drive_fill(void *buffer, size_t size, const struct drive_stamp *stamp);
/* Offset of the first byte that is not what drive_fill writes there, or -1. */
ssize_t drive_mismatch(const void *buffer, size_t size, const struct drive_stamp *stamp);
/* The same for a buffer that is filled with one value. */
ssize_t drive_untouched(const void *buffer, size_t size, unsigned char value);

/* A pseudo-random generator: equal seeds give equal numbers on both sides of a connection. */
uint64_t drive_random(uint64_t *state);
uint64_t drive_mix(uint64_t value);

#endif
