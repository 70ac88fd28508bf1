/* SPDX-License-Identifier: MIT
 *
 * The ranks among which data moves: all of the group, or one of each host. Pure.
 */
#ifndef BNET_COLL_SUBGROUP_H
#define BNET_COLL_SUBGROUP_H

#include <stddef.h>

struct bnet_coll_subgroup {
	int index; /* this rank's place */
	int count;
	const int *ranks; /* at each place; NULL: rank r is at place r */
};

static inline int bnet_coll_subgroup_rank(const struct bnet_coll_subgroup *subgroup, int place)
{
	return subgroup->ranks != NULL ? subgroup->ranks[place] : place;
}

/* The rank `step` places further; step may be negative, down to -count. */
static inline int bnet_coll_subgroup_step(const struct bnet_coll_subgroup *subgroup, int step)
{
	return bnet_coll_subgroup_rank(subgroup, (subgroup->index + step + subgroup->count) % subgroup->count);
}

#endif
