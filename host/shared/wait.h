/* SPDX-License-Identifier: MIT
 *
 * One rank waits for another one of its host to publish a round. The waiting thread spins or yields for some
 * microseconds, then sleeps in the kernel (futex) until the other one publishes.
 */
#ifndef BNET_SHARED_WAIT_H
#define BNET_SHARED_WAIT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "shared/segment.h"

enum bnet_shared_word { BNET_SHARED_PUT, BNET_SHARED_GOT };

struct bnet_shared_wait_limits {
	int64_t timeout_ns;         /* 0: none */
	int64_t spin_ns;            /* before the first sleep; 0: it yields */
	const atomic_bool *aborted; /* by another thread */
	int (*interrupted)(void);   /* NULL, or asked a few times a second: not 0 ends the wait */
	int64_t *waited_ns;         /* how long it took from the first sleep on is added; NULL: nobody counts */
};

/* Tells the others what this rank does from here on; notes with the same first word should be the same. */
void bnet_shared_begin(const struct bnet_segment *segment, const struct bnet_shared_note *note);
/* What that rank does, if it could be read. */
bool bnet_shared_current(const struct bnet_segment *segment, int index, struct bnet_shared_note *note);
/* Something has moved elsewhere: those that wait for this rank begin to count their timeout again. */
void bnet_shared_moved(const struct bnet_segment *segment);

/* Waits until the rank has published that round or a later one. 0: it has, and everything that it wrote before is
 * visible. -ECONNRESET: it has left, or its process is gone. -EPROTO: it does something else. -ETIMEDOUT (nothing has
 * moved), -ECANCELED, -EINTR: this rank gives up. */
int bnet_shared_await(const struct bnet_segment *segment, int index, enum bnet_shared_word word, uint32_t round,
		      const struct bnet_shared_wait_limits *limits);
/* Publishes this rank's round; everything written before becomes visible to those that wait for it. */
void bnet_shared_publish(const struct bnet_segment *segment, enum bnet_shared_word word, uint32_t round);

#endif
