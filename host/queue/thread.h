/* SPDX-License-Identifier: MIT
 *
 * A thread of the library in somebody's program.
 */
#ifndef BNET_QUEUE_THREAD_H
#define BNET_QUEUE_THREAD_H

#include <pthread.h>

/* Signals are for the program's own threads: this one takes none. 0 or -errno. */
int bnet_thread_start(pthread_t *thread, void *(*body)(void *), void *arg);

#endif
