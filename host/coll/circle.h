/* SPDX-License-Identifier: MIT
 *
 * The ranks among which data moves: all of the group, or one of each host. Pure.
 */
#ifndef BNET_COLL_CIRCLE_H
#define BNET_COLL_CIRCLE_H

#include <stddef.h>

struct bnet_coll_circle {
	int at; /* this rank's place */
	int count;
	const int *ranks; /* at each place; NULL: rank r is at place r */
};

static inline int bnet_coll_circle_rank(const struct bnet_coll_circle *circle, int place)
{
	return circle->ranks != NULL ? circle->ranks[place] : place;
}

/* The rank `step` places further; step may be negative, down to -count. */
static inline int bnet_coll_circle_step(const struct bnet_coll_circle *circle, int step)
{
	return bnet_coll_circle_rank(circle, (circle->at + step + circle->count) % circle->count);
}

#endif
