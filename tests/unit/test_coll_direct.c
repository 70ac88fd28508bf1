/* SPDX-License-Identifier: MIT
 *
 * Blocks that ranks of one host read out of each other's memory: threads as ranks.
 */
#include <errno.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bagua_net_host.h"
#include "check.h"
#include "coll/direct.h"
#include "copies.h"

#define DEADLINE_S 250

/* ---- interposed: memory that only its own process can use, as what some devices' drivers map ---- */

static _Atomic(const char *) hidden;

enum { HIDDEN = 1 << 22 };

ssize_t process_vm_readv(pid_t pid, const struct iovec *here, unsigned long nhere, const struct iovec *there,
			 unsigned long nthere, unsigned long flags)
{
	const char *from = atomic_load(&hidden), *at = there->iov_base;

	if (from != NULL && at >= from && at < from + HIDDEN) {
		errno = EFAULT;
		return -1;
	}
	return syscall(SYS_process_vm_readv, pid, here, nhere, there, nthere, flags);
}

/* ---- bodies ---- */

/* As if one rank were in a container with process numbers of its own. */
static void connect_blindly(struct rank *rank)
{
	connect_rank(rank);
	if (rank->rank == 0)
		memset(rank->coll->host.same_pid_namespace, 0, (size_t)rank->nranks);
}

/* Large blocks do not go through the banks: an operation takes one round, however large they are. */
static void reads_large_blocks(struct rank *rank)
{
	enum { COUNT = 1 << 20 };
	const struct bnet_coll_host *host = &rank->coll->host;
	uint32_t before;

	one_all_to_all(rank, 1, BNET_UINT8, false); /* the first one finds out */
	if (host->direct != BNET_COLL_DIRECT_ABLE) {
		fprintf(stderr, "the kernel lets no process read another one's memory here\n");
		return;
	}
	before = host->round;
	one_all_to_all(rank, COUNT, BNET_INT32, false);
	check_int(host->round, before + 1);
	one_all_to_all(rank, COUNT, BNET_INT32, true); /* in place: what is read would be overwritten */
	check(host->round > before + 2);
	before = host->round;
	for (int root = 0; root < rank->nranks; root++) {
		one_gather_and_scatter(rank, COUNT, BNET_INT32, root);
		one_all_to_allv(rank, COUNT, BNET_FLOAT64);
	}
	check(host->round - before <=
	      (uint32_t)rank->nranks * (2 + (COUNT * sizeof(int32_t)) / host->segment.bank_bytes));
}

static void goes_through_banks(struct rank *rank)
{
	for (size_t count = 1; count < 1000000; count *= 99) {
		one_all_to_all(rank, count, BNET_INT32, count == 99);
		one_all_to_allv(rank, count, BNET_FLOAT64);
		one_gather_and_scatter(rank, count, BNET_INT32, 1);
	}
	check_int(rank->coll->host.direct, BNET_COLL_DIRECT_UNABLE);
}

/* Rank 1 leaves, and its buffer stays: what was read after that is not what it gave. */
static void reads_after_the_end(struct rank *rank)
{
	char buf[64] = {0}, got[64];
	bool able;

	check_ok(rank, bnet_coll_direct_able(rank->coll, &able));
	rank->group->shared[rank->rank] = buf;
	pthread_barrier_wait(&rank->group->barrier);
	if (rank->rank == 0 && able) {
		const uint64_t from = (uintptr_t)rank->group->shared[1];

		check_ok(rank, bnet_coll_direct_read(rank->coll, 1, from, got, sizeof(got)));
		check_int(bnet_coll_direct_read(rank->coll, 1, 64, got, sizeof(got)), -EFAULT);
		check(strstr(bnet_coll_error(rank->coll), "cannot read the memory of rank 1") != NULL);
	}
	pthread_barrier_wait(&rank->group->barrier);
	if (rank->rank == 1)
		bnet_coll_destroy(rank->coll);
	pthread_barrier_wait(&rank->group->barrier);
	if (rank->rank == 0 && able) {
		const uint64_t from = (uintptr_t)rank->group->shared[1];

		check_int(bnet_coll_direct_read(rank->coll, 1, from, got, sizeof(got)), -ECONNRESET);
		check(strstr(bnet_coll_error(rank->coll), "rank 1, on this host, has left") != NULL);
	}
	pthread_barrier_wait(&rank->group->barrier);
	if (rank->rank == 1)
		rank->coll = NULL;
}

/* Its memory is gone; its locks are not, as at the end of a process. */
static void names_who_has_ended(struct rank *rank)
{
	char got[64];
	bool able;
	pid_t child;

	check_ok(rank, bnet_coll_direct_able(rank->coll, &able));
	if (rank->rank == 0 && able) {
		child = fork();
		if (child == 0)
			_exit(0);
		check_int(waitid(P_PID, (id_t)child, &(siginfo_t){0}, WEXITED | WNOWAIT), 0);
		rank->coll->host.processes[1] = child;
		check_int(bnet_coll_direct_read(rank->coll, 1, (uintptr_t)got, got, sizeof(got)), -ECONNRESET);
		check(strstr(bnet_coll_error(rank->coll), "the process of rank 1, on this host, has ended") != NULL);
		check_int(waitpid(child, NULL, 0), child);
	}
	pthread_barrier_wait(&rank->group->barrier);
}

