/* SPDX-License-Identifier: MIT
 *
 * A thread of the library in somebody's program, and a condition to wait for. Any thread; no state.
 */
#ifndef BNET_THREAD_H
#define BNET_THREAD_H

#include <pthread.h>

/* Signals are for the program's own threads: this one takes none. 0 or -errno. */
int bnet_thread_start(pthread_t *thread, void *(*body)(void *), void *arg);
/* A condition whose deadlines are times of CLOCK_MONOTONIC. 0 or -errno. */
int bnet_cond_init(pthread_cond_t *cond);

#endif
