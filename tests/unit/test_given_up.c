/* SPDX-License-Identifier: MIT
 *
 * An operation that its caller gives up while it moves data without a pause: threads as ranks. It would move more than
 * any machine does before the first question whether it is still wanted.
 */
#include <errno.h>
#include <sys/mman.h>
#include <unistd.h>

#include "bagua_net.h"
#include "check.h"
#include "coll/coll.h"
#include "coll/round.h"
#include "ranks.h"

#define DEADLINE_S 100
/* One stretch of memory, over and over. */
#define STRETCH ((size_t)64 << 20)
#define BYTES ((size_t)64 << 30)

static char *endless(void)
{
	const int fd = memfd_create("endless", MFD_CLOEXEC);
	char *base = mmap(NULL, BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	check(fd >= 0 && base != MAP_FAILED);
	check_int(ftruncate(fd, (off_t)STRETCH), 0);
	for (size_t at = 0; at < BYTES; at += STRETCH)
		check(mmap(base + at, STRETCH, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) == base + at);
	close(fd);
	return base;
}

/* ---- a network in which no rank looks in vain whether a message is over ---- */

static ncclNet_v8_t prompt_table;
static _Thread_local bool prompt;

static ncclResult_t prompt_test(void *request, int *done, int *size)
{
	ncclResult_t result;

	do
		result = ((const ncclNet_v8_t *)bnet_net_table(8))->test(request, done, size);
	while (prompt && result == ncclSuccess && !*done);
	return result;
}

/* ---- operations that take data from rank 0 to rank 1 ---- */

static int broadcasts(struct rank *rank, char *buf)
{
	return bnet_coll_broadcast(rank->coll, buf, BYTES, BNET_UINT8, 0);
}

/* Through the banks, or read where it is: the kernel decides. */
static int exchanges(struct rank *rank, char *buf)
{
	const size_t all[] = {0, BYTES}, none[] = {0, 0}, from_0[] = {BYTES, 0};
	char unused = 0;

	if (rank->rank == 0)
		return bnet_coll_all_to_allv(rank->coll, buf, all, &unused, none, BNET_UINT8);
	return bnet_coll_all_to_allv(rank->coll, &unused, none, buf, from_0, BNET_UINT8);
}

/* ---- ends ---- */

static _Thread_local struct rank *self;

static int ends_this_rank(void)
{
	return 1;
}

static int aborts_rank_0(void)
{
	bnet_coll_abort(self->group->ranks[0].coll);
	return 0;
}

static void run_until(struct rank *rank, int (*operation)(struct rank *rank, char *buf), int (*interrupted)(void),
		      int ended, int expected)
{
	char *buf = endless();
	int rc;

	self = rank;
	prompt = true;
	rank->coll->interrupted = rank->rank == 1 ? interrupted : NULL;
	rc = operation(rank, buf);
	if (rank->rank == ended)
		check_int(rc, expected);
	check(rc != 0);
	pthread_barrier_wait(&rank->group->barrier);
	munmap(buf, BYTES);
}

static void a_broadcast_is_interrupted(struct rank *rank)
{
	run_until(rank, broadcasts, ends_this_rank, 1, -EINTR);
}

static void a_broadcast_is_aborted(struct rank *rank)
{
	run_until(rank, broadcasts, aborts_rank_0, 0, -ECANCELED);
}

static void an_exchange_is_interrupted(struct rank *rank)
{
	run_until(rank, exchanges, ends_this_rank, 1, -EINTR);
}

static void an_exchange_is_aborted(struct rank *rank)
{
	run_until(rank, exchanges, aborts_rank_0, 0, -ECANCELED);
}

/* In shared memory no rank may have to wait for another one, so that each round looks by itself. */
static void no_round_begins_after_an_abort(struct rank *rank)
{
	char *bank;

	bnet_coll_abort(rank->coll);
	check_int(bnet_coll_round_begin(rank->coll, &bank), -ECANCELED);
	check(strstr(bnet_coll_error(rank->coll), "aborted") != NULL);
	pthread_barrier_wait(&rank->group->barrier);
}

int main(void)
{
	static void (*const bodies[])(struct rank *) = {a_broadcast_is_interrupted, a_broadcast_is_aborted,
							an_exchange_is_interrupted, an_exchange_is_aborted};

	setenv("NCCL_SOCKET_IFNAME", "lo", 1);
	alarm(DEADLINE_S);
	prompt_table = *(const ncclNet_v8_t *)bnet_net_table(8);
	prompt_table.test = prompt_test;
	for (size_t i = 0; i < sizeof(bodies) / sizeof(bodies[0]); i++) {
		run_group(&(struct group){.prepare = connect_rank, .table = &prompt_table}, 8, 2, bodies[i]);
		run_group(&(struct group){.prepare = connect_rank, .shares = true}, 12, 2, bodies[i]);
	}
	run_group(&(struct group){.prepare = connect_rank, .shares = true}, 12, 2, no_round_begins_after_an_abort);
	return 0;
}
