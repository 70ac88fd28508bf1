/* SPDX-License-Identifier: MIT
 *
 * Ranks of one host that share memory, as processes of their own: each kind of end is noticed and named by the others,
 * and nothing is left behind.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bagua_net.h"
#include "bagua_net_host.h"
#include "check.h"
#include "coll/coll.h"

#define RANKS 3
#define TIMEOUT_S 60
#define DEADLINE_S 250

/* What the processes tell each other outside the group. */
struct board {
	char rows[RANKS][RANKS * NCCL_NET_HANDLE_MAXSIZE];
	atomic_int written;
	atomic_int done;
	atomic_int runs; /* so far: all else begins anew with each */
};

static struct board *board;

static void reach(atomic_int *count, int target)
{
	atomic_fetch_add(count, 1);
	while (atomic_load(count) < target)
		usleep(1000);
}

static bnet_coll_t *join(int rank)
{
	bnet_coll_t *coll;

	check_int(bnet_coll_create(&coll, bnet_net_table(12), 12, 0, rank, RANKS), 0);
	bnet_coll_share(coll);
	check_int(bnet_coll_listen(coll, board->rows[rank]), 0);
	reach(&board->written, RANKS);
	check_int(bnet_coll_connect(coll, board->rows, TIMEOUT_S), 0);
	return coll;
}

static int allreduce(bnet_coll_t *coll, float *buf, size_t count)
{
	return bnet_coll_allreduce(coll, buf, buf, count, BNET_FLOAT32, BNET_SUM, BNET_ALGO_AUTO);
}

static void expect(const bnet_coll_t *coll, int rc, int expected, const char *word)
{
	if (rc != expected || strstr(bnet_coll_error(coll), word) == NULL)
		fprintf(stderr, "rank %d: %d, expected %d and \"%s\": %s\n", coll->rank, rc, expected, word,
			bnet_coll_error(coll));
	check_int(rc, expected);
	check(strstr(bnet_coll_error(coll), word) != NULL);
}

/* ---- what the ranks do ---- */

/* Rank 2 is killed while the others wait for it. A child that it has forked lives on, with its descriptors. */
static void killed(bnet_coll_t *coll, float *buf)
{
	check_int(allreduce(coll, buf, 1000), 0);
	if (coll->rank == 2) {
		const int run = atomic_load(&board->runs);

		if (fork() == 0) {
			alarm(DEADLINE_S);
			while (atomic_load(&board->done) < RANKS - 1 && atomic_load(&board->runs) == run)
				usleep(1000);
			_exit(0);
		}
		kill(getpid(), SIGKILL);
	}
	/* Who notices first leaves, and the other may wait for that one. */
	check_int(allreduce(coll, buf, 1000), -ECONNRESET);
	check(strstr(bnet_coll_error(coll), "process of rank 2, on this host, has ended") != NULL);
	atomic_fetch_add(&board->done, 1);
}

static void leaves(bnet_coll_t *coll, float *buf)
{
	check_int(allreduce(coll, buf, 100000), 0);
	if (coll->rank == 0)
		return;
	expect(coll, allreduce(coll, buf, 100000), -ECONNRESET, "has left the group");
	expect(coll, bnet_coll_barrier(coll), -ECONNRESET, "has left the group");
}

/* Ranks that call different operations are told what each of them called. */
static void differ(bnet_coll_t *coll, float *buf)
{
	const int rc = coll->rank == 1 ? bnet_coll_broadcast(coll, buf, 4000, BNET_UINT8, 1)
				       : allreduce(coll, buf, 1000);
	const char *text = bnet_coll_error(coll);

	if (coll->rank != 1) {
		check(rc == -EPROTO || rc == -ECONNRESET);
		expect(coll, rc, rc, "broadcast (operation 1 of the group, 4000 bytes, root 1)");
		expect(coll, rc, rc, "allreduce (operation 1 of the group, 4000 bytes, sum of float32)");
		return;
	}
	/* Rank 1 may have been done with the broadcast before the others noticed. */
	expect(coll, rc != 0 ? rc : bnet_coll_barrier(coll), -ECONNRESET, "different operations");
	check(strstr(text, "allreduce") != NULL);
}

/* Each rank takes itself for the root, puts its own, and waits for nobody. */
static void differ_in_root(bnet_coll_t *coll, float *buf)
{
	int rc = bnet_coll_broadcast(coll, buf, 4000, BNET_UINT8, coll->rank);

	if (rc == 0)
		rc = allreduce(coll, buf, 1000);
	check(rc == -EPROTO || rc == -ECONNRESET);
	expect(coll, rc, rc, "broadcast (operation 1 of the group, 4000 bytes, root ");
	expect(coll, rc, rc, "all must give the same size, type, reduction and root");
}

