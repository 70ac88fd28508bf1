/* SPDX-License-Identifier: MIT
 *
 * For tests of tagged messages: a rank's operations and their results.
 */
#ifndef BNET_TAGGED_PAIR_H
#define BNET_TAGGED_PAIR_H

#include <stdint.h>
#include <unistd.h>

#include "check.h"
#include "ranks.h"
#include "tagged/tagged.h"

#define DEADLINE_S 250 /* of the whole program */
#define MAX_OPS 8192

struct endpoint {
	struct rank *rank;
	bnet_tagged_t *tagged;
	size_t posted;
	size_t over;
	bnet_tagged_done_t done[MAX_OPS]; /* by id */
	char *errors[MAX_OPS];            /* by id; "" after a success */
};

static inline void open_endpoint(struct endpoint *self, struct rank *rank)
{
	memset(self, 0, sizeof(*self));
	self->rank = rank;
	check_int(bnet_tagged_create(&self->tagged, rank->coll, rank->group->rows), 0);
	rank->coll = NULL; /* belongs to the messages from now on */
}

static inline struct endpoint *new_endpoint(struct rank *rank)
{
	struct endpoint *self = malloc(sizeof(*self));

	check(self != NULL);
	open_endpoint(self, rank);
	return self;
}

static inline void free_endpoint(struct endpoint *self)
{
	bnet_tagged_destroy(self->tagged);
	for (size_t i = 0; i < self->posted; i++)
		free(self->errors[i]);
	free(self);
}

static inline uint64_t post_send(struct endpoint *self, const void *buf, size_t bytes, int peer, int64_t tag)
{
	check(self->posted < MAX_OPS);
	check_int(bnet_tagged_send(self->tagged, buf, bytes, peer, tag, self->posted), 0);
	return self->posted++;
}

static inline uint64_t post_recv(struct endpoint *self, void *buf, size_t bytes, int peer, int64_t tag)
{
	check(self->posted < MAX_OPS);
	check_int(bnet_tagged_recv(self->tagged, buf, bytes, peer, tag, self->posted), 0);
	return self->posted++;
}

static inline void keep(struct endpoint *self, const bnet_tagged_done_t *done)
{
	self->done[done->id] = *done;
	check(done->rc == 0 ? done->error == NULL : done->error != NULL);
	self->errors[done->id] = strdup(done->rc == 0 ? "" : done->error);
	check(self->errors[done->id] != NULL);
	self->over++;
}

/* Until all posted operations are complete. */
static inline void finish(struct endpoint *self)
{
	bnet_tagged_done_t done[7];

	while (self->over < self->posted) {
		int count = bnet_tagged_progress(self->tagged, done, 7);

		check(count > 0);
		for (int i = 0; i < count; i++)
			keep(self, &done[i]);
	}
}

static inline void finish_well(struct endpoint *self)
{
	finish(self);
	for (size_t i = 0; i < self->posted; i++) {
		if (self->done[i].rc != 0)
			fprintf(stderr, "rank %d: %s\n", self->rank->rank, self->errors[i]);
		check_int(self->done[i].rc, 0);
	}
}

#endif
