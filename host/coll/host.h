/* SPDX-License-Identifier: MIT
 *
 * The ranks of this host, and the memory that they share. Every rank puts its peer info into its row of what all ranks
 * exchange, so the rows tell who is on which host. The first rank of a host makes the memory, and the others ask it for
 * the memory. The group's own thread.
 */
#ifndef BNET_COLL_HOST_H
#define BNET_COLL_HOST_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#include "coll/subgroup.h"
#include "shared/fd_passing.h"

enum bnet_coll_direct { BNET_COLL_DIRECT_UNTRIED, BNET_COLL_DIRECT_ABLE, BNET_COLL_DIRECT_UNABLE };

/* Members are the ranks of the host, counted in the order of their ranks. */
struct bnet_coll_host {
	bool wanted;   /* by the caller: before the group listens */
	bool anywhere; /* ranks of the group share a host, be it this one or another */
	bool shared;   /* all ranks of the group have agreed to use the memory */
	bool spins;    /* a wait polls before it sleeps: there are processors enough */
	bool settled;  /* this rank has the memory, and has given it to the others, or never will */
	int failed;    /* 0, or why not: -errno; -EPROTO: another member has not asked, or has not answered */
	int count;
	int index;  /* this rank's */
	int *ranks; /* count of them */
	/* Where every host has as many members as this one: the ranks by member and host, those of member 0 first, and
	 * hosts in the order of their first ranks. Else hosts is 0. */
	int hosts;
	int here; /* this host */
	int *grid;
	void **places;            /* one for each rank of the group: for arrays of addresses */
	bool *same_pid_namespace; /* of each member: is it in this rank's PID namespace? */
	/* Reading other members' memory, see direct.h. */
	enum bnet_coll_direct direct;
	pid_t *processes; /* of the members */
	uint64_t token;   /* a member that reads this value here can read this process's memory */
	uint32_t round;
	int compared;                   /* members whose notes of this round were compared with this rank's */
	bool unread[BNET_SHARED_NOTES]; /* rounds, by their notes, in which some were not */
	struct bnet_segment segment;
	struct bnet_fd_passing passing;
	struct bnet_peer_info first; /* of member 0 */
};

/* Any group has one, wanted or not. */
void bnet_coll_host_init(struct bnet_coll_host *host);
/* Writes this rank's peer info. */
void bnet_coll_host_open(struct bnet_coll_host *host, struct bnet_peer_info *info);
/* The peer info of rank r is `stride` bytes after that of rank r - 1. 0 or -ENOMEM. */
int bnet_coll_host_discover(struct bnet_coll_host *host, const char *infos, size_t stride, int rank, int nranks);
/* Goes on with making, giving or getting the memory. False: that is over, or has failed. all_have_asked: every other
 * member has made its first step, in which it asks; one that could not will not ask later. */
bool bnet_coll_host_step(struct bnet_coll_host *host, bool all_have_asked);
/* What all ranks have agreed on. */
void bnet_coll_host_agreed(struct bnet_coll_host *host, bool shared);
/* Leaves the other members, who see the reason. Repeated calls do nothing. */
void bnet_coll_host_close(struct bnet_coll_host *host, const char *reason);

static inline int bnet_coll_host_rank(const struct bnet_coll_host *host, int here, int member)
{
	return host->grid[member * host->hosts + here];
}

/* The ranks with this rank's index, one on each host. */
static inline struct bnet_coll_subgroup bnet_coll_host_counterparts(const struct bnet_coll_host *host)
{
	return (struct bnet_coll_subgroup){.index = host->here,
					   .count = host->hosts,
					   .ranks = &host->grid[host->index * host->hosts]};
}

/* The member `step` places after this one, around the host. */
static inline int bnet_coll_host_member(const struct bnet_coll_host *host, int step)
{
	return (host->index + step) % host->count;
}

#endif
