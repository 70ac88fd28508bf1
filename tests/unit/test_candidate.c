/* SPDX-License-Identifier: MIT
 *
 * Which NIC and which address a stream takes.
 */
#include "handshake/candidate.h"

#include <stdbool.h>

#include "check.h"

#define MOST 16

/* Streams take the NICs in turn, and by the time each NIC has had all addresses every pair has had one stream. */
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

/* The first streams, as many as the larger side has NICs, leave out none of either side. */
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

/* A stream whose pair has no way tries its own NIC's other pairs, then the others': each once. */
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
