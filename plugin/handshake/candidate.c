/* SPDX-License-Identifier: MIT
 *
 * See candidate.h.
 */
#include "handshake/candidate.h"

#include <netinet/in.h>
#include <string.h>

#include "base/address.h"
#include "device/local.h"

/* A link may come back: it is tried again after a pause, which doubles each time, so that one that flaps is left alone.
 * The only one is not missed: without it connections go by the kernel's route, and to find out once more takes a
 * connection a quarter of a minute. */
#define FAILED_MS 10000
#define MAX_FAILED_MS 640000
#define ONLY_FAILED_MS 3600000

/* ---- which pair ---- */

static int least_common_multiple(int a, int b)
{
	int multiple = a;

	while (multiple % b)
		multiple += a;
	return multiple;
}

/* Both indices advance together, so that the first streams use as many NICs and addresses as possible. Each time both
 * are back at the start, the addresses shift by one and other pairs follow. */
void bnet_candidate_pick(int stream, int attempt, int nnics, int npeers, int *nic, int *peer)
{
	int first = stream + stream / least_common_multiple(nnics, npeers);

	*nic = (stream + attempt / npeers) % nnics;
	*peer = (first + attempt) % npeers;
}

int bnet_candidate_count(const struct bnet_conn *conn)
{
	return conn->dev->nmembers * conn->setup.npeers;
}

struct bnet_candidate bnet_candidate_of(const struct bnet_conn *conn, int stream, int attempt)
{
	int nic, peer;

	bnet_candidate_pick(stream, attempt, conn->dev->nmembers, conn->setup.npeers, &nic, &peer);
	return (struct bnet_candidate){.nic = conn->dev->members[nic], .peer = &conn->setup.peers[peer]};
}

struct sockaddr_storage bnet_candidate_target(const struct bnet_candidate *pair)
{
	struct sockaddr_storage addr = *pair->peer;
	struct sockaddr_in6 *in6 = (struct sockaddr_in6 *)&addr;

	/* An IPv6 scope is valid on one host only: the route is through this interface. */
	if (addr.ss_family == AF_INET6 && IN6_IS_ADDR_LINKLOCAL(&in6->sin6_addr))
		in6->sin6_scope_id = (uint32_t)pair->nic->ifindex;
	return addr;
}

const char *bnet_candidate_interface(const struct bnet_conn *conn, const struct bnet_candidate *pair)
{
	return !conn->sender || conn->setup.local || pair->nic->passive ? NULL : pair->nic->name;
}

/* ---- failed pairs ---- */

static struct bnet_failed_pair *find(struct bnet_failed_pairs *failed_pairs, const struct bnet_candidate *pair)
{
	for (int i = 0; i < BNET_FAILED_PAIRS; i++) {
		struct bnet_failed_pair *row = &failed_pairs->rows[i];

		if (row->nic == pair->nic &&
		    bnet_same_host((const struct sockaddr *)&row->addr, (const struct sockaddr *)pair->peer))
			return row;
	}
	return NULL;
}

static bool is_paused(const struct bnet_conn *conn, const struct bnet_failed_pair *row, uint64_t now_ms)
{
	return now_ms < row->until_ms || (bnet_candidate_count(conn) == 1 && now_ms < row->only_until_ms);
}

bool bnet_candidate_usable(const struct bnet_conn *conn, const struct bnet_candidate *pair, uint64_t now_ms)
{
	const struct bnet_failed_pair *row = find(conn->setup.failed_pairs, pair);

	return pair->nic->addr.ss_family == pair->peer->ss_family && !(row && is_paused(conn, row, now_ms));
}

bool bnet_candidate_is_due(const struct bnet_conn *conn, const struct bnet_candidate *pair, uint64_t now_ms)
{
	const struct bnet_failed_pair *row = find(conn->setup.failed_pairs, pair);

	return bnet_candidate_count(conn) > 1 && row && !is_paused(conn, row, now_ms);
}

/* Of all that try it at the same time the first one to fail counts. */
void bnet_candidate_failed(struct bnet_conn *conn, const struct bnet_candidate *pair, uint64_t now_ms)
{
	struct bnet_failed_pairs *failed_pairs = conn->setup.failed_pairs;
	struct bnet_failed_pair *row = find(failed_pairs, pair);

	if (row && is_paused(conn, row, now_ms))
		return;
	if (!row) {
		row = &failed_pairs->rows[failed_pairs->added++ % BNET_FAILED_PAIRS];
		*row = (struct bnet_failed_pair){.nic = pair->nic, .addr = *pair->peer};
	}
	if (row->pause_ms == 0 || now_ms >= row->until_ms + MAX_FAILED_MS)
		row->pause_ms = FAILED_MS;
	else
		row->pause_ms = 2 * row->pause_ms < MAX_FAILED_MS ? 2 * row->pause_ms : MAX_FAILED_MS;
	row->until_ms = now_ms + row->pause_ms;
	if (bnet_candidate_count(conn) == 1)
		row->only_until_ms = now_ms + ONLY_FAILED_MS;
}

/* ---- the peer's addresses ---- */

static void add_peer(struct bnet_setup *setup, const struct sockaddr_storage *addr)
{
	if (setup->npeers == BNET_ADDRESSES)
		return;
	for (int i = 0; i < setup->npeers; i++)
		if (memcmp(&setup->peers[i], addr, sizeof(*addr)) == 0)
			return;
	setup->peers[setup->npeers++] = *addr;
}

bool bnet_peer_is_local(const struct bnet_device *dev, const struct sockaddr_storage *addr)
{
	struct bnet_candidate pair = {.nic = dev->members[0], .peer = addr};
	struct sockaddr_storage target = bnet_candidate_target(&pair);

	return bnet_address_is_local((const struct sockaddr *)&target);
}

void bnet_peer_addresses_start(struct bnet_conn *conn, const struct sockaddr_storage *addr, bool local)
{
	conn->setup.npeers = 0;
	conn->setup.local = local;
	add_peer(&conn->setup, addr);
}

void bnet_peer_addresses_add(struct bnet_conn *conn, const struct sockaddr_storage *addrs, int count)
{
	for (int i = 0; i < count; i++)
		add_peer(&conn->setup, &addrs[i]);
}

int bnet_candidate_min_streams(const struct bnet_conn *conn)
{
	int nnics = conn->dev->nmembers, npeers = conn->setup.npeers;

	/* Traffic within one machine passes no NIC. */
	if (conn->setup.local)
		return 1;
	return nnics > npeers ? nnics : npeers;
}
