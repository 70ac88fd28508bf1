/* SPDX-License-Identifier: MIT
 *
 * What a child of fork() has of its parent's groups: no lock that a thread of the parent held, and no operation.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bagua_net_host.h"
#include "check.h"
#include "coll/log.h"
#include "coll/seen.h"

#define DEADLINE_S 100
#define CHILD_S 10
#define THREADS 4
/* A thread has the lock at nearly every one of them. */
#define FORKS 20

static atomic_bool is_over;

static void *log_on(void *unused)
{
	while (!atomic_load(&is_over))
		bnet_coll_logger(NCCL_LOG_WARN, NCCL_ALL, "file", 1, "%0400d", 0);
	return unused;
}

static void run_child(void (*child)(void))
{
	const pid_t pid = fork();
	int status;

	check(pid >= 0);
	if (pid == 0) {
		alarm(CHILD_S);
		child();
		_exit(0);
	}
	check_int(waitpid(pid, &status, 0), pid);
	check_int(status, 0);
}

static void logs(void)
{
	const unsigned before = bnet_coll_warnings();
	char text[16];

	bnet_coll_logger(NCCL_LOG_WARN, NCCL_ALL, "file", 1, "the reason");
	bnet_coll_last_warning(before, text, sizeof(text));
	check(strcmp(text, "the reason") == 0);
}

static void a_child_logs(void)
{
	pthread_t threads[THREADS];

	for (int i = 0; i < THREADS; i++)
		check_int(pthread_create(&threads[i], NULL, log_on, NULL), 0);
	for (int i = 0; i < FORKS; i++)
		run_child(logs);
	atomic_store(&is_over, true);
	for (int i = 0; i < THREADS; i++)
		check_int(pthread_join(threads[i], NULL), 0);
}

static int barriers_that_run(void)
{
	struct bnet_operation seen;

	check(bnet_coll_seen_read(BNET_COLL_BARRIER, &seen));
	return seen.running;
}

static void runs_nothing(void)
{
	check_int(barriers_that_run(), 0);
	check_int(bnet_coll_seen_begin(BNET_COLL_BARRIER), 0);
	check_int(barriers_that_run(), 1);
}

static void a_child_has_no_operations(void)
{
	const int number = bnet_coll_seen_begin(BNET_COLL_BARRIER);

	run_child(runs_nothing);
	check_int(barriers_that_run(), 1);
	bnet_coll_seen_end(number, BNET_COLL_BARRIER, false, 0, 0, 0);
	check_int(barriers_that_run(), 0);
}

int main(void)
{
	alarm(DEADLINE_S);
	unsetenv("NCCL_DEBUG");
	a_child_logs();
	a_child_has_no_operations();
	return 0;
}
