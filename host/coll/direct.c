/* SPDX-License-Identifier: MIT
 *
 * See direct.h.
 */
#include "coll/direct.h"

#include <errno.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

#include "common/clock.h"
#include "coll/round.h"
#include "coll/size.h"
#include "shared/wait.h"

/* Of one call: between two, an abort or an interruption is noticed. */
#define PIECE ((size_t)16 * 1024 * 1024)

/* 0 or -errno. */
static int read_piece(pid_t process, uint64_t from, void *to, size_t bytes)
{
	const struct iovec here = {to, bytes}, there = {(void *)(uintptr_t)from, bytes};
	const ssize_t got = process_vm_readv(process, &here, 1, &there, 1, 0);

	if (got < 0)
		return -errno;
	return (size_t)got == bytes ? 0 : -EFAULT;
}

/* ---- who can ---- */

/* What a member puts into its bank so that the others can try. */
struct trial {
	int64_t process;
	uint64_t token_at;
	uint64_t token;
};

/* Only a process that the number means, and whose memory may be read, has the token there. */
static bool try_member(struct bnet_coll_host *host, int member, const struct trial *trial)
{
	uint64_t token = 0;

	host->processes[member] = (pid_t)trial->process;
	return host->same_pid_namespace[member] &&
	       read_piece(host->processes[member], trial->token_at, &token, sizeof(token)) == 0 &&
	       token == trial->token;
}

/* One round: puts `bytes` bytes of `own`, and hands what each member has put to `take`. */
static int exchange(struct bnet_coll *coll, const void *own, size_t bytes,
		    bool (*take)(struct bnet_coll_host *host, int member, const void *theirs), bool *all)
{
	char *bank;
	int rc = bnet_coll_round_begin(coll, &bank);

	if (rc != 0)
		return rc;
	memcpy(bank, own, bytes);
	bnet_coll_round_put(coll);
	for (int step = 1; step < coll->host.count; step++) {
		const int member = bnet_coll_host_member(&coll->host, step);
		const char *theirs;

		rc = bnet_coll_round_from(coll, member, &theirs);
		if (rc != 0)
			return rc;
		*all &= take(&coll->host, member, theirs);
	}
	bnet_coll_round_end(coll);
	return 0;
}

static bool take_trial(struct bnet_coll_host *host, int member, const void *theirs)
{
	struct trial trial;

	memcpy(&trial, theirs, sizeof(trial));
	return try_member(host, member, &trial);
}

static bool take_verdict(struct bnet_coll_host *host, int member, const void *theirs)
{
	(void)host, (void)member;
	return *(const char *)theirs == 1;
}

int bnet_coll_direct_able(struct bnet_coll *coll, bool *able)
{
	struct bnet_coll_host *host = &coll->host;
	struct trial own = {.process = getpid(), .token_at = (uintptr_t)&host->token};
	bool all = true;
	char verdict;
	int rc;

	*able = host->direct == BNET_COLL_DIRECT_ABLE;
	if (host->direct != BNET_COLL_DIRECT_UNTRIED)
		return 0;
	own.token = host->token = bnet_random();
	rc = exchange(coll, &own, sizeof(own), take_trial, &all);
	verdict = all;
	if (rc == 0)
		rc = exchange(coll, &verdict, sizeof(verdict), take_verdict, &all);
	if (rc != 0)
		return rc;
	host->direct = all ? BNET_COLL_DIRECT_ABLE : BNET_COLL_DIRECT_UNABLE;
	*able = all;
	return 0;
}

/* What a device's driver has mapped, as pinned memory of some accelerators, cannot be read from outside. A buffer is
 * mapped as a whole. */
bool bnet_coll_direct_readable(const struct bnet_coll_blocks *blocks, int count)
{
	char byte;

	for (int member = 0; member < count; member++) {
		if (bnet_coll_block_bytes(blocks, member) < BNET_COLL_DIRECT_MIN)
			continue;
		if (read_piece(getpid(), (uintptr_t)bnet_coll_block_at(blocks, member), &byte, sizeof(byte)) != 0)
			return false;
		if (blocks->each == NULL)
			return true;
	}
	return true;
}

/* ---- reading ---- */

/* A process that ends loses its memory before its locks. */
static int read_failed(struct bnet_coll *coll, int member, int rc)
{
	const int gone = rc == -ESRCH ? bnet_coll_round_left(coll, member) : bnet_coll_round_present(coll, member);

	return gone != 0 ? gone
			 : bnet_coll_fail(coll, rc, "%s: rank %d cannot read the memory of rank %d: error %d",
					  coll->operation, coll->rank, coll->host.ranks[member], -rc);
}

int bnet_coll_direct_read(struct bnet_coll *coll, int member, uint64_t from, char *to, size_t bytes)
{
	const pid_t process = coll->host.processes[member];
	int rc = 0;

	for (size_t at = 0; at < bytes && rc == 0; at += PIECE) {
		rc = read_piece(process, from + at, to + at, bnet_coll_min(PIECE, bytes - at));
		rc = rc == 0 ? bnet_coll_round_present(coll, member) : read_failed(coll, member, rc);
		bnet_shared_moved(&coll->host.segment); /* the owner waits, and perhaps others */
	}
	return rc;
}
