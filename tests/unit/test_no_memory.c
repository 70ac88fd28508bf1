/* SPDX-License-Identifier: MIT
 *
 * A job for which an allocation fails: the first, the second, and so on, alone or with all that follow it. A call
 * succeeds or fails; what succeeds has moved the right bytes, what fails can be closed. When there is memory again, the
 * same process does the whole job. What counts as an allocation: the plugin's, libcrypto's, threads, mappings,
 * descriptors and files.
 *
 *   test_no_memory                                 # some of them; at night others each time
 *   test_no_memory all                             # each of them: some minutes
 *   test_no_memory plain|encrypted FIRST [LAST]    # these, and the warnings
 */
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bagua_net.h"
#include "base/secret.h"
#include "base/socket.h"
#include "common/clock.h"
#include "engine/engine.h"
#include "oneself.h"
#include "transport/conn.h"

#define DEADLINE_S 60 /* of one job */
#define SKIPPED 77
#define SMALL 100
#define LARGE 300000
/* Allocations that are tried, of those of a job; each fails alone, and with all that follow. */
#define TRIES 8
#define NIGHTLY 50

/* ---- the allocations ---- */

static _Atomic long count;       /* since the job began */
static _Atomic long fails_first; /* 0: none fails */
static _Atomic long fails_last;

static bool fails(void)
{
	const long number = atomic_fetch_add(&count, 1) + 1, first = atomic_load(&fails_first);

	if (!first || number < first || number > atomic_load(&fails_last))
		return false;
	errno = ENOMEM;
	return true;
}

/* The linker has the library call these (CMakeLists.txt). */
#define WRAP(type, name, failed, parameters, arguments)              \
	type __real_##name parameters;                               \
	type __wrap_##name parameters;                               \
	type __wrap_##name parameters                                \
	{                                                            \
		return fails() ? (failed) : __real_##name arguments; \
	}
WRAP(void *, malloc, NULL, (size_t size), (size))
WRAP(void *, calloc, NULL, (size_t number, size_t size), (number, size))
WRAP(void *, mmap, MAP_FAILED, (void *at, size_t size, int protection, int flags, int fd, off_t offset),
     (at, size, protection, flags, fd, offset))
WRAP(FILE *, fopen, NULL, (const char *path, const char *mode), (path, mode))
WRAP(DIR *, opendir, NULL, (const char *path), (path))
WRAP(int, getifaddrs, -1, (struct ifaddrs * *list), (list))
WRAP(int, pthread_create, ENOMEM,
     (pthread_t * thread, const pthread_attr_t *attributes, void *(*body)(void *), void *arg),
     (thread, attributes, body, arg))
WRAP(int, socket, -1, (int family, int type, int protocol), (family, type, protocol))
WRAP(int, epoll_create1, -1, (int flags), (flags))
WRAP(int, eventfd, -1, (unsigned value, int flags), (value, flags))

/* A fruitless one is none. */
int __real_accept4(int fd, struct sockaddr *from, socklen_t *size, int flags);
int __wrap_accept4(int fd, struct sockaddr *from, socklen_t *size, int flags);
int __wrap_accept4(int fd, struct sockaddr *from, socklen_t *size, int flags)
{
	struct pollfd waits = {.fd = fd, .events = POLLIN};

	return poll(&waits, 1, 0) > 0 && fails() ? -1 : __real_accept4(fd, from, size, flags);
}

int __real_epoll_ctl(int epoll, int op, int fd, struct epoll_event *event);
int __wrap_epoll_ctl(int epoll, int op, int fd, struct epoll_event *event);
int __wrap_epoll_ctl(int epoll, int op, int fd, struct epoll_event *event)
{
	return op == EPOLL_CTL_ADD && fails() ? -1 : __real_epoll_ctl(epoll, op, fd, event);
}

int __real_open(const char *path, int flags, ...);
int __wrap_open(const char *path, int flags, ...);
int __wrap_open(const char *path, int flags, ...)
{
	mode_t mode;
	va_list args;

	va_start(args, flags);
	mode = flags & O_CREAT ? va_arg(args, mode_t) : 0;
	va_end(args);
	return fails() ? -1 : __real_open(path, flags, mode);
}

static void *crypto_malloc(size_t size, const char *file, int line)
{
	(void)file;
	(void)line;
	return fails() ? NULL : __real_malloc(size);
}

static void *crypto_realloc(void *at, size_t size, const char *file, int line)
{
	(void)file;
	(void)line;
	return fails() ? NULL : realloc(at, size);
}

