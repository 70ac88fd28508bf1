/* SPDX-License-Identifier: MIT
 *
 * The scaler in rings, where each host waits for the one before it: every size of ring has its full rate after three
 * seconds and keeps it, on cards of its own and on shared ones. `python -m benchmarks rings` has the same on real
 * networks, as far as the processors of one machine can drive them.
 */
#include <stdio.h>

#include "simulated_ring.h"

/* What a window that is late, or a trial of fewer streams, may cost. */
#define FULL 95

static void check_full(struct rings *rings, double best)
{
	turn(rings, 4); /* the last host begins within the first second */
	for (int i = 0; i < 10; i++) {
		const double percent = percent_in(rings, 10);

		if (percent < best * FULL / 100)
			fprintf(stderr, "%d hosts with %d ranks carry %.0f %% after %d s\n", rings->hosts, rings->ranks,
				percent, 14 + 10 * i);
		check(percent >= best * FULL / 100);
	}
	end_rings(rings);
}

/* slots_ms: on fast cards, and on slow ones. */
static void rings_of_any_size_are_full(void)
{
	static const double slots_ms[] = {0.3, 5, 87};

	for (int hosts = 2; hosts <= 512; hosts *= 4)
		for (int i = 0; i < 3; i++) {
			struct rings rings = new_rings(hosts, 1, slots_ms[i], (uint64_t)hosts);

			if (hosts <= 32 || slots_ms[i] >= 5) /* steps of 0.07 ms take their time */
				check_full(&rings, 100);
			else
				end_rings(&rings);
		}
}

static void ranks_that_share_a_card_fill_it(void)
{
	for (int ranks = 2; ranks <= 8; ranks *= 2) {
		struct rings rings = new_rings(16, ranks, 5, (uint64_t)ranks);

		check_full(&rings, 100);
	}
}

/* … for long enough that the others need fewer streams meanwhile. */
static void a_slow_host_slows_the_ring_no_longer_than_it_is_slow(void)
{
	struct rings rings = new_rings(24, 1, 5, 7);

	turn(&rings, 30);
	rings.of[5].speed = 0.125;
	turn(&rings, 20);
	check(percent_in(&rings, 160) > 45); /* it has 64 streams */
	rings.of[5].speed = 1;
	turn(&rings, 3);
	check(percent_in(&rings, 10) >= FULL);
	end_rings(&rings);
}

/* Two fifths of the time, also where eight ranks share a card. */
static void computing_does_not_hide_the_limit(void)
{
	for (int ranks = 1; ranks <= 8; ranks *= 8) {
		struct rings rings = new_rings(64 / ranks, ranks, 5, 3);

		rings.period_us = 300000;
		rings.communicates = 40;
		check_full(&rings, 40);
	}
}

int main(void)
{
	rings_of_any_size_are_full();
	ranks_that_share_a_card_fill_it();
	a_slow_host_slows_the_ring_no_longer_than_it_is_slow();
	computing_does_not_hide_the_limit();
	return 0;
}
