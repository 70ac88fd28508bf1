/* SPDX-License-Identifier: MIT
 *
 * See round.h.
 */
#include "coll/round.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "coll/check.h"
#include "coll/wait.h"
#include "shared/wait.h"

/* Longer than a change of thread on another processor takes. Where the ranks outnumber the processors, the one that is
 * waited for may need this very processor. */
#define SPIN_NS 20000

static struct bnet_shared_wait_limits limits_of(struct bnet_coll *coll)
{
	return (struct bnet_shared_wait_limits){.timeout_ns = coll->timeout_ns,
						.spin_ns = coll->host.spins ? SPIN_NS : 0,
						.aborted = &coll->aborted,
						.interrupted = coll->interrupted,
						.waited_ns = &coll->waited_ns};
}

/* ---- errors ---- */

int bnet_coll_round_left(struct bnet_coll *coll, int member)
{
	const struct bnet_shared_line *line = bnet_segment_line(&coll->host.segment, member);
	const int rank = coll->host.ranks[member];

	if (atomic_load(&line->state) != BNET_SHARED_LEFT)
		return bnet_coll_fail(coll, -ECONNRESET, "%s: the process of rank %d, on this host, has ended",
				      coll->operation, rank);
	return bnet_coll_fail(coll, -ECONNRESET, "%s: rank %d, on this host, has left the group: %.*s", coll->operation,
			      rank, BNET_SHARED_REASON - 1, line->reason);
}

_Static_assert(sizeof(struct bnet_shared_note) == sizeof(struct bnet_coll_call), "a note is a call");

static int differs(struct bnet_coll *coll, const struct bnet_shared_note *note, int rank)
{
	struct bnet_coll_call call;

	memcpy(&call, note, sizeof(call));
	return bnet_coll_check_differs(coll, &call, rank);
}

/* ---- who calls what ---- */

static struct bnet_shared_note *note_of(const struct bnet_coll *coll, int member, uint32_t round)
{
	return &bnet_segment_line(&coll->host.segment, member)->notes[round % BNET_SHARED_NOTES];
}

/* Has the member called the same in that round? It may be one of an operation that is over by now. */
static int compare(struct bnet_coll *coll, int member, uint32_t round)
{
	const struct bnet_shared_note *own = note_of(coll, coll->host.index, round);
	const struct bnet_shared_note *note = note_of(coll, member, round);
	const struct bnet_coll_call now = coll->call;
	int rc;

	if (memcmp(own, note, sizeof(*note)) == 0)
		return 0;
	memcpy(&coll->call, own, sizeof(coll->call));
	rc = differs(coll, note, coll->host.ranks[member]);
	coll->call = now;
	return rc;
}

/* Several roots: each of them puts, and waits for nobody. All members have ended that round. */
static int compare_all(struct bnet_coll *coll, uint32_t round)
{
	struct bnet_coll_host *host = &coll->host;
	int rc = 0;

	for (int step = 1; step < host->count && rc == 0 && host->unread[round % BNET_SHARED_NOTES]; step++)
		rc = compare(coll, bnet_coll_host_member(host, step), round);
	return rc;
}

/* It does not come to this round, and may be waiting for this rank's call in the network. */
static int does_something_else(struct bnet_coll *coll, int member)
{
	const int rank = coll->host.ranks[member];
	struct bnet_shared_note note;

	if (!bnet_shared_current(&coll->host.segment, member, &note))
		return bnet_coll_fail(coll, -EPROTO, "%s: rank %d calls another operation", coll->operation, rank);
	bnet_coll_check_tell(coll, rank);
	return differs(coll, &note, rank);
}

static int wait_failed(struct bnet_coll *coll, int member, int rc)
{
	if (rc == -ECONNRESET)
		return bnet_coll_round_left(coll, member);
	if (rc == -EPROTO)
		return does_something_else(coll, member);
	if (rc == -ECANCELED || rc == -EINTR)
		return bnet_coll_given_up(coll, rc);
	return bnet_coll_fail(coll, rc,
			      "%s: rank %d waited %.3g s for rank %d, on this host; is that process running, and does "
			      "it call the same operations in the same order?",
			      coll->operation, coll->rank, (double)coll->timeout_ns / 1e9, coll->host.ranks[member]);
}

/* ---- a round ---- */

static int await_all(struct bnet_coll *coll, uint32_t round)
{
	struct bnet_coll_host *host = &coll->host;
	const struct bnet_shared_wait_limits limits = limits_of(coll);

	for (int step = 1; step < host->count; step++) {
		const int member = bnet_coll_host_member(host, step);
		int rc = bnet_shared_await(&host->segment, member, BNET_SHARED_GOT, round, &limits);

		if (rc != 0)
			return wait_failed(coll, member, rc);
	}
	return 0;
}

int bnet_coll_round_begin(struct bnet_coll *coll, char **bank)
{
	struct bnet_coll_host *host = &coll->host;
	const uint32_t round = ++host->round;
	int rc = bnet_coll_step(coll);

	if (rc != 0)
		return bnet_coll_given_up(coll, rc);
	rc = await_all(coll, round - BNET_SHARED_BANKS);
	if (rc == 0)
		rc = compare_all(coll, round - BNET_SHARED_BANKS);
	if (rc != 0)
		return rc;
	memcpy(note_of(coll, host->index, round), &coll->call, sizeof(coll->call));
	host->compared = 0;
	*bank = bnet_segment_bank(&host->segment, host->index, round);
	return 0;
}

void bnet_coll_round_put(struct bnet_coll *coll)
{
	bnet_shared_publish(&coll->host.segment, BNET_SHARED_PUT, coll->host.round);
}

int bnet_coll_round_from(struct bnet_coll *coll, int member, const char **bank)
{
	struct bnet_coll_host *host = &coll->host;
	const struct bnet_shared_wait_limits limits = limits_of(coll);
	const uint32_t before = host->round - 1;
	int rc = bnet_shared_await(&host->segment, member, BNET_SHARED_PUT, host->round, &limits);

	if (rc != 0)
		return wait_failed(coll, member, rc);
	if (host->unread[before % BNET_SHARED_NOTES])
		rc = compare(coll, member, before);
	if (rc == 0)
		rc = compare(coll, member, host->round);
	if (rc != 0)
		return rc;
	host->compared++;
	*bank = bnet_segment_bank(&host->segment, member, host->round);
	return 0;
}

void bnet_coll_round_end(struct bnet_coll *coll)
{
	struct bnet_coll_host *host = &coll->host;

	host->unread[host->round % BNET_SHARED_NOTES] = host->compared < host->count - 1;
	bnet_shared_publish(&coll->host.segment, BNET_SHARED_GOT, coll->host.round);
}

int bnet_coll_round_taken(struct bnet_coll *coll)
{
	return await_all(coll, coll->host.round);
}

int bnet_coll_round_present(struct bnet_coll *coll, int member)
{
	const struct bnet_segment *segment = &coll->host.segment;
	const int rc = bnet_coll_wanted(coll);

	if (rc != 0)
		return bnet_coll_given_up(coll, rc);
	if (atomic_load(&bnet_segment_line(segment, member)->state) == BNET_SHARED_LEFT ||
	    bnet_segment_process_gone(segment, member))
		return bnet_coll_round_left(coll, member);
	return 0;
}
