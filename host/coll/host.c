/* SPDX-License-Identifier: MIT
 *
 * See host.h.
 */
#include "coll/host.h"

#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

void bnet_coll_host_init(struct bnet_coll_host *host)
{
	*host = (struct bnet_coll_host){.segment = BNET_SEGMENT_NONE, .passing = BNET_FD_PASSING_NONE};
}

void bnet_coll_host_open(struct bnet_coll_host *host, struct bnet_peer_info *info)
{
	bnet_fd_passing_open(&host->passing);
	*info = host->passing.info;
}

/* ---- who is here ---- */

static struct bnet_peer_info info_at(const char *infos, size_t stride, int rank)
{
	struct bnet_peer_info info;

	memcpy(&info, infos + (size_t)rank * stride, sizeof(info));
	return info;
}

/* The first rank on the same host: the rank itself if it shares no memory. */
static int first_of(const char *infos, size_t stride, int rank)
{
	const struct bnet_peer_info info = info_at(infos, stride, rank);

	for (int other = 0; other < rank; other++) {
		const struct bnet_peer_info there = info_at(infos, stride, other);

		if (bnet_peer_info_same_host(&there, &info))
			return other;
	}
	return rank;
}

static bool processors_suffice(int ranks)
{
	cpu_set_t set;

	return sched_getaffinity(0, sizeof(set), &set) == 0 && ranks <= CPU_COUNT(&set);
}

/* The number of each rank's host, in the order of their first ranks; returns how many there are. */
static int number_hosts(const char *infos, size_t stride, int nranks, int *numbers)
{
	int hosts = 0;

	for (int rank = 0; rank < nranks; rank++) {
		const int first = first_of(infos, stride, rank);

		numbers[rank] = first == rank ? hosts++ : numbers[first];
	}
	return hosts;
}

/* Returns false where hosts have different numbers of members. */
static bool fill_grid(struct bnet_coll_host *host, const int *numbers, int hosts, int nranks)
{
	if (hosts * host->count != nranks)
		return false;
	for (int at = 0; at < hosts; at++) {
		int members = 0;

		for (int rank = 0; rank < nranks; rank++) {
			if (numbers[rank] != at)
				continue;
			if (members == host->count)
				return false;
			host->grid[members++ * hosts + at] = rank;
		}
	}
	return true;
}

/* Everything that has one element for each rank. */
static bool allocate(struct bnet_coll_host *host, size_t nranks)
{
	host->ranks = calloc(nranks, sizeof(host->ranks[0]));
	host->grid = calloc(nranks, sizeof(host->grid[0]));
	host->places = calloc(nranks, sizeof(host->places[0]));
	host->same_pid_namespace = calloc(nranks, sizeof(host->same_pid_namespace[0]));
	host->processes = calloc(nranks, sizeof(host->processes[0]));
	return host->ranks != NULL && host->grid != NULL && host->places != NULL && host->same_pid_namespace != NULL &&
	       host->processes != NULL;
}

static void release(struct bnet_coll_host *host)
{
	free(host->ranks);
	free(host->grid);
	free(host->places);
	free(host->same_pid_namespace);
	free(host->processes);
	host->ranks = host->grid = NULL;
	host->places = NULL;
	host->same_pid_namespace = NULL;
	host->processes = NULL;
}

static void add_member(struct bnet_coll_host *host, const char *infos, size_t stride, int rank, int other)
{
	const struct bnet_peer_info own = info_at(infos, stride, rank), info = info_at(infos, stride, other);

	if (other == rank)
		host->index = host->count;
	host->same_pid_namespace[host->count] = bnet_peer_info_same_pid_namespace(&own, &info);
	host->ranks[host->count++] = other;
}

int bnet_coll_host_discover(struct bnet_coll_host *host, const char *infos, size_t stride, int rank, int nranks)
{
	int *numbers = calloc((size_t)nranks, sizeof(numbers[0]));
	int hosts;

	if (numbers == NULL || !allocate(host, (size_t)nranks)) {
		free(numbers);
		release(host);
		return -ENOMEM;
	}
	hosts = number_hosts(infos, stride, nranks, numbers);
	host->anywhere = hosts < nranks;
	host->here = numbers[rank];
	for (int other = 0; other < nranks; other++)
		if (numbers[other] == host->here)
			add_member(host, infos, stride, rank, other);
	host->hosts = fill_grid(host, numbers, hosts, nranks) ? hosts : 0;
	host->first = info_at(infos, stride, host->ranks[0]);
	host->spins = processors_suffice(host->count);
	host->settled = host->count == 1;
	free(numbers);
	return 0;
}

/* ---- the memory ---- */

static int give_or_take(struct bnet_coll_host *host)
{
	int rc = 0;

	if (host->index != 0)
		return bnet_fd_passing_receive(&host->passing, &host->first, host->count, host->index, &host->segment);
	if (host->segment.fd < 0)
		rc = bnet_segment_create(&host->segment, host->count);
	return rc != 0 ? rc : bnet_fd_passing_send(&host->passing, &host->segment);
}

bool bnet_coll_host_step(struct bnet_coll_host *host, bool all_have_asked)
{
	int rc;

	if (host->settled)
		return false;
	rc = give_or_take(host);
	if (rc == -EAGAIN && host->index == 0 && all_have_asked)
		rc = -EPROTO;
	if (rc == -EAGAIN)
		return true;
	host->settled = true;
	host->failed = rc;
	bnet_fd_passing_close(&host->passing); /* those that have not asked yet learn that it is in vain */
	return false;
}

void bnet_coll_host_agreed(struct bnet_coll_host *host, bool shared)
{
	host->shared = shared && host->count > 1;
	bnet_fd_passing_close(&host->passing);
	if (!host->shared)
		bnet_segment_leave(&host->segment, "");
}

void bnet_coll_host_close(struct bnet_coll_host *host, const char *reason)
{
	host->shared = false;
	bnet_fd_passing_close(&host->passing);
	bnet_segment_leave(&host->segment, reason);
	release(host);
	host->count = host->hosts = 0;
}
