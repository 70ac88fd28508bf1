/* SPDX-License-Identifier: MIT
 *
 * For how long a connection has had something posted: its bursts are shorter than the time between two looks.
 */
#include <stdlib.h>
#include <unistd.h>

#include "bagua_net.h"
#include "common/clock.h"
#include "control/watchdog.h"
#include "engine/engine.h"
#include "oneself.h"

#define DEADLINE_S 60
#define TICK_US 20000

static struct bnet_client client;

/* A look at which so much is posted. Returns for how long it was, by the looks until now. */
static uint64_t look(struct bnet_conn *conn, uint64_t now_us, uint32_t outstanding)
{
	atomic_store(&conn->outstanding, outstanding);
	bnet_watchdog_sample(now_us);
	return conn->seen.posted_us;
}

static void bursts_count_by_what_the_looks_see(void)
{
	struct oneself ends = connect_to_oneself(&client);
	struct bnet_conn *conn = ends.send;
	const uint64_t begin_us = bnet_now_us();
	uint64_t before_us;

	bnet_engine_lock(); /* the control thread does not look meanwhile */
	move_oneself(ends);
	before_us = conn->seen.posted_us;

	atomic_store(&conn->outstanding, 1);
	bnet_watchdog_begin(conn, begin_us);
	check_int(look(conn, begin_us + TICK_US, 1) - before_us, TICK_US);
	/* It has ended in between, on average in the middle. */
	check_int(look(conn, begin_us + 2 * TICK_US, 0) - before_us, TICK_US + TICK_US / 2);
	check_int(look(conn, begin_us + 3 * TICK_US, 0) - before_us, TICK_US + TICK_US / 2);
	check_int(look(conn, begin_us + 4 * TICK_US, 1) - before_us, 2 * TICK_US);
	check_int(conn->seen.still_us, 0);
	check_int(look(conn, begin_us + 5 * TICK_US, 1) - before_us, 3 * TICK_US);
	check_int(conn->seen.still_us, TICK_US); /* nothing has moved */

	/* What passed while it was not looked at does not count. */
	atomic_store(&conn->outstanding, 0);
	bnet_watchdog_begin(conn, begin_us + 50 * TICK_US);
	check_int(look(conn, begin_us + 51 * TICK_US, 0) - before_us, 3 * TICK_US);
	bnet_engine_unlock();
	close_to_oneself(&client, ends);
}

int main(void)
{
	setenv("NCCL_SOCKET_IFNAME", "lo", 1);
	alarm(DEADLINE_S);
	check_int(bnet_client_init(&client, bnet_net_table(12), 12, print_warnings), ncclSuccess);
	bursts_count_by_what_the_looks_see();
	check_int(bnet_client_finalize(&client), ncclSuccess);
	return 0;
}
