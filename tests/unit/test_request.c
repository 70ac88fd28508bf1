/* SPDX-License-Identifier: MIT
 *
 * The ring of requests under both of its threads: the slot of a finished message is never taken for that message, also
 * not while its poster reuses it. The poster keeps the ring full, so each message that the owner completes has its slot
 * posted again at once; meanwhile the owner asks for it again and again, as a slice that arrives twice would.
 */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <unistd.h>

#include "../sanitize.h"
#include "check.h"
#include "transport/request.h"

#define DEADLINE_S 250
#define MESSAGES 2000000
#define ASKED 20 /* times for each finished message */

static uint64_t messages = MESSAGES;
static struct bnet_conn *conn;
static char byte;

/* The other thread may need this one's processor. */
static void spin(unsigned *spins)
{
	if (++*spins % 1024 == 0)
		sched_yield();
}

static void *post_all(void *unused)
{
	struct bnet_request *requests[BNET_RING] = {NULL};
	unsigned spins = 0;

	for (uint64_t next = 0; next < messages; next++) {
		struct bnet_request **slot = &requests[next % BNET_RING];

		while (*slot && !atomic_load_explicit(&(*slot)->done, memory_order_acquire))
			spin(&spins);
		if (*slot)
			bnet_request_take(*slot);
		*slot = bnet_request_post(conn, &byte, 1);
		check(*slot != NULL);
	}
	return unused;
}

static void complete_all(void)
{
	unsigned spins = 0;

	for (uint64_t message = 0; message < messages; message++) {
		struct bnet_request *request;

		while (!(request = bnet_request_find(conn, message)))
			spin(&spins);
		check_int((long long)atomic_load(&request->number), (long long)message);
		bnet_request_received(conn, request);
		for (int i = 0; i < ASKED; i++)
			check(bnet_request_find(conn, message) == NULL);
	}
}

static void a_message_that_is_not_posted_has_no_slot(void)
{
	check(bnet_request_find(conn, 0) == NULL);
	check(bnet_request_find(conn, BNET_RING) == NULL);
}

int main(void)
{
	struct bnet_config config;
	pthread_t poster;

	if (sysconf(_SC_NPROCESSORS_ONLN) < 2)
		return 77; /* the threads would take turns */
#if defined(SANITIZE_THREAD)
	messages /= 20;
#endif
	alarm(DEADLINE_S);
	bnet_config_defaults(&config);
	conn = bnet_conn_new(false, NULL, &config, false);
	check(conn != NULL);
	a_message_that_is_not_posted_has_no_slot();
	check_int(pthread_create(&poster, NULL, post_all, NULL), 0);
	complete_all();
	check_int(pthread_join(poster, NULL), 0);
	bnet_conn_free(conn);
	return 0;
}
