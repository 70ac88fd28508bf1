/* SPDX-License-Identifier: MIT
 *
 * A process that exits while streams are encrypted. OpenSSL's handler frees what each thread has of it, and so would the
 * thread's own end: a thread of the library that would end then stays, and nobody waits for it.
 */
#include <dirent.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bagua_net.h"
#include "base/crypto.h"
#include "oneself.h"

#define SKIPPED 77
#define DEADLINE_S 60
/* The control thread, and a worker. */
#define OURS 2
#define BYTES 200000

static struct bnet_client client;
static struct oneself ends;
static int running; /* threads before the exit: the main one, ours, and perhaps a sanitizer's; 0: a check has failed */
static char from[BYTES], into[BYTES], file[] = "/tmp/bnet-exit-XXXXXX";

/* ---- interposed: what a thread that stays does ---- */

static _Atomic int staying;

int pause(void)
{
	atomic_fetch_add(&staying, 1);
	return (int)syscall(SYS_ppoll, NULL, 0, NULL, NULL, 0);
}

/* ---- the child ---- */

static int threads(void)
{
	DIR *tasks = opendir("/proc/self/task");
	const struct dirent *entry;
	int count = 0;

	check(tasks != NULL);
	while ((entry = readdir(tasks)))
		count += entry->d_name[0] != '.';
	closedir(tasks);
	return count;
}

/* Registered first, so it runs after OpenSSL's handler. */
static void at_the_very_end(void)
{
	if (!running || !bnet_crypto_is_over())
		_exit(1);
	close_to_oneself(&client, ends);
	while (control_runs()) /* it stops its workers */
		sched_yield();
	while (atomic_load(&staying) < OURS) {
		if (threads() < running)
			_exit(1);
		sched_yield();
	}
	_exit(0);
}

static void run_child(void)
{
	char why[256];

	alarm(DEADLINE_S);
	check_int(atexit(at_the_very_end), 0);
	if (bnet_crypto_load(why, sizeof(why)) < 0)
		_exit(SKIPPED);
	check_int(bnet_client_init(&client, bnet_net_table(12), 12, print_warnings), ncclSuccess);
	ends = connect_to_oneself(&client);
	pass_to_oneself(&client, ends, from, into, BYTES);
	running = threads();
	exit(2); /* the handler has another status */
}

/* ---- the parent ---- */

int main(void)
{
	int fd = mkstemp(file), status;
	pid_t child;

	check(fd >= 0);
	check_int(write(fd, "0123456789abcdef0123456789abcdef", 32), 32);
	close(fd);
	setenv("NCCL_SOCKET_IFNAME", "lo", 1);
	setenv("BAGUA_NET_SECRET_FILE", file, 1);
	setenv("BAGUA_NET_ENCRYPT", "1", 1);
	setenv("BAGUA_NET_THREADS", "1", 1);
	child = fork();
	check(child >= 0);
	if (child == 0)
		run_child();
	check_int(waitpid(child, &status, 0), child);
	unlink(file);
	check(WIFEXITED(status));
	return WEXITSTATUS(status);
}
