/* SPDX-License-Identifier: MIT
 *
 * See thread.h. Any thread; no state.
 */
#include "queue/thread.h"

#include <signal.h>

int bnet_thread_start(pthread_t *thread, void *(*body)(void *), void *arg)
{
	sigset_t all, before;
	int rc;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	rc = pthread_create(thread, NULL, body, arg);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	return -rc;
}
