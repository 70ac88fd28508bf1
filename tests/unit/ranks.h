/* SPDX-License-Identifier: MIT
 *
 * For tests of the collectives and the tagged messages: threads as ranks, each with a group object that listens.
 */
#ifndef BNET_RANKS_H
#define BNET_RANKS_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "bagua_net.h"
#include "bagua_net_host.h"
#include "check.h"
#include "shared/peer_info.h"

#define MAX_RANKS 6

struct group;

struct rank {
	struct group *group;
	int rank;
	int nranks;
	bnet_coll_t *coll; /* destroyed after the body; NULL if the body has done so */
	pthread_t thread;
};

struct group {
	int version;
	const void *table; /* NULL: the library's of this version */
	int nranks;
	bool shares;                        /* memory, as ranks of one host, or … */
	int (*host_of)(int rank);           /* … not NULL: of several */
	bool checks;                        /* every call */
	void (*prepare)(struct rank *rank); /* NULL, or called by every rank before the body */
	void (*body)(struct rank *rank);
	pthread_barrier_t barrier;
	char rows[MAX_RANKS * MAX_RANKS * 128]; /* all ranks' */
	struct rank ranks[MAX_RANKS];
	atomic_bool flag;
	char *shared[MAX_RANKS];
};

#define CONNECT_TIMEOUT_S 60

/* ---- for bodies ---- */

static inline void connect_rank(struct rank *rank)
{
	int rc = bnet_coll_connect(rank->coll, rank->group->rows, CONNECT_TIMEOUT_S);

	if (rc != 0)
		fprintf(stderr, "%s\n", bnet_coll_error(rank->coll));
	check_int(rc, 0);
}

static inline void check_ok(struct rank *rank, int rc)
{
	if (rc != 0)
		fprintf(stderr, "rank %d of %d, v%d: %s\n", rank->rank, rank->nranks, rank->group->version,
			bnet_coll_error(rank->coll));
	check_int(rc, 0);
}

/* Runs an operation on all ranks, and counts the bytes and messages that all of them together send. */
static inline bnet_counters_t count_run(struct rank *rank, const bnet_op_t *op)
{
	bnet_counters_t before, after;

	pthread_barrier_wait(&rank->group->barrier);
	bnet_counters(&before);
	pthread_barrier_wait(&rank->group->barrier);
	check_ok(rank, bnet_coll_run(rank->coll, op));
	pthread_barrier_wait(&rank->group->barrier);
	bnet_counters(&after);
	pthread_barrier_wait(&rank->group->barrier);
	after.bytes_sent -= before.bytes_sent;
	after.messages_sent -= before.messages_sent;
	return after;
}

/* Makes the others believe that it is on another host. */
static inline void move_to_host(struct rank *rank, char *row)
{
	struct bnet_peer_info info;

	memcpy(&info, row, sizeof(info));
	info.host_id = (uint64_t)rank->group->host_of(rank->rank) + 1;
	memcpy(row, &info, sizeof(info));
}

static inline void *rank_main(void *arg)
{
	struct rank *rank = arg;
	struct group *group = rank->group;
	const void *table = group->table != NULL ? group->table : bnet_net_table(group->version);
	size_t row;
	int rc;

	check(table != NULL);
	rc = bnet_coll_create(&rank->coll, table, group->version, 0, rank->rank, rank->nranks);
	if (rc != 0)
		fprintf(stderr, "%s\n", bnet_coll_error(NULL));
	check_int(rc, 0);
	if (group->table == NULL)
		bnet_coll_look(rank->coll, bnet_net_look());
	row = bnet_coll_handle_size(rank->coll);
	check_int(row, 128 * rank->nranks);
	if (group->shares)
		bnet_coll_share(rank->coll);
	if (group->checks)
		bnet_coll_check_calls(rank->coll);
	check_int(bnet_coll_listen(rank->coll, group->rows + (size_t)rank->rank * row), 0);
	if (group->host_of != NULL)
		move_to_host(rank, group->rows + (size_t)rank->rank * (row + 128));
	pthread_barrier_wait(&group->barrier);
	if (group->prepare != NULL)
		group->prepare(rank);
	group->body(rank);
	bnet_coll_destroy(rank->coll);
	return NULL;
}

static inline void run_group(struct group *group, int version, int nranks, void (*body)(struct rank *rank))
{
	group->version = version;
	group->nranks = nranks;
	group->body = body;
	check_int(pthread_barrier_init(&group->barrier, NULL, (unsigned)nranks), 0);
	for (int i = 0; i < nranks; i++) {
		group->ranks[i] = (struct rank){.group = group, .rank = i, .nranks = nranks};
		check_int(pthread_create(&group->ranks[i].thread, NULL, rank_main, &group->ranks[i]), 0);
	}
	for (int i = 0; i < nranks; i++)
		check_int(pthread_join(group->ranks[i].thread, NULL), 0);
	pthread_barrier_destroy(&group->barrier);
}

#endif