static void crypto_free(void *at, const char *file, int line)
{
	(void)file;
	(void)line;
	free(at);
}

/* libcrypto 3.0 does not survive a first use without memory: that is behind it here. */
static void take_over_libcrypto(void *library, const char *file)
{
	char why[512];
	int (*set)(void *(*)(size_t, const char *, int), void *(*)(void *, size_t, const char *, int),
		   void (*)(void *, const char *, int));

	*(void **)&set = dlsym(library, "CRYPTO_set_mem_functions");
	check(set != NULL && set(crypto_malloc, crypto_realloc, crypto_free) == 1);
	check_int(bnet_secret_check(file, why, sizeof(why)), 0);
}

/* ---- a job ---- */

static struct bnet_client client;
static _Atomic int warnings;
static char from[LARGE], into[LARGE];

/* Both ends, or at least one call has failed. */
static bool join(void *listen, char *handle, struct oneself *ends)
{
	while (!ends->send || !ends->recv) {
		if (!ends->send && bnet_client_connect(&client, 0, handle, &ends->send) != ncclSuccess)
			return false;
		if (!ends->recv && bnet_client_accept(&client, listen, &ends->recv) != ncclSuccess)
			return false;
		sched_yield();
	}
	return true;
}

static bool finish(void *request)
{
	int done = 0;

	while (!done) {
		if (bnet_client_test(&client, request, &done, NULL) != ncclSuccess)
			return false;
		sched_yield();
	}
	return true;
}

/* A request that is not made yet is tried again, as NCCL does. */
static bool pass(struct oneself ends, size_t size)
{
	void *send = NULL, *receive = NULL;
	bool passed;

	memset(into, 0, size);
	memset(from, (int)(size % 251), size);
	while (!receive)
		if (bnet_client_irecv(&client, ends.recv, into, size, 0, NULL, &receive) != ncclSuccess)
			return false;
	while (!send)
		if (bnet_client_isend(&client, ends.send, from, size, 0, NULL, &send) != ncclSuccess)
			return false;
	passed = finish(send);
	if (!finish(receive))
		return false;
	check(memcmp(from, into, size) == 0);
	return passed;
}

static void reset_a_stream(void *comm)
{
	struct bnet_conn *conn = comm;

	bnet_engine_lock();
	if (conn->nstreams)
		bnet_socket_reset(conn->streams[0]->fd);
	bnet_engine_unlock();
}

static bool use(struct oneself ends, bool resets)
{
	if (!pass(ends, SMALL) || !pass(ends, LARGE))
		return false;
	if (resets)
		reset_a_stream(ends.send);
	return pass(ends, LARGE) && pass(ends, SMALL);
}

static bool connect_and_use(bool resets)
{
	char handle[NCCL_NET_HANDLE_MAXSIZE] = {0};
	struct oneself ends = {NULL, NULL};
	void *listen = NULL;
	int devices;
	bool works;

	if (bnet_client_devices(&client, &devices) != ncclSuccess ||
	    bnet_client_listen(&client, 0, handle, &listen) != ncclSuccess)
		return false;
	works = join(listen, handle, &ends) && use(ends, resets);
	if (ends.send)
		check_int(bnet_client_close_send(&client, ends.send), ncclSuccess);
	if (ends.recv)
		check_int(bnet_client_close_recv(&client, ends.recv), ncclSuccess);
	check_int(bnet_client_close_listen(&client, listen), ncclSuccess);
	return works;
}

__attribute__((format(printf, 5, 6))) static void count_warnings(ncclDebugLogLevel level, unsigned long flags,
								 const char *file, int line, const char *fmt, ...)
{
	(void)flags;
	(void)file;
	(void)line;
	(void)fmt;
	atomic_fetch_add(&warnings, level == NCCL_LOG_WARN);
}

static bool job(ncclDebugLogger_t log, bool resets)
{
	bool works;

	if (bnet_client_init(&client, bnet_net_table(12), 12, log) != ncclSuccess)
		return false;
	works = connect_and_use(resets);
	check_int(bnet_client_finalize(&client), ncclSuccess);
	return works;
}

/* ---- one process for each failure ---- */

/* What a child tells. */
static struct seen {
	long allocations; /* in the first job */
	int descriptors;  /* behind the last one */
	bool worked;      /* the first one */
} * seen;

static int descriptors(void)
{
	DIR *directory = opendir("/proc/self/fd");
	int number = 0;

	check(directory != NULL);
	while (readdir(directory))
		number++;
	closedir(directory);
	return number;
}

