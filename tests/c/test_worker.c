/* SPDX-License-Identifier: MIT
 *
 * How many workers a process gets.
 */
#include <stdlib.h>

#include "check.h"
#include "worker.h"

static void few_processors_get_none(void)
{
	for (int processors = 1; processors < 4; processors++)
		check(bnet_workers_for(processors, 1, 400000) == 0);
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

/* With the control thread, four at the most; and the rank itself keeps two processors. */
static void never_too_many(void)
{
	for (int processors = 1; processors <= 512; processors++)
		for (int ranks = 0; ranks <= 16; ranks++)
			for (int64_t speed = 0; speed <= 1600000; speed += 100000) {
				int each = processors / (ranks ? ranks : 1), workers;

				workers = bnet_workers_for(processors, ranks, speed);
				check(workers >= 0 && workers <= 3);
				check(workers == 0 || workers <= each - 2);
			}
}

static void launchers_say_how_many_ranks(void)
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

int main(void)
{
	few_processors_get_none();
	slow_links_get_none();
	fast_links_get_some();
	never_too_many();
	launchers_say_how_many_ranks();
	return 0;
}
