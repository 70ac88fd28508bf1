/* SPDX-License-Identifier: MIT
 *
 * How the ranks of a host get the same memory: the first of them makes it and gives its descriptor to the others over
 * an abstract socket, which leaves nothing behind and does not reach beyond the host. Only processes of the same user
 * that know the first one's peer info get it. Nothing here waits: the caller polls. The group's own thread.
 */
#ifndef BNET_FD_PASSING_H
#define BNET_FD_PASSING_H

#include "shared/peer_info.h"
#include "shared/segment.h"

/* What one rank has open until all ranks of the host have the memory. */
struct bnet_fd_passing {
	struct bnet_peer_info info;
	int listener;  /* -1: none */
	int answer_fd; /* to the first rank, or -1 */
	int sent;      /* ranks that the first one has sent the memory to */
};

#define BNET_FD_PASSING_NONE                    \
	(struct bnet_fd_passing)                \
	{                                       \
		.listener = -1, .answer_fd = -1 \
	}

/* Listens and fills in this rank's peer info. Its layout is 0 where the host cannot share memory. */
void bnet_fd_passing_open(struct bnet_fd_passing *passing);
/* On the first rank of a host: gives the memory to those that ask for it. 0: to all others; -EAGAIN: not yet. */
int bnet_fd_passing_send(struct bnet_fd_passing *passing, const struct bnet_segment *segment);
/* On the others: asks the one with that peer info, as member `index` of `count`. 0: segment is mapped; -EAGAIN: not
 * yet; another -errno: it never will be. */
int bnet_fd_passing_receive(struct bnet_fd_passing *passing, const struct bnet_peer_info *first, int count, int index,
			    struct bnet_segment *segment);
/* Closes what is open. Repeated calls do nothing. */
void bnet_fd_passing_close(struct bnet_fd_passing *passing);

#endif
