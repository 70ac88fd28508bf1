/* SPDX-License-Identifier: MIT
 *
 * The log: the lines that reach NCCL's logger, their form, and the absence of side effects.
 */
#include "check.h"
#include "base/log.h"
#include "engine/engine.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <sched.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

static struct {
	ncclDebugLogLevel level;
	unsigned long subsys;
	const char *file;
	int line;
	char text[4096];
} last;
static atomic_int calls;

static void keep(ncclDebugLogLevel level, unsigned long subsys, const char *file, int line, const char *fmt, ...)
{
	va_list args;

	last.level = level;
	last.subsys = subsys;
	last.file = file;
	last.line = line;
	va_start(args, fmt);
	vsnprintf(last.text, sizeof(last.text), fmt, args);
	va_end(args);
	errno = ENOTTY;
	atomic_fetch_add(&calls, 1);
}

static void count(ncclDebugLogLevel level, unsigned long subsys, const char *file, int line, const char *fmt, ...)
{
	(void)level, (void)subsys, (void)file, (void)line, (void)fmt;
	atomic_fetch_add(&calls, 1);
}

static atomic_bool is_held, is_asked;

static void *say_late(void *unused)
{
	bnet_log_hold();
	bnet_log_owe();
	bnet_warn("the reason");
	bnet_log_owe_no_more();
	atomic_store(&is_held, true);
	while (!atomic_load(&is_asked))
		sched_yield();
	for (int i = 0; i < 10; i++)
		sched_yield();
	bnet_log_pass_on(bnet_log_release());
	return unused;
}

/* What a thread has that holds the lock when another one learns of a failure. */
static void test_a_reason_is_out_before_its_failure_is_told(void)
{
	pthread_t thread;

	bnet_log_set(count);
	atomic_store(&calls, 0);
	check_int(pthread_create(&thread, NULL, say_late, NULL), 0);
	while (!atomic_load(&is_held))
		sched_yield();
	check_int(atomic_load(&calls), 0);
	atomic_store(&is_asked, true);
	bnet_log_settle();
	check_int(atomic_load(&calls), 1);
	pthread_join(thread, NULL);
	bnet_log_settle(); /* nothing is left */
}

static void test_silent_without_logger(void)
{
	bnet_log_set(NULL);
	bnet_warn("into the void: %d", 1);
	check_int(atomic_load(&calls), 0);
}

static void test_levels(void)
{
	bnet_log_set(keep);
	bnet_warn("warn %d", 1);
	check_int(last.level, NCCL_LOG_WARN);
	check_str(last.text, "warn 1");
	check_str(strrchr(last.file, '/') ? strrchr(last.file, '/') + 1 : last.file, "test_log.c");
	check_int(last.line, __LINE__ - 4);
	bnet_info(NCCL_INIT | NCCL_NET, "info");
	check_int(last.level, NCCL_LOG_INFO);
	check_int(last.subsys, NCCL_INIT | NCCL_NET);
	bnet_trace("trace");
	check_int(last.level, NCCL_LOG_TRACE);
	check_int(last.subsys, NCCL_NET);
}

/* The text is an argument of NCCL's logger, never its format. */
static void test_percent_signs(void)
{
	bnet_log_set(keep);
	bnet_warn("%s", "fe80::1%eth0 %s %n");
	check_str(last.text, "fe80::1%eth0 %s %n");
}

static void test_one_line(void)
{
	bnet_log_set(keep);
	bnet_warn("peer said \"%s\"", "a\nNCCL WARN forged\r\x1b[2J\x7f…");
	check_str(last.text, "peer said \"a NCCL WARN forged  [2J …\"");
}

static void test_long_text_is_cut(void)
{
	char text[3000];

	memset(text, 'x', sizeof(text) - 1);
	text[sizeof(text) - 1] = '\0';
	bnet_log_set(keep);
	bnet_warn("%s", text);
	check_int(strlen(last.text), 1023);
	check_str(last.text + 1019, "x...");
}

