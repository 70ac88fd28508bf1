/* SPDX-License-Identifier: MIT
 *
 * NCCL without a GPU, from C: an allreduce between two processes.
 *
 *     at=$(dirname "$(bagua-net path)")
 *     cc -I"$at" two_ranks.c -o two_ranks "$at/libbagua-net-emulator.so" -Wl,-rpath,"$at"
 *     NCCL_NET_PLUGIN=/path/libnccl-net-yours.so NCCL_NET=Yours NCCL_DEBUG=INFO ./two_ranks /path/libnccl.so.2
 */
#include <bagua_net_emulator.h>

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

enum { RANKS = 2, COUNT = 1 << 20, FLOAT32 = 7, SUM = 0 };

/* nccl.h declares these; a program with the header includes that instead. */
struct id {
	char internal[128];
};
typedef int get_unique_id_fn(struct id *id);
typedef int comm_init_rank_fn(void **comm, int ranks, struct id id, int rank);
typedef int all_reduce_fn(const void *send, void *receive, size_t count, int type, int op, void *comm, void *stream);
typedef int comm_destroy_fn(void *comm);

static void check(int failed, const char *what)
{
	if (failed) {
		fprintf(stderr, "%s failed (%d). %s\n", what, failed, emu_problem());
		exit(1);
	}
}

static void *function(void *nccl, const char *name)
{
	void *found = dlsym(nccl, name);

	check(!found, name);
	return found;
}

/* Rank 0 writes its id to the pipe for the other one. */
static struct id agree(void *nccl, int rank, const int pipe[2])
{
	struct id id;

	if (rank == 0) {
		check(((get_unique_id_fn *)function(nccl, "ncclGetUniqueId"))(&id), "ncclGetUniqueId");
		check(write(pipe[1], &id, sizeof(id)) != sizeof(id), "write");
	} else {
		check(read(pipe[0], &id, sizeof(id)) != sizeof(id), "read");
	}
	return id;
}

static void run(const char *library, int rank, const int pipe[2])
{
	char error[256];
	void *comm, *stream, *nccl = emu_open(library, error, sizeof(error));
	float *values = malloc(COUNT * sizeof(float));
	int wrong = 0;

	if (!nccl) {
		fprintf(stderr, "%s\n", error);
		exit(1);
	}
	check(!values, "malloc");
	for (int i = 0; i < COUNT; i++)
		values[i] = (float)(i % 1000 + rank);
	check(((comm_init_rank_fn *)function(nccl, "ncclCommInitRank"))(&comm, RANKS, agree(nccl, rank, pipe), rank),
	      "ncclCommInitRank");
	stream = emu_stream_create();
	check(!stream, "emu_stream_create");
	check(((all_reduce_fn *)function(nccl, "ncclAllReduce"))(values, values, COUNT, FLOAT32, SUM, comm, stream),
	      "ncclAllReduce");
	check(emu_stream_synchronize(stream), "emu_stream_synchronize");
	for (int i = 0; i < COUNT; i++)
		wrong += values[i] != (float)(2 * (i % 1000) + 1);
	check(((comm_destroy_fn *)function(nccl, "ncclCommDestroy"))(comm), "ncclCommDestroy");
	emu_stream_destroy(stream);
	free(values);
	printf("rank %d: %d elements, %d wrong\n", rank, COUNT, wrong);
	exit(wrong != 0);
}

int main(int argc, char **argv)
{
	int ends[2], status = 0;

	if (argc != 2) {
		fprintf(stderr, "usage: two_ranks LIBNCCL\n");
		return 2;
	}
	check(pipe(ends), "pipe");
	for (int rank = 0; rank < RANKS; rank++)
		if (fork() == 0)
			run(argv[1], rank, ends);
	for (int rank = 0; rank < RANKS; rank++) {
		int one;

		wait(&one);
		status |= one;
	}
	return status != 0;
}
