/* SPDX-License-Identifier: MIT
 *
 * Scenarios about processes: a peer that dies, a host process that forks, its signals and its standard output.
 */
#include "drive_contract.h"
#include "../sanitize.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define MIB ((size_t)1 << 20)

/* ---- a peer that dies ---- */

static void killed_while_receiving(struct contract *c)
{
	struct region region;
	void *request;

	contract_load(c);
	region = contract_map(c, contract_accept_from_peer(c), MIB);
	request = contract_irecv(c, &region, 0, MIB);
	contract_kill_peer(c);
	contract_wait_error(c, request);
	while (!drive_log_has(NCCL_LOG_WARN, "broke", "127.0.0.1")) /* another thread may write it */
		contract_nap();
	contract_unmap(c, &region);
	drive_ok(bnet_client_close_recv(&c->client, region.comm));
	contract_finalize(c);
}

static void connect_and_wait(struct contract *c)
{
	contract_load(c);
	contract_connect_to_peer(c);
	contract_await(c, 'x'); /* until it is killed */
}

static void killed_while_sending(struct contract *c)
{
	struct region region;
	void *requests[8];

	contract_load(c);
	region = contract_map(c, contract_connect_to_peer(c), 64 * MIB);
	for (size_t i = 0; i < 8; i++)
		requests[i] = contract_isend(c, &region, i * 8 * MIB, 8 * MIB);
	contract_kill_peer(c);
	contract_wait_error(c, requests[7]);
	contract_unmap(c, &region);
	drive_ok(bnet_client_close_send(&c->client, region.comm));
	contract_finalize(c);
}

static void accept_and_wait(struct contract *c)
{
	contract_load(c);
	contract_accept_from_peer(c);
	contract_await(c, 'x'); /* until it is killed */
}

/* A caller in the midst of posting gets requests, as many as NCCL has outstanding, and each of them fails. A caller
 * that never tests gets the error in the end. */
static void post_on_broken(struct contract *c, const struct region *region, bool sends)
{
	ncclResult_t result;
	void *request;

	for (int posted = 0;; posted++) {
		request = NULL;
		result = sends ? bnet_client_isend(&c->client, region->comm, region->data, 1000, 0, region->mhandle,
						   &request)
			       : bnet_client_irecv(&c->client, region->comm, region->data, 1000, 0, region->mhandle,
						   &request);
		drive_check(result == ncclSuccess || posted >= 32, "only %d requests were taken", posted);
		if (result != ncclSuccess)
			return;
		drive_check(request, "asked to be called again, for ever");
		contract_wait_error(c, request);
	}
}

static void posts_on_broken(struct contract *c)
{
	struct region from, to;

	contract_load(c);
	to = contract_map(c, contract_accept_from_peer(c), 4096);
	from = contract_map(c, contract_connect_to_peer(c), 64 * MIB);
	contract_kill_peer(c);
	contract_wait_error(c, contract_irecv(c, &to, 0, 1000));
	contract_wait_error(c, contract_isend(c, &from, 0, from.size));
	post_on_broken(c, &to, false);
	post_on_broken(c, &from, true);
	contract_unmap(c, &to);
	contract_unmap(c, &from);
	drive_ok(bnet_client_close_recv(&c->client, to.comm));
	drive_ok(bnet_client_close_send(&c->client, from.comm));
	contract_finalize(c);
}

static void posts_on_broken_peer(struct contract *c)
{
	contract_load(c);
	contract_connect_to_peer(c);
	contract_accept_from_peer(c);
	contract_await(c, 'x'); /* until it is killed */
}

/* The peer closes in order while this side expects one more message. The messages that it sent still arrive, and since
 * nothing is lost there is no warning. */
static void closed_too_early(struct contract *c)
{
	struct region region;
	void *comm;

	contract_load(c);
	comm = contract_accept_from_peer(c);
	contract_join_peer(c);
	contract_recv_stamped(c, comm, 5000, 0);
	region = contract_map(c, comm, 4096);
	drive_check(contract_wait_error(c, contract_irecv(c, &region, 0, 4096)) == ncclRemoteError, "another error");
	while (!drive_log_has(NCCL_LOG_INFO, "has closed its connection", "127.0.0.1"))
		contract_nap();
	drive_check(drive_log_count(NCCL_LOG_WARN) == 0, "there is a warning");
	contract_unmap(c, &region);
	drive_ok(bnet_client_close_recv(&c->client, comm));
	contract_finalize(c);
}

