/* SPDX-License-Identifier: MIT
 *
 * The number of workers of a process, and the processors that they run on.
 */
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "check.h"
#include "control/lifecycle.h"
#include "engine/engine.h"
#include "transport/conn.h"
#include "transport/worker.h"

/* ---- a simulated machine: interposed on the library's calls ---- */

static int processors = 1;

int sched_getaffinity(pid_t thread, size_t size, cpu_set_t *set)
{
	(void)thread;
	CPU_ZERO_S(size, set);
	for (int i = 0; i < processors; i++)
		CPU_SET_S(i, size, set);
	return 0;
}

/* Gives the loopback interface a speed, which it lacks. */
int open(const char *path, int flags, ...)
{
	va_list args;
	mode_t mode;
	int fd;

	va_start(args, flags);
	mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(args, mode_t) : 0;
	va_end(args);
	if (strcmp(path, "/sys/class/net/lo/speed") != 0)
		return (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode);
	fd = memfd_create("speed", MFD_CLOEXEC);
	check(write(fd, "100000\n", 7) == 7 && lseek(fd, 0, SEEK_SET) == 0);
	return fd;
}

/* Of the files that the library opens this way, those of memory nodes. */
FILE *fopen(const char *path, const char *mode)
{
	static char list[] = "2-3,6\n";

	check_str(path, "/sys/devices/system/node/node1/cpulist");
	return fmemopen(list, sizeof(list) - 1, mode);
}

static int bindings;
static cpu_set_t bound;

int pthread_setaffinity_np(pthread_t thread, size_t size, const cpu_set_t *set)
{
	(void)thread;
	check_int(size, sizeof(bound));
	bound = *set;
	bindings++;
	return 0;
}

/* ---- the rule ---- */

static void few_processors_get_none(void)
{
	for (int few = 1; few < 4; few++)
		check(bnet_workers_for(few, 1, 400000) == 0);
	check(bnet_workers_for(64, 32, 400000) == 0);
}

static void slow_links_get_none(void)
{
	check(bnet_workers_for(64, 1, 0) == 0);
	check(bnet_workers_for(64, 1, 10000) == 0);
	check(bnet_workers_for(64, 1, 25000) == 0);
}

static void fast_links_get_some(void)
{
	check(bnet_workers_for(64, 8, 100000) > 0);
	check(bnet_workers_for(16, 1, 40000) > 0);
}

/* At most four threads with the control thread, and the rank itself keeps two processors. */
static void never_too_many(void)
{
	for (int many = 1; many <= 512; many++)
		for (int ranks = 0; ranks <= 16; ranks++)
			for (int64_t speed = 0; speed <= 1600000; speed += 100000) {
				int each = many / (ranks ? ranks : 1), workers;

				workers = bnet_workers_for(many, ranks, speed);
				check(workers >= 0 && workers <= 3);
				check(workers == 0 || workers <= each - 2);
			}
}

static void launchers_set_the_number_of_ranks(void)
{
	static const char *const names[] = {"LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS",
					    "SLURM_NTASKS_PER_NODE"};

	for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++)
		unsetenv(names[i]);
	check(bnet_local_ranks() == 1);
	for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++) {
		setenv(names[i], "6", 1);
		check(bnet_local_ranks() == 6);
		setenv(names[i], "none", 1);
		check(bnet_local_ranks() == 1);
		setenv(names[i], "-3", 1);
		check(bnet_local_ranks() == 1);
		unsetenv(names[i]);
	}
}

/* ---- the choice ---- */

/* A later thread with fewer processors does not change the number that init logged. */
static void the_first_choice_is_kept(void)
{
	setenv("NCCL_SOCKET_IFNAME", "lo", 1);
	unsetenv("BAGUA_NET_THREADS");
	processors = 16;
	check_int(bnet_lifecycle_configure(), 0);
	check_int(bnet_workers_wanted(), bnet_workers_for(16, 1, 100000));
	check(bnet_workers_wanted() > 0);
	processors = 1;
	check_int(bnet_lifecycle_configure(), 0);
	check_int(bnet_workers_wanted(), bnet_workers_for(16, 1, 100000));
}

/* ---- the place ---- */

/* A worker starts for a connection of an interface of that memory node. */
static void start_on_node(int node)
{
	struct bnet_nic nic = {.numa_node = node};
	struct bnet_device dev = {.name = "unit", .address = "", .nmembers = 1, .members = {&nic}};
	struct bnet_conn *conn = bnet_conn_new(false, &dev, &bnet_engine.config, true);
	int pair[2];

	bindings = 0;
	bnet_workers_want(1);
	check_int(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair), 0);
	check_int(bnet_conn_add_stream(conn, pair[0], NULL), 0);
	bnet_worker_adopt(conn);
	check(conn->worker != NULL);
	bnet_worker_release(conn);
	bnet_workers_await();
	bnet_workers_stop();
	bnet_conn_free(conn);
	close(pair[1]);
}

static void workers_run_near_their_interface(void)
{
	processors = 8;
	start_on_node(1);
	check_int(bindings, 1);
	check_int(CPU_COUNT(&bound), 3);
	check(CPU_ISSET(2, &bound) && CPU_ISSET(3, &bound) && CPU_ISSET(6, &bound));
	processors = 3; /* that the process may use */
	start_on_node(1);
	check_int(bindings, 1);
	check_int(CPU_COUNT(&bound), 1);
	check(CPU_ISSET(2, &bound));
	processors = 2;
	start_on_node(1);
	check_int(bindings, 0);
	start_on_node(-1); /* not known */
	check_int(bindings, 0);
}

int main(void)
{
	few_processors_get_none();
	slow_links_get_none();
	fast_links_get_some();
	never_too_many();
	launchers_set_the_number_of_ranks();
	the_first_choice_is_kept();
	workers_run_near_their_interface();
	return 0;
}
