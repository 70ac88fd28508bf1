/* SPDX-License-Identifier: MIT
 *
 * The connections of a path share one scaler: limits of a new connection apply to the existing ones at once.
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

static struct bnet_client client;

/* Sets this process's maximum of streams for later connections, as if the peer were a process with that setting. */
static void limit_streams(int streams)
{
	bnet_engine_lock();
	bnet_engine.config.nstreams = streams;
	bnet_engine_unlock();
}

static void use_streams(int streams)
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

/* The second connection's listener allows fewer streams than the first connection uses. */
static void a_lower_maximum_applies_to_all(void)
{
	struct oneself first, second;

	first = connect_to_oneself(&client);
	use_streams(MANY);
	check_int(level_of(first.send), MANY);
	limit_streams(FEW);
	second = connect_to_oneself(&client);
	check_int(level_of(second.send), FEW);
	check_int(level_of(first.send), FEW);
	close_to_oneself(&client, first);
	close_to_oneself(&client, second);
}

static void nothing_is_left_of_a_path_without_connections(void)
{
	close_to_oneself(&client, connect_to_oneself(&client));
	bnet_engine_lock();
	check(bnet_list_empty(&bnet_engine.paths));
	bnet_engine_unlock();
}

int main(void)
{
	setenv("NCCL_SOCKET_IFNAME", "lo", 1);
	setenv("BAGUA_NET_NSTREAMS", "0", 1);
	alarm(DEADLINE_S);
	check_int(bnet_client_init(&client, bnet_net_table(12), 12, print_warnings), ncclSuccess);
	a_lower_maximum_applies_to_all();
	nothing_is_left_of_a_path_without_connections();
	check_int(bnet_client_finalize(&client), ncclSuccess);
	return 0;
}
