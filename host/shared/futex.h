/* SPDX-License-Identifier: MIT
 *
 * Sleeping until a word in shared memory changes: the kernel's futex, between processes. Any thread; no state.
 */
#ifndef BNET_SHARED_FUTEX_H
#define BNET_SHARED_FUTEX_H

#include <stdatomic.h>
#include <stdint.h>

/* Returns when the word is not `seen`, when it is woken, after ns, or for no reason. */
void bnet_futex_sleep(_Atomic uint32_t *word, uint32_t seen, int64_t ns);
/* Wakes all that sleep on the word, in any process. */
void bnet_futex_wake(_Atomic uint32_t *word);

#endif