static void closed_too_early_peer(struct contract *c)
{
	void *comm;

	contract_load(c);
	comm = contract_connect_to_peer(c);
	contract_send_stamped(c, comm, 5000, 0);
	drive_ok(bnet_client_close_send(&c->client, comm));
	contract_finalize(c);
}

/* ---- the threads of this process ---- */

#define MAX_TASKS 64

static int list_tasks(long tasks[MAX_TASKS])
{
	DIR *directory = opendir("/proc/self/task");
	int count = 0;

	drive_check(directory, "/proc/self/task: %m");
	for (struct dirent *entry = readdir(directory); entry && count < MAX_TASKS; entry = readdir(directory))
		if (atol(entry->d_name) > 0)
			tasks[count++] = atol(entry->d_name);
	closedir(directory);
	return count;
}

/* The text behind a field's name in the thread's status file; "" for a thread that has ended. */
static void task_status(long task, const char *field, char value[256])
{
	size_t length = strlen(field);
	char path[64], line[256];
	FILE *file;

	value[0] = '\0';
	snprintf(path, sizeof(path), "/proc/self/task/%ld/status", task);
	file = fopen(path, "re");
	drive_check(file || errno == ENOENT, "%s: %m", path);
	while (file && fgets(line, sizeof(line), file))
		if (strncmp(line, field, length) == 0)
			strcpy(value, line + length);
	if (file)
		fclose(file);
}

/* ---- a host process that forks ---- */

#if defined(SANITIZE_ADDRESS)
static bool forked;

/* Called by the leak checker, which takes every lock of the allocator. It is turned off in the child. */
int __lsan_is_turned_off(void);
int __lsan_is_turned_off(void)
{
	return forked;
}

static bool others_sleep(void)
{
	long tasks[MAX_TASKS];
	int count = list_tasks(tasks);
	char state[256];

	for (int i = 0; i < count; i++) {
		task_status(tasks[i], "State:", state);
		if (tasks[i] != gettid() && state[0] && !strchr(state, 'S'))
			return false;
	}
	return true;
}

/* The allocator of AddressSanitizer (gcc 12, clang 14) has locks that fork() does not wait for. If a starting thread
 * holds one, the child's next allocation waits for ever. Sleeping threads have started, and rarely allocate later.
 * glibc's allocator has no such locks, so the plain build forks at any moment. */
static pid_t fork_host(void)
{
	pid_t child;

	while (!others_sleep())
		sched_yield();
	child = fork();
	forked = child == 0;
	return child;
}
#else
static pid_t fork_host(void)
{
	return fork();
}
#endif

static uint64_t open_descriptors(void) /* of the first 64 */
{
	uint64_t open = 0;

	for (int fd = 0; fd < 64; fd++)
		if (fcntl(fd, F_GETFD) >= 0)
			open |= UINT64_C(1) << fd;
	return open;
}

/* Outlives its parent, as a data loader's worker may, and reports whether it inherited any descriptor. */
static void live_on(struct contract *c, uint64_t before)
{
	char byte;

	contract_tell(c, open_descriptors() == before ? 'c' : 'i');
	if (read(c->life[0], &byte, 1) < 0)
		_exit(1);
	_exit(0);
}

/* The peer forks with a connection open. When the peer dies, this side learns of it although the child lives. */
static void fork_lives_on(struct contract *c)
{
	struct region region;
	void *comm, *request;

	contract_load(c);
	comm = contract_accept_from_peer(c);
	contract_await(c, 'c'); /* the child inherited no descriptor of the library */
	contract_recv_stamped(c, comm, 3 * MIB, 1);
	contract_await(c, 's');
	region = contract_map(c, comm, MIB);
	request = contract_irecv(c, &region, 0, MIB);
	contract_kill_peer(c);
	contract_wait_error(c, request);
	contract_unmap(c, &region);
	drive_ok(bnet_client_close_recv(&c->client, comm));
	contract_finalize(c);
	close(c->life[1]); /* the child may end */
}

static void fork_lives_on_peer(struct contract *c)
{
	uint64_t before = open_descriptors();
	void *comm;

	contract_load(c);
	comm = contract_connect_to_peer(c);
	switch (fork_host()) {
	case -1:
		drive_fail("fork: %m");
	case 0:
		live_on(c, before);
	default:
		break;
	}
	contract_send_stamped(c, comm, 3 * MIB, 1);
	contract_tell(c, 's');
	contract_await(c, 'x'); /* until it is killed */
}

