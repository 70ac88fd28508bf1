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

struct bnet_shared_patience {
	int64_t timeout_ns;         /* 0: none */
	int64_t spin_ns;            /* before the first sleep; 0: it yields */
	const atomic_bool *aborted; /* by another thread */
	int (*interrupted)(void);   /* NULL, or asked a few times a second: not 0 ends the wait */
};

/* Waits until the rank has published that round or a later one. 0: it has, and everything that it wrote before is
 * visible. -ECONNRESET: it has left, or its process is gone. -ETIMEDOUT, -ECANCELED, -EINTR: this rank gives up. */
int bnet_shared_await(const struct bnet_segment *segment, int index, enum bnet_shared_word word, uint32_t round,
		      const struct bnet_shared_patience *patience);
/* Publishes this rank's round; everything written before becomes visible to those that wait for it. */
void bnet_shared_publish(const struct bnet_segment *segment, enum bnet_shared_word word, uint32_t round);

#endif