static void child(long first, long last, ncclDebugLogger_t log)
{
	alarm(2 * DEADLINE_S);
	atomic_store(&count, 0);
	atomic_store(&fails_last, last);
	atomic_store(&fails_first, first);
	seen->worked = job(log, true);
	atomic_store(&fails_first, 0);
	seen->allocations = atomic_load(&count);
	check(seen->worked || log == print_warnings || atomic_load(&warnings));
	check(job(print_warnings, false));
	while (control_runs())
		usleep(1000);
	seen->descriptors = descriptors();
}

/* false: it crashed, hung, or did what it must not; it has said so. */
static bool survives(long first, long last)
{
	pid_t pid;
	int status;

	fflush(stdout);
	pid = fork();
	check(pid >= 0);
	if (pid == 0) {
		child(first, last, count_warnings);
		exit(0);
	}
	check_int(waitpid(pid, &status, 0), pid);
	if (status != 0)
		fprintf(stderr, "allocations %ld to %ld fail: status %#x\n", first, last, (unsigned)status);
	return status == 0;
}

static bool leaves_nothing(long first, long last, int expected)
{
	if (!survives(first, last))
		return false;
	if (seen->descriptors != expected)
		fprintf(stderr, "allocations %ld to %ld fail: %d descriptors behind it, and %d without a failure\n",
			first, last, seen->descriptors, expected);
	return seen->descriptors == expected;
}

/* The gate's are the same ones always. A night begins anywhere: over nights each allocation has its turn. */
static long first_to_fail(long allocations)
{
	return 1 + (is_nightly() ? (long)(bnet_random() % (uint64_t)allocations) : 0);
}

/* As many as that, evenly over the job. */
static void some_allocations(long tries)
{
	long allocations, begin, failed_jobs = 0, wrong = 0;
	int expected;

	unsetenv("BAGUA_NET_KEEPALIVE");
	check(survives(0, 0));
	check(seen->worked);
	setenv("BAGUA_NET_KEEPALIVE", "1", 1); /* what a repair may take that finds no memory */
	allocations = seen->allocations;
	expected = seen->descriptors;
	tries = tries < allocations ? tries : allocations;
	begin = first_to_fail(allocations);
	printf("%ld of %ld allocations, from %ld on: ", tries, allocations, begin);
	for (long i = 0; i < tries; i++)
		for (int rest = 0; rest < 2; rest++) {
			const long number = 1 + (begin - 1 + i * allocations / tries) % allocations;

			wrong += !leaves_nothing(number, rest ? LONG_MAX : number, expected);
			failed_jobs += !seen->worked;
		}
	printf("%ld jobs failed\n", failed_jobs);
	check(failed_jobs > 0);
	check_int(wrong, 0);
}

static void encrypt(const char *file)
{
	setenv("BAGUA_NET_SECRET_FILE", file, 1);
	setenv("BAGUA_NET_ENCRYPT", "1", 1);
}

/* Of one job, by hand. */
static void look(long first, long last)
{
	child(first, last, print_warnings);
	printf("%s, %ld allocations, %d descriptors\n", seen->worked ? "passed" : "failed", seen->allocations,
	       seen->descriptors);
}

static char secret[] = "/tmp/bnet-no-memory-XXXXXX";
static pid_t parent;

static void remove_secret(void)
{
	if (getpid() == parent)
		unlink(secret);
}

int main(int argc, char **argv)
{
	const long tries = argc > 1 ? LONG_MAX : is_nightly() ? NIGHTLY : TRIES;
	int fd = mkstemp(secret);
	void *library;

	check(fd >= 0);
	parent = getpid();
	atexit(remove_secret);
	check_int(write(fd, "0123456789abcdef0123456789abcdef", 32), 32);
	close(fd);
	seen = __real_mmap(NULL, sizeof(*seen), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	check(seen != MAP_FAILED);
	setenv("NCCL_SOCKET_IFNAME", "lo", 1);
	setenv("BAGUA_NET_NSTREAMS", "3", 1);
	library = dlopen("libcrypto.so.3", RTLD_NOW | RTLD_LOCAL);
	if (!library) {
		fprintf(stderr, "skipped: %s\n", dlerror());
		return SKIPPED;
	}
	take_over_libcrypto(library, secret);
	if (argc > 1 && argv[1][0] == 'e')
		encrypt(secret);
	if (argc > 2) {
		look(atol(argv[2]), argc > 3 ? atol(argv[3]) : atol(argv[2]));
	} else {
		some_allocations(tries);
		encrypt(secret);
		some_allocations(tries);
	}
	return 0;
}