/* A child runs to its end while the connection is in use; the connection still works after that. */
static void fork_with_pair(struct contract *c, void (*child_main)(struct contract *c))
{
	struct pair pair;
	pid_t child;
	int status = 0;

	contract_load(c);
	pair = contract_pair(c);
	child = fork_host();
	drive_check(child >= 0, "fork: %m");
	if (child == 0) {
		alarm(30); /* fork does not inherit the alarm */
		child_main(c);
		exit(0);
	}
	contract_exchange(c, pair, 300000);
	drive_check(waitpid(child, &status, 0) == child && status == 0, "the child ended with %#x", (unsigned)status);
	contract_exchange(c, pair, 300000);
	contract_close_pair(c, pair);
	contract_finalize(c);
}

static void do_nothing(struct contract *c)
{
	(void)c;
}

/* The child ends by exit(), which runs the library's handlers. */
static void fork_child_exits(struct contract *c)
{
	fork_with_pair(c, do_nothing);
}

static void use_library(struct contract *c)
{
	struct pair pair = contract_pair(c);

	contract_exchange(c, pair, 100000);
	contract_close_pair(c, pair);
}

/* The child opens its own connections. */
static void fork_child_connects(struct contract *c)
{
	fork_with_pair(c, use_library);
}

/* ---- signals and standard output ---- */

static uint64_t blocked_signals(long task)
{
	char blocked[256];

	task_status(task, "SigBlk:", blocked);
	return strtoull(blocked, NULL, 16);
}

static bool among(const long *tasks, int count, long task)
{
	for (int i = 0; i < count; i++)
		if (tasks[i] == task)
			return true;
	return false;
}

/* A signal handler of the host must not run on the library's threads. */
static void signals_blocked(struct contract *c)
{
	static const int signals[] = {SIGINT, SIGTERM, SIGHUP, SIGCHLD, SIGALRM, SIGPROF, SIGUSR1, SIGUSR2, SIGPIPE};
	long before[MAX_TASKS], now[MAX_TASKS];
	int nbefore = list_tasks(before), nnow, ours = 0;
	struct pair pair;

	contract_load(c);
	pair = contract_pair(c);
	nnow = list_tasks(now);
	for (int i = 0; i < nnow; i++) {
		if (among(before, nbefore, now[i]))
			continue;
		ours++;
		for (size_t s = 0; s < sizeof(signals) / sizeof(signals[0]); s++)
			drive_check(blocked_signals(now[i]) >> (signals[s] - 1) & 1,
				    "a thread of the library takes signal %d", signals[s]);
	}
	drive_check(ours > 0, "the library has no thread to look at");
	contract_close_pair(c, pair);
	contract_finalize(c);
}

/* Standard output belongs to the host, whatever happens: ordinary use, a refused handle, an error. */
static void silent_stdout(struct contract *c)
{
	int saved = dup(1), file = memfd_create("stdout", MFD_CLOEXEC);
	unsigned char handle[NCCL_NET_HANDLE_MAXSIZE] = {0};
	struct pair pair;
	struct stat info;

	if (saved < 0 || file < 0 || dup2(file, 1) < 0)
		drive_fail("cannot put a file in the place of stdout: %m");
	contract_load(c);
	pair = contract_pair(c);
	contract_exchange(c, pair, 300000);
	contract_connect_error(c, handle);
	contract_close_pair(c, pair);
	contract_finalize(c);
	fflush(stdout);
	if (fstat(file, &info) != 0 || dup2(saved, 1) < 0)
		drive_fail("fstat: %m");
	drive_check(info.st_size == 0, "%ld bytes went to stdout", (long)info.st_size);
}

const struct scenario contract_process_scenarios[] = {
	{"killed_while_receiving", killed_while_receiving, connect_and_wait, 0},
	{"killed_while_sending", killed_while_sending, accept_and_wait, 0},
	{"posts_on_broken", posts_on_broken, posts_on_broken_peer, 0},
	{"closed_too_early", closed_too_early, closed_too_early_peer, 0},
	{"fork_lives_on", fork_lives_on, fork_lives_on_peer, 0},
	{"fork_child_exits", fork_child_exits, NULL, 0},
	{"fork_child_connects", fork_child_connects, NULL, 0},
	{"signals_blocked", signals_blocked, NULL, 0},
	{"silent_stdout", silent_stdout, NULL, 0},
	{NULL, NULL, NULL, 0},
};
