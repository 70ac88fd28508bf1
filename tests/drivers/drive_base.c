/* SPDX-License-Identifier: MIT
 *
 * Helpers of the driver programs. The log is the only state, guarded by a mutex.
 */
#include "drive_base.h"

#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

/* ---- failing ---- */

static char process_name[64] = "driver";

void drive_name(const char *name)
{
	snprintf(process_name, sizeof(process_name), "%s", name);
}

void drive_fail(const char *fmt, ...)
{
	char text[1024];
	va_list args;

	va_start(args, fmt);
	vsnprintf(text, sizeof(text), fmt, args);
	va_end(args);
	fprintf(stderr, "%s: FAILED: %s\n", process_name, text);
	fflush(stderr);
	_exit(1);
}

void drive_expect(ncclResult_t result, const char *call, const char *file, int line)
{
	if (result != ncclSuccess)
		drive_fail("%s:%d: %s returned %d", file, line, call, (int)result);
}

double drive_now(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* ---- opening a table ---- */

/* Makes the function at address return 0: xor eax, eax; ret. */
static void patch_return_zero(unsigned char *address)
{
#if defined(__x86_64__)
	static const unsigned char code[] = {0x31, 0xc0, 0xc3};
	uintptr_t page = (uintptr_t)address & ~(uintptr_t)4095;

	if (mprotect((void *)page, 8192, PROT_READ | PROT_WRITE | PROT_EXEC) != 0)
		drive_fail("mprotect: %m");
	memcpy(address, code, sizeof(code));
#else
	drive_fail("no code to patch %p with on this architecture", (void *)address);
#endif
}

const void *drive_open(const struct drive_source *source, void **library)
{
	struct link_map *map = NULL;
	char symbol[32];
	void *handle = dlopen(source->path, RTLD_NOW | RTLD_LOCAL);
	const void *table;

	if (!handle)
		drive_fail("dlopen: %s", dlerror());
	*library = handle;
	if (source->table_offset) {
		if (dlinfo(handle, RTLD_DI_LINKMAP, &map) != 0)
			drive_fail("dlinfo: %s", dlerror());
		for (int i = 0; i < source->npatches; i++)
			patch_return_zero((unsigned char *)map->l_addr + source->patch[i]);
		return (const unsigned char *)map->l_addr + source->table_offset;
	}
	snprintf(symbol, sizeof(symbol), "ncclNetPlugin_v%d", source->api);
	table = dlsym(handle, symbol);
	if (!table)
		drive_fail("%s has no %s", source->path, symbol);
	return table;
}

/* ---- the logger ---- */

#define LOG_LINES 512
#define LOG_LINE_BYTES 512

static struct {
	pthread_mutex_t lock;
	bool verbose;
	int count;
	struct {
		ncclDebugLogLevel level;
		char text[LOG_LINE_BYTES];
	} lines[LOG_LINES];
} journal = {.lock = PTHREAD_MUTEX_INITIALIZER};

void drive_logger(ncclDebugLogLevel level, unsigned long flags, const char *file, int line, const char *fmt, ...)
{
	char text[LOG_LINE_BYTES];
	va_list args;

	(void)flags;
	va_start(args, fmt);
	vsnprintf(text, sizeof(text), fmt, args);
	va_end(args);
	pthread_mutex_lock(&journal.lock);
	journal.lines[journal.count % LOG_LINES].level = level;
	memcpy(journal.lines[journal.count % LOG_LINES].text, text, sizeof(text));
	journal.count++;
	if (level == NCCL_LOG_WARN || journal.verbose)
		fprintf(stderr, "%s: %s %s:%d %s\n", process_name,
			level == NCCL_LOG_WARN   ? "WARN"
			: level == NCCL_LOG_INFO ? "INFO"
						 : "TRACE",
			file ? file : "?", line, text);
	pthread_mutex_unlock(&journal.lock);
}

void drive_log_verbose(bool on)
{
	journal.verbose = on;
}

static int stored_lines(void)
{
	return journal.count < LOG_LINES ? journal.count : LOG_LINES;
}

bool drive_log_has(ncclDebugLogLevel level, const char *text, const char *also)
{
	bool found = false;

	pthread_mutex_lock(&journal.lock);
	for (int i = 0; i < stored_lines() && !found; i++)
		found = journal.lines[i].level <= level && strstr(journal.lines[i].text, text) &&
			strstr(journal.lines[i].text, also);
	pthread_mutex_unlock(&journal.lock);
	return found;
}

int drive_log_count_of(ncclDebugLogLevel level, const char *text)
{
	int count = 0;

	pthread_mutex_lock(&journal.lock);
	for (int i = 0; i < stored_lines(); i++)
		count += journal.lines[i].level == level && strstr(journal.lines[i].text, text);
	pthread_mutex_unlock(&journal.lock);
	return count;
}

int drive_log_count(ncclDebugLogLevel level)
{
	return drive_log_count_of(level, "");
}

/* ---- data ---- */

/* The finalizer of SplitMix64 (Steele, Lea, Flood 2014). */
uint64_t drive_mix(uint64_t value)
{
	value += UINT64_C(0x9e3779b97f4a7c15);
	value = (value ^ (value >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
	value = (value ^ (value >> 27)) * UINT64_C(0x94d049bb133111eb);
	return value ^ (value >> 31);
}

uint64_t drive_random(uint64_t *state)
{
	*state += UINT64_C(0x9e3779b97f4a7c15);
	return drive_mix(*state);
}

static uint64_t stamp_key(const struct drive_stamp *stamp)
{
	return drive_mix(drive_mix((uint64_t)stamp->sender << 32 | stamp->connection) ^ stamp->message);
}

/* The eight bytes at offset 8 * index. */
static uint64_t stamped_word(uint64_t key, uint64_t index)
{
	return drive_mix(key ^ index * UINT64_C(0xd1342543de82ef95));
}

void drive_fill(void *buffer, size_t size, const struct drive_stamp *stamp)
{
	unsigned char *bytes = buffer;
	uint64_t key = stamp_key(stamp), word;

	for (size_t at = 0; at < size; at += sizeof(word)) {
		word = stamped_word(key, at / sizeof(word));
		memcpy(bytes + at, &word, size - at < sizeof(word) ? size - at : sizeof(word));
	}
}

ssize_t drive_mismatch(const void *buffer, size_t size, const struct drive_stamp *stamp)
{
	const unsigned char *bytes = buffer;
	uint64_t key = stamp_key(stamp), word;
	size_t length;

	for (size_t at = 0; at < size; at += sizeof(word)) {
		word = stamped_word(key, at / sizeof(word));
		length = size - at < sizeof(word) ? size - at : sizeof(word);
		if (memcmp(bytes + at, &word, length) != 0)
			return (ssize_t)at;
	}
	return -1;
}

ssize_t drive_untouched(const void *buffer, size_t size, unsigned char value)
{
	const unsigned char *bytes = buffer;

	for (size_t at = 0; at < size; at++)
		if (bytes[at] != value)
			return (ssize_t)at;
	return -1;
}
