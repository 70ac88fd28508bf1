/* SPDX-License-Identifier: MIT
 *
 * The connections of a path have one judgement: what a new one brings along counts for those that are there, at once.
 */
#include <stdlib.h>
#include <unistd.h>

#include "bagua_net.h"
#include "engine/engine.h"
#include "oneself.h"
#include "scaling/path.h"

#define DEADLINE_S 100
#define MANY 6
#define FEW 2

static struct bnet_client table;

/* So many streams this process takes of its connections from here on, as if another process had been told so. */
static void take_at_most(int streams)
{
	bnet_engine_lock();
	bnet_engine.config.nstreams = streams;
	bnet_engine_unlock();
}

static void use(int streams)
{
	bnet_engine_lock();
	bnet_list_each(node, &bnet_engine.paths) {
		struct bnet_path *path = bnet_entry(node, struct bnet_path, node);

		bnet_scaler_init(&path->scaler, streams, MANY);
		bnet_path_widen(path);
	}
	bnet_engine_unlock();
}

static int level_of(const void *comm)
{
	const struct bnet_conn *conn = comm;
	int level;

	bnet_engine_lock();
	level = conn->level;
	bnet_engine_unlock();
	return level;
}

/* The second one's listener allows fewer streams than the first one uses. */
static void a_maximum_counts_for_all(void)
{
	struct oneself first, second;

	first = connect_to_oneself(&table);
	use(MANY);
	check_int(level_of(first.send), MANY);
	take_at_most(FEW);
	second = connect_to_oneself(&table);
	check_int(level_of(second.send), FEW);
	check_int(level_of(first.send), FEW);
	close_to_oneself(&table, first);
	close_to_oneself(&table, second);
}

int main(void)
{
	setenv("NCCL_SOCKET_IFNAME", "lo", 1);
	setenv("BAGUA_NET_NSTREAMS", "0", 1);
	alarm(DEADLINE_S);
	check_int(bnet_client_init(&table, bnet_net_table(12), 12, print_warnings), ncclSuccess);
	a_maximum_counts_for_all();
	check_int(bnet_client_finalize(&table), ncclSuccess);
	return 0;
}