/* Rank 0's blocks come through the banks, and the others' do not. */
static void moves_hidden_blocks(struct rank *rank)
{
	const size_t block = HIDDEN / (size_t)rank->nranks;
	char *send = malloc(HIDDEN), *recv = malloc(HIDDEN);

	check(send != NULL && recv != NULL);
	memset(send, rank->rank + 1, HIDDEN);
	if (rank->rank == 0)
		atomic_store(&hidden, send);
	pthread_barrier_wait(&rank->group->barrier);
	check_ok(rank, bnet_coll_all_to_all(rank->coll, send, recv, block, BNET_UINT8));
	for (size_t i = 0; i < (size_t)rank->nranks * block; i++)
		check_int(recv[i], (int)(i / block) + 1);
	for (int root = 0; root < rank->nranks; root++) {
		check_ok(rank, bnet_coll_scatter(rank->coll, send, recv, block, BNET_UINT8, root));
		for (size_t i = 0; i < block; i++)
			check_int(recv[i], root + 1);
	}
	pthread_barrier_wait(&rank->group->barrier);
	atomic_store(&hidden, NULL);
	free(send);
	free(recv);
}

/* Whoever waits for a rank that reads sees that it goes on. */
static void tells_that_it_moves(struct rank *rank)
{
	const size_t bytes = (size_t)64 << 20;
	char *buf = malloc(bytes), *got = malloc(bytes);
	bool able;

	check(buf != NULL && got != NULL);
	memset(buf, 1, bytes);
	check_ok(rank, bnet_coll_direct_able(rank->coll, &able));
	rank->group->shared[rank->rank] = buf;
	pthread_barrier_wait(&rank->group->barrier);
	if (rank->rank == 0 && able) {
		const struct bnet_shared_line *line = bnet_segment_line(&rank->coll->host.segment, 0);
		const uint32_t before = atomic_load(&line->moved);

		check_ok(rank, bnet_coll_direct_read(rank->coll, 1, (uintptr_t)rank->group->shared[1], got, bytes));
		check(atomic_load(&line->moved) > before + 1);
	}
	pthread_barrier_wait(&rank->group->barrier);
	free(buf);
	free(got);
}

/* A root that did not wait would be back long before this many yields. */
#define YIELDS 20000

/* The root overwrites its buffer as soon as it has it back; rank 1 reads late, though the root has begun. */
static void keeps_what_is_read(struct rank *rank)
{
	enum { BYTES = 1 << 20 };
	char *all = malloc((size_t)rank->nranks * BYTES), *own = malloc(BYTES);
	struct group *group = rank->group;
	bool able;

	check(all != NULL && own != NULL);
	memset(all, 1, (size_t)rank->nranks * BYTES);
	check_ok(rank, bnet_coll_direct_able(rank->coll, &able));
	if (rank->rank == 1) {
		const struct bnet_segment *segment = &rank->coll->host.segment;

		while (atomic_load(&bnet_segment_line(segment, 0)->put) <= rank->coll->host.round)
			sched_yield();
		for (int i = 0; i < YIELDS && !atomic_load(&group->flag); i++)
			sched_yield();
	}
	check_ok(rank, bnet_coll_scatter(rank->coll, all, own, BYTES, BNET_UINT8, 0));
	if (rank->rank == 0) {
		memset(all, 2, (size_t)rank->nranks * BYTES);
		atomic_store(&group->flag, true);
	}
	for (size_t i = 0; i < BYTES && rank->rank != 0; i++)
		check_int(own[i], 1);
	pthread_barrier_wait(&group->barrier);
	free(all);
	free(own);
}

int main(void)
{
	setenv("NCCL_SOCKET_IFNAME", "lo", 1);
	alarm(DEADLINE_S);
	for (int nranks = 2; nranks <= (is_nightly() ? 4 : 2); nranks++)
		run_group(&(struct group){.prepare = connect_rank, .shares = true}, 12, nranks, reads_large_blocks);
	run_group(&(struct group){.prepare = connect_blindly, .shares = true}, 12, 3, goes_through_banks);
	run_group(&(struct group){.prepare = connect_rank, .shares = true}, 12, 2, reads_after_the_end);
	run_group(&(struct group){.prepare = connect_rank, .shares = true}, 12, 3, moves_hidden_blocks);
	run_group(&(struct group){.prepare = connect_rank, .shares = true}, 12, 2, tells_that_it_moves);
	run_group(&(struct group){.prepare = connect_rank, .shares = true}, 12, 2, names_who_has_ended);
	run_group(&(struct group){.prepare = connect_rank, .shares = true}, 12, 2, keeps_what_is_read);
	return 0;
}