/* … also where only such rounds follow. */
static void differ_in_root_for_long(bnet_coll_t *coll, float *buf)
{
	int rc = 0;

	for (int i = 0; i < 4 && rc == 0; i++)
		rc = bnet_coll_broadcast(coll, buf, 4000, BNET_UINT8, coll->rank);
	check(rc == -EPROTO || rc == -ECONNRESET);
	expect(coll, rc, rc, "broadcast (operation 1 of the group, 4000 bytes, root ");
}

/* The rounds of one operation are not compared with those of the next. */
static void roots_alternate(bnet_coll_t *coll, float *buf)
{
	for (int i = 0; i < 30; i++)
		check_int(bnet_coll_broadcast(coll, buf, 4000, BNET_UINT8, i % RANKS), 0);
	check_int(bnet_coll_barrier(coll), 0);
}

static void differ_in_type(bnet_coll_t *coll, float *buf)
{
	const int rc =
		bnet_coll_allreduce(coll, buf, buf, 1000, BNET_FLOAT32, coll->rank == 0 ? BNET_MAX : BNET_SUM, 0);

	check(rc == -EPROTO || rc == -ECONNRESET);
	expect(coll, rc, rc, "maximum of float32");
	expect(coll, rc, rc, "sum of float32");
	check(rc != -EPROTO || strstr(bnet_coll_error(coll), "pad what is uneven") != NULL);
}

static void late(bnet_coll_t *coll, float *buf)
{
	if (coll->rank != 0) {
		while (atomic_load(&board->done) == 0)
			usleep(1000);
		return;
	}
	bnet_coll_set_timeout(coll, 0.2);
	expect(coll, allreduce(coll, buf, 1000), -ETIMEDOUT, "waited 0.2 s for rank 1, on this host");
	atomic_store(&board->done, 1);
}

/* NCCL_HOSTID divides the machine: rank 2 is alone, and then all use the network. */
static void divided(bnet_coll_t *coll, float *buf)
{
	check(!bnet_coll_is_local(coll));
	check_int(allreduce(coll, buf, 1000), 0);
}

/* ---- processes ---- */

static int descriptors(void)
{
	int count = 0;

	for (int fd = 0; fd < 1024; fd++)
		count += fcntl(fd, F_GETFD) >= 0;
	return count;
}

static void rank_main(int rank, void (*body)(bnet_coll_t *, float *))
{
	float *buf = calloc(100000, sizeof(float));
	bnet_coll_t *coll;

	check(buf != NULL);
	if (body == divided && rank == 2)
		setenv("NCCL_HOSTID", "another", 1);
	coll = join(rank);
	if (body != divided) {
		check(coll->host.shared);
		check_int(coll->host.count, RANKS);
		check_int(coll->host.index, rank);
	}
	body(coll, buf);
	bnet_coll_destroy(coll);
	free(buf);
	check(descriptors() < 32);
	exit(0);
}

static void begin_run(void)
{
	memset(board->rows, 0, sizeof(board->rows));
	atomic_store(&board->written, 0);
	atomic_store(&board->done, 0);
	atomic_fetch_add(&board->runs, 1);
}

static void run(void (*body)(bnet_coll_t *, float *), int victim)
{
	pid_t pids[RANKS];

	begin_run();
	for (int rank = 0; rank < RANKS; rank++) {
		pids[rank] = fork();
		check(pids[rank] >= 0);
		if (pids[rank] == 0)
			rank_main(rank, body);
	}
	for (int rank = 0; rank < RANKS; rank++) {
		int status;

		check_int(waitpid(pids[rank], &status, 0), pids[rank]);
		check_int(status, rank == victim ? SIGKILL : 0);
	}
}

int main(void)
{
	setenv("NCCL_SOCKET_IFNAME", "lo", 1);
	alarm(DEADLINE_S);
	board = mmap(NULL, sizeof(*board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	check(board != MAP_FAILED);
	run(killed, 2);
	run(leaves, -1);
	run(differ, -1);
	run(differ_in_root, -1);
	run(differ_in_root_for_long, -1);
	run(roots_alternate, -1);
	run(differ_in_type, -1);
	run(late, -1);
	run(divided, -1);
	return 0;
}
