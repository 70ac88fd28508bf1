/* SPDX-License-Identifier: MIT
 *
 * The candidate pair, a NIC and a peer address, that each stream uses.
 */
#include "handshake/candidate.h"

#include <netinet/in.h>
#include <stdbool.h>
#include <string.h>

#include "check.h"

#define MOST 16

/* Streams use the NICs in turn. Once each NIC has used all addresses, every pair has had exactly one stream. */
static void check_streams(int nnics, int npeers)
{
	bool seen[MOST][MOST] = {{false}};

	for (int stream = 0; stream < nnics * npeers; stream++) {
		int nic, peer;

		bnet_candidate_pick(stream, 0, nnics, npeers, &nic, &peer);
		check_int(nic, stream % nnics);
		check(peer >= 0 && peer < npeers);
		check(!seen[nic][peer]);
		seen[nic][peer] = true;
	}
}

/* The first streams, as many as the larger side has NICs, use all NICs of both sides. */
static void check_first(int nnics, int npeers)
{
	bool used[2][MOST] = {{false}};
	int least = nnics > npeers ? nnics : npeers;

	for (int stream = 0; stream < least; stream++) {
		int nic, peer;

		bnet_candidate_pick(stream, 0, nnics, npeers, &nic, &peer);
		used[0][nic] = used[1][peer] = true;
	}
	for (int i = 0; i < nnics; i++)
		check(used[0][i]);
	for (int i = 0; i < npeers; i++)
		check(used[1][i]);
}

/* A stream whose pair has no route tries the other pairs of its NIC, then those of other NICs, each once. */
static void check_attempts(int nnics, int npeers, int stream)
{
	bool seen[MOST][MOST] = {{false}};

	for (int attempt = 0; attempt < nnics * npeers; attempt++) {
		int nic, peer;

		bnet_candidate_pick(stream, attempt, nnics, npeers, &nic, &peer);
		check(attempt >= npeers || nic == stream % nnics);
		check(!seen[nic][peer]);
		seen[nic][peer] = true;
	}
}

/* How often a pair that fails whenever it is tried is tried within so many seconds. */
static int tries(struct bnet_conn *conn, const struct bnet_candidate *pair, uint64_t *now_ms, uint64_t seconds)
{
	const uint64_t end_ms = *now_ms + seconds * 1000;
	int count = 0;

	for (; *now_ms < end_ms; *now_ms += 1000) {
		if (!bnet_candidate_usable(conn, pair, *now_ms))
			continue;
		for (int i = 0; i < 3; i++) /* connections, at the same time */
			bnet_candidate_failed(conn, pair, *now_ms);
		count++;
	}
	return count;
}

/* The pauses double, and are as short again for one that has worked for long. */
static void check_failures(void)
{
	static const struct bnet_nic nics[2] = {{.addr.ss_family = AF_INET}, {.addr.ss_family = AF_INET}};
	static struct bnet_failed_pairs failed_pairs;
	static const struct bnet_device device = {.members = {&nics[0], &nics[1]}, .nmembers = 2};
	static struct bnet_conn conn = {
		.dev = &device,
		.setup = {.failed_pairs = &failed_pairs, .npeers = 1, .peers = {{.ss_family = AF_INET}}},
	};
	const struct bnet_candidate pair = bnet_candidate_of(&conn, 0, 0), other = bnet_candidate_of(&conn, 1, 0);
	uint64_t now_ms = 1000;

	check_int(tries(&conn, &pair, &now_ms, 10), 1);
	check_int(tries(&conn, &pair, &now_ms, 20), 1);
	check(bnet_candidate_usable(&conn, &other, now_ms));
	check_int(tries(&conn, &pair, &now_ms, 40 + 80 + 160 + 320), 4);
	check_int(tries(&conn, &pair, &now_ms, 3 * 640), 3);
	now_ms += 640 * 1000;
	check_int(tries(&conn, &pair, &now_ms, 10 + 20), 2);
}

/* The only pair has failed, and then the peer names a further address: there is a way beside it now, and it is tried
 * again like one of several. */
static void check_an_only_pair(void)
{
	static const struct bnet_nic nic = {.addr.ss_family = AF_INET};
	static struct bnet_failed_pairs failed_pairs;
	static const struct bnet_device device = {.members = {&nic}, .nmembers = 1};
	static struct bnet_conn conn = {
		.dev = &device,
		.setup = {.failed_pairs = &failed_pairs, .npeers = 1, .peers = {{.ss_family = AF_INET}}},
	};
	struct sockaddr_in further = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	struct sockaddr_storage address = {.ss_family = AF_INET};
	const struct bnet_candidate pair = bnet_candidate_of(&conn, 0, 0);

	bnet_candidate_failed(&conn, &pair, 1000);
	check(!bnet_candidate_usable(&conn, &pair, 1000 + 3599 * 1000));
	memcpy(&address, &further, sizeof(further));
	bnet_peer_addresses_add(&conn, &address, 1);
	check(!bnet_candidate_usable(&conn, &pair, 1000 + 9 * 1000));
	check(bnet_candidate_is_due(&conn, &pair, 1000 + 10 * 1000));
	bnet_candidate_failed(&conn, &pair, 1000 + 10 * 1000);
	check(!bnet_candidate_usable(&conn, &pair, 1000 + 29 * 1000));
	check(bnet_candidate_usable(&conn, &pair, 1000 + 30 * 1000));
	conn.setup.npeers = 1; /* one that has not heard of the other address yet */
	check(!bnet_candidate_usable(&conn, &pair, 1000 + 3599 * 1000));
}

int main(void)
{
	check_failures();
	check_an_only_pair();
	for (int nnics = 1; nnics <= MOST; nnics++)
		for (int npeers = 1; npeers <= MOST; npeers++) {
			check_streams(nnics, npeers);
			check_first(nnics, npeers);
			for (int stream = 0; stream < 64; stream++)
				check_attempts(nnics, npeers, stream);
		}
	return 0;
}
