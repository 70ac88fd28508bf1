/* SPDX-License-Identifier: MIT
 *
 * For tests of tagged messages: a rank's messages, and what was reported of them.
 */
#ifndef BNET_MAILBOX_H
#define BNET_MAILBOX_H

#include <stdint.h>
#include <unistd.h>

#include "check.h"
#include "tagged/tagged.h"
#include "ranks.h"

#define DEADLINE_S 250 /* of the whole program */
#define TIMEOUT_S 100  /* of an operation: a hang would end here */
#define MAX_OPS 8192

struct box {
	struct rank *rank;
	bnet_tagged_t *mail;
	size_t posted;
	size_t over;
	bnet_tagged_done_t done[MAX_OPS]; /* by id */
	char *said[MAX_OPS];            /* errors */
};

static inline void open_box(struct box *box, struct rank *rank)
{
	memset(box, 0, sizeof(*box));
	box->rank = rank;
	check_int(bnet_tagged_create(&box->mail, rank->coll, rank->group->rows), 0);
	rank->coll = NULL; /* the messages' from now on */
}

static inline struct box *new_box(struct rank *rank)
{
	struct box *box = malloc(sizeof(*box));

	check(box != NULL);
	open_box(box, rank);
	return box;
}

static inline void free_box(struct box *box)
{
	bnet_tagged_destroy(box->mail);
	for (size_t i = 0; i < box->posted; i++)
		free(box->said[i]);
	free(box);
}

static inline uint64_t post_send(struct box *box, const void *buf, size_t bytes, int peer, int64_t tag)
{
	check(box->posted < MAX_OPS);
	check_int(bnet_tagged_send(box->mail, buf, bytes, peer, tag, TIMEOUT_S, box->posted), 0);
	return box->posted++;
}

static inline uint64_t post_recv(struct box *box, void *buf, size_t bytes, int peer, int64_t tag)
{
	check(box->posted < MAX_OPS);
	check_int(bnet_tagged_recv(box->mail, buf, bytes, peer, tag, TIMEOUT_S, box->posted), 0);
	return box->posted++;
}

static inline void keep(struct box *box, const bnet_tagged_done_t *done)
{
	box->done[done->id] = *done;
	check(done->rc == 0 ? done->error == NULL : done->error != NULL);
	box->said[done->id] = strdup(done->rc == 0 ? "" : done->error);
	check(box->said[done->id] != NULL);
	box->over++;
}

/* Until all that was posted is over. */
static inline void finish(struct box *box)
{
	bnet_tagged_done_t done[7];

	while (box->over < box->posted) {
		int count = bnet_tagged_progress(box->mail, done, 7);

		check(count > 0);
		for (int i = 0; i < count; i++)
			keep(box, &done[i]);
	}
}

static inline void finish_well(struct box *box)
{
	finish(box);
	for (size_t i = 0; i < box->posted; i++) {
		if (box->done[i].rc != 0)
			fprintf(stderr, "rank %d: %s\n", box->rank->rank, box->said[i]);
		check_int(box->done[i].rc, 0);
	}
}

#endif