static void test_errno_stays(void)
{
	bnet_log_set(keep);
	errno = ECONNRESET;
	bnet_warn("anything");
	check_int(errno, ECONNRESET);
}

static void *log_much(void *unused)
{
	for (int i = 0; i < 1000; i++)
		bnet_info(NCCL_NET, "line %d", i);
	return unused;
}

/* The logger is replaced while other threads log: no call is lost or corrupted. */
static void test_threads(void)
{
	pthread_t threads[4];

	atomic_store(&calls, 0);
	bnet_log_set(count);
	for (size_t i = 0; i < 4; i++)
		check_int(pthread_create(&threads[i], NULL, log_much, NULL), 0);
	for (int i = 0; i < 1000; i++)
		bnet_log_set(count);
	for (size_t i = 0; i < 4; i++)
		check_int(pthread_join(threads[i], NULL), 0);
	check_int(atomic_load(&calls), 4000);
}

/* Those of other threads do not wait. */
static void test_held(void)
{
	pthread_t thread;

	atomic_store(&calls, 0);
	bnet_log_set(count);
	bnet_log_hold();
	bnet_warn("first");
	check_int(pthread_create(&thread, NULL, log_much, NULL), 0);
	check_int(pthread_join(thread, NULL), 0);
	check_int(atomic_load(&calls), 1000);
	bnet_log_set(keep);
	bnet_warn("second %d", 2);
	check_int(atomic_load(&calls), 1000);
	bnet_log_pass_on(bnet_log_release());
	check_int(atomic_load(&calls), 1002);
	check_str(last.text, "second 2");
	check_int(last.line, __LINE__ - 5);
	bnet_warn("third");
	check_int(atomic_load(&calls), 1003);
}

static atomic_bool is_locked;

static void *warn_under_the_lock(void *unused)
{
	bnet_engine_lock();
	atomic_store(&is_locked, true);
	bnet_warn_visibly("a person should see this");
	bnet_engine_unlock();
	return unused;
}

static void fill(int fd)
{
	const char dots[PIPE_BUF] = {0};

	check_int(fcntl(fd, F_SETFL, O_NONBLOCK), 0);
	while (write(fd, dots, sizeof(dots)) > 0)
		;
	check_int(fcntl(fd, F_SETFL, 0), 0);
}

/* Up to the end of a line. */
static const char *read_line(int fd)
{
	static char line[100];
	size_t size = 0;
	char byte;

	do {
		check_int(read(fd, &byte, 1), 1);
		if (byte && size < sizeof(line) - 1)
			line[size++] = byte;
	} while (byte != '\n');
	line[size] = '\0';
	return line;
}

static void test_nobody_waits_for_a_full_stderr(void)
{
	int ends[2], stderr_before = dup(STDERR_FILENO);
	pthread_t thread;

	check(stderr_before >= 0);
	check_int(unsetenv("NCCL_DEBUG"), 0);
	bnet_log_set(NULL);
	check_int(pipe(ends), 0);
	fill(ends[1]);
	check_int(dup2(ends[1], STDERR_FILENO), STDERR_FILENO);
	check_int(pthread_create(&thread, NULL, warn_under_the_lock, NULL), 0);
	while (!atomic_load(&is_locked))
		sched_yield();
	bnet_engine_lock();
	bnet_engine_unlock();
	check_str(read_line(ends[0]), "a person should see this\n");
	check_int(pthread_join(thread, NULL), 0);
	check_int(dup2(stderr_before, STDERR_FILENO), STDERR_FILENO);
	close(stderr_before);
	close(ends[0]);
	close(ends[1]);
}

int main(void)
{
	alarm(60);
	test_silent_without_logger();
	test_a_reason_is_out_before_its_failure_is_told();
	test_levels();
	test_percent_signs();
	test_one_line();
	test_long_text_is_cut();
	test_errno_stays();
	test_threads();
	test_held();
	test_nobody_waits_for_a_full_stderr();
	return 0;
}
