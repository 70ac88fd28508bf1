/* SPDX-License-Identifier: MIT
 *
 * The candidate pair, a NIC and a peer address, that each stream uses.
 */
#include "handshake/candidate.h"

#include <stdbool.h>

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

int main(void)
{
	for (int nnics = 1; nnics <= MOST; nnics++)
		for (int npeers = 1; npeers <= MOST; npeers++) {
			check_streams(nnics, npeers);
			check_first(nnics, npeers);
			for (int stream = 0; stream < 64; stream++)
				check_attempts(nnics, npeers, stream);
		}
	return 0;
}
