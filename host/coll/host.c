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
	*host = (struct bnet_coll_host){.segment = BNET_SEGMENT_NONE, .passing = BNET_PASSING_NONE};
}

void bnet_coll_host_open(struct bnet_coll_host *host, struct bnet_shared_card *card)
{
	bnet_passing_open(&host->passing);
	*card = host->passing.card;
}

/* ---- who is here ---- */

static struct bnet_shared_card card_at(const char *cards, size_t stride, int rank)
{
	struct bnet_shared_card card;

	memcpy(&card, cards + (size_t)rank * stride, sizeof(card));
	return card;
}

/* The first rank on the same host: the rank itself if it shares no memory. */
static int first_of(const char *cards, size_t stride, int rank)
{
	const struct bnet_shared_card card = card_at(cards, stride, rank);

	for (int other = 0; other < rank; other++) {
		const struct bnet_shared_card there = card_at(cards, stride, other);

		if (bnet_shared_card_same_host(&there, &card))
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
static int number_hosts(const char *cards, size_t stride, int nranks, int *numbers)
{
	int hosts = 0;

	for (int rank = 0; rank < nranks; rank++) {
		const int first = first_of(cards, stride, rank);

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
	host->in_sight = calloc(nranks, sizeof(host->in_sight[0]));
	host->processes = calloc(nranks, sizeof(host->processes[0]));
	return host->ranks != NULL && host->grid != NULL && host->places != NULL && host->in_sight != NULL &&
	       host->processes != NULL;
}

static void add_member(struct bnet_coll_host *host, const char *cards, size_t stride, int rank, int other)
{
	const struct bnet_shared_card own = card_at(cards, stride, rank), card = card_at(cards, stride, other);

	if (other == rank)
		host->index = host->count;
	host->in_sight[host->count] = bnet_shared_card_same_processes(&own, &card);
	host->ranks[host->count++] = other;
}

int bnet_coll_host_meet(struct bnet_coll_host *host, const char *cards, size_t stride, int rank, int nranks)
{
	int *numbers = calloc((size_t)nranks, sizeof(numbers[0]));
	int hosts;

	if (numbers == NULL || !allocate(host, (size_t)nranks)) {
		free(numbers);
		return -ENOMEM;
	}
	hosts = number_hosts(cards, stride, nranks, numbers);
	host->anywhere = hosts < nranks;
	host->here = numbers[rank];
	for (int other = 0; other < nranks; other++)
		if (numbers[other] == host->here)
			add_member(host, cards, stride, rank, other);
	host->hosts = fill_grid(host, numbers, hosts, nranks) ? hosts : 0;
	host->first = card_at(cards, stride, host->ranks[0]);
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
		return bnet_passing_take(&host->passing, &host->first, host->count, host->index, &host->segment);
	if (host->segment.fd < 0)
		rc = bnet_segment_create(&host->segment, host->count);
	return rc != 0 ? rc : bnet_passing_give(&host->passing, &host->segment);
}

bool bnet_coll_host_step(struct bnet_coll_host *host)
{
	int rc;

	if (host->settled)
		return false;
	rc = give_or_take(host);
	if (rc == -EAGAIN)
		return true;
	host->settled = true;
	host->failed = rc;
	bnet_passing_close(&host->passing); /* those that have not asked yet learn that it is in vain */
	return false;
}

bool bnet_coll_host_able(const struct bnet_coll_host *host)
{
	return host->settled && host->failed == 0;
}

void bnet_coll_host_agreed(struct bnet_coll_host *host, bool shared)
{
	host->shared = shared && host->count > 1;
	bnet_passing_close(&host->passing);
	if (!host->shared)
		bnet_segment_leave(&host->segment, "");
}

void bnet_coll_host_close(struct bnet_coll_host *host, const char *reason)
{
	host->shared = false;
	bnet_passing_close(&host->passing);
	bnet_segment_leave(&host->segment, reason);
	free(host->ranks);
	free(host->grid);
	free(host->places);
	free(host->in_sight);
	free(host->processes);
	host->ranks = host->grid = NULL;
	host->places = NULL;
	host->in_sight = NULL;
	host->processes = NULL;
	host->count = host->hosts = 0;
}
