/* SPDX-License-Identifier: MIT
 *
 * Messages within a host are read out of the sender's memory, and sent where the kernel does not let them be read.
 */
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bagua_net.h"
#include "bagua_net_host.h"
#include "check.h"
#include "ranks.h"
#include "tagged/pull.h"

#define DEADLINE_S 250 /* of the whole program */

enum { BYTES = 5000001, MESSAGES = 3 };

static unsigned char value_of(size_t i, int message)
{
	return (unsigned char)(i * 7 + i / 251 + (size_t)message);
}

/* ---- one call ---- */

static void only_what_is_offered_is_read(void)
{
	static char source[1000], target[1000];
	static uint64_t token = 77;
	struct bnet_tagged_offer offer = {.process = getpid(),
					  .buffer = (uintptr_t)source,
					  .token_at = (uintptr_t)&token,
					  .token = 77};
	int status;

	memset(source, 5, sizeof(source));
	check_int(bnet_tagged_pull(&offer, target, sizeof(target)), 0);
	check(memcmp(source, target, sizeof(target)) == 0);
	token = 0;
	check_int(bnet_tagged_pull(&offer, target, sizeof(target)), -ESTALE);
	offer.buffer = 8; /* not mapped */
	check_int(bnet_tagged_pull(&offer, target, sizeof(target)), -ESTALE);
	offer.process = fork();
	if (offer.process == 0)
		_exit(0);
	check_int(waitpid((pid_t)offer.process, &status, 0), (int)offer.process);
	check_int(bnet_tagged_pull(&offer, target, sizeof(target)), -ESRCH);
}

/* ---- messages ---- */

static void finish(bnet_tagged_t *tagged, int operations)
{
	while (operations > 0) {
		bnet_tagged_done_t done[MESSAGES];
		int count = bnet_tagged_progress(tagged, done, MESSAGES);

		check(count > 0);
		for (int i = 0; i < count; i++, operations--)
			check_int(done[i].rc, 0);
	}
}

static void one_way(struct rank *rank)
{
	unsigned char *bufs[MESSAGES];
	bnet_tagged_t *tagged;

	check_int(bnet_tagged_create(&tagged, rank->coll, rank->group->rows), 0);
	rank->coll = NULL;
	for (int m = 0; m < MESSAGES; m++) {
		bufs[m] = calloc(1, BYTES);
		check(bufs[m] != NULL);
		for (size_t i = 0; i < BYTES && rank->rank == 0; i++)
			bufs[m][i] = value_of(i, m);
		if (rank->rank == 0)
			check_int(bnet_tagged_send(tagged, bufs[m], BYTES, 1, m, (uint64_t)m), 0);
		else /* in another order than they are sent */
			check_int(bnet_tagged_recv(tagged, bufs[m], BYTES, 0, MESSAGES - 1 - m, (uint64_t)m), 0);
	}
	finish(tagged, MESSAGES);
	for (int m = 0; m < MESSAGES; m++) {
		for (size_t i = 0; i < BYTES && rank->rank == 1; i++)
			check_int(bufs[m][i], value_of(i, MESSAGES - 1 - m));
		free(bufs[m]);
	}
	pthread_barrier_wait(&rank->group->barrier);
	bnet_tagged_destroy(tagged);
}

static uint64_t sent_by(struct group group)
{
	bnet_counters_t before, after;

	bnet_counters(&before);
	run_group(&group, 12, 2, one_way);
	bnet_counters(&after);
	return after.bytes_sent - before.bytes_sent;
}

static int apart(int rank)
{
	return rank;
}

/* From here on process_vm_readv fails in this process, as in a container that forbids it. */
static void forbid_reading(void)
{
	struct sock_filter rules[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_process_vm_readv, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	const struct sock_fprog program = {.len = sizeof(rules) / sizeof(rules[0]), .filter = rules};

	check_int(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
	check_int(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program), 0);
}

int main(void)
{
	const uint64_t payload = (uint64_t)MESSAGES * BYTES;

	setenv("NCCL_SOCKET_IFNAME", "lo", 1);
	alarm(DEADLINE_S);
	only_what_is_offered_is_read();
	check(sent_by((struct group){.shares = true}) < payload / 100);
	check(sent_by((struct group){.shares = true, .host_of = apart}) >= payload);
	check(sent_by((struct group){0}) >= payload);
	forbid_reading();
	check(sent_by((struct group){.shares = true}) >= payload);
	return 0;
}
