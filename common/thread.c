/* SPDX-License-Identifier: MIT
 *
 * See thread.h.
 */
#include "common/thread.h"

#include <signal.h>
#include <time.h>

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

int bnet_cond_init(pthread_cond_t *cond)
{
	pthread_condattr_t attr;
	int rc = pthread_condattr_init(&attr);

	if (rc != 0)
		return -rc;
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	rc = pthread_cond_init(cond, &attr);
	pthread_condattr_destroy(&attr);
	return -rc;
}
