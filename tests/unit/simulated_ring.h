/* SPDX-License-Identifier: MIT
 *
 * For tests of the scaler: rings of hosts, with a real scaler at each edge. A rank passes on what it has received, and
 * has room for a few slots, so a slow edge is felt one hop further only when the slots there have run empty or full:
 * the shorter that takes, the more do trials at one edge spoil those at others. Each flow has a limit of its own. A
 * host may have several ranks, each in a ring of its own, that share the host's card.
 */
#ifndef BNET_SIMULATED_RING_H
#define BNET_SIMULATED_RING_H

#include <stdlib.h>

#include "simulated_path.h"

/* Streams of all ranks with which a host's card is full. */
#define FULL_CARD 16
#define FLOW (1000 * MB / FULL_CARD) /* bytes/s */
#define RING_RTT_US 200
#define RING_QUEUE_US 4000

struct edge {
	struct bnet_scaler scaler;
	double waits;    /* bytes that its rank may send */
	double moves;    /* … and sends in this step */
	double can;      /* … if enough bytes waited */
	double carried;  /* in this sample */
	double possible; /* … if bytes had always waited */
	double sent;     /* by its host until this sample */
	double received; /* by the next host while this edge moved, … */
	uint64_t moved_us;
};

struct rank_host {
	uint64_t starts_us, off_us; /* off_us: how much its clock is ahead of the others' */
	double speed;               /* of its flows, as a share of the others' */
	double sent;
};

struct rings {
	int hosts, ranks;   /* ranks of a host, as many as there are rings */
	double slots;       /* bytes that a rank has room for */
	uint64_t period_us; /* of a job that computes and then communicates; 0: it communicates only */
	int communicates;   /* … in this percentage of the time */
	int fixed;          /* streams, with no scaler; 0: as the scalers say */
	struct edge *edges; /* by host, then by rank */
	struct rank_host *of;
	uint64_t now_us, began_us, random;
	double total; /* bytes that edges have carried */
};

static inline uint64_t chance(struct rings *rings, uint64_t limit)
{
	rings->random ^= rings->random << 13;
	rings->random ^= rings->random >> 7;
	rings->random ^= rings->random << 17;
	return rings->random % limit;
}

/* slots_ms: in which a host's full card fills the slots of one rank. The minute begins 20 s after the rings. */
static inline struct rings new_rings(int hosts, int ranks, double slots_ms, uint64_t seed)
{
	struct rings rings = {.hosts = hosts, .ranks = ranks, .now_us = 40000000, .began_us = 40000000};

	rings.random = seed * 2654435761 + 1;
	rings.slots = slots_ms / 1000 * FULL_CARD * FLOW / ranks;
	rings.edges = calloc((size_t)(hosts * ranks), sizeof(struct edge));
	rings.of = calloc((size_t)hosts, sizeof(struct rank_host));
	check(rings.edges && rings.of);
	for (int h = 0; h < hosts; h++) {
		rings.of[h].starts_us = rings.now_us + chance(&rings, 1000000);
		rings.of[h].off_us = chance(&rings, 20000);
		rings.of[h].speed = 1;
	}
	for (int e = 0; e < hosts * ranks; e++) {
		rings.edges[e].waits = rings.slots / 2;
		bnet_scaler_init(&rings.edges[e].scaler, 1, MOST, 1 + chance(&rings, UINT64_MAX));
	}
	return rings;
}

static inline void end_rings(struct rings *rings)
{
	free(rings->edges);
	free(rings->of);
}

static inline struct edge *edge_of(const struct rings *rings, int host, int rank)
{
	return &rings->edges[host % rings->hosts * rings->ranks + rank];
}

static inline int streams_of(const struct rings *rings, const struct edge *edge)
{
	return rings->fixed ? rings->fixed : edge->scaler.level;
}

static inline bool communicates(const struct rings *rings)
{
	for (int h = 0; h < rings->hosts; h++)
		if (rings->now_us < rings->of[h].starts_us)
			return false;
	return !rings->period_us ||
	       rings->now_us % rings->period_us < rings->period_us / 100 * (uint64_t)rings->communicates;
}

/* What a rank wants to send in this step: what waits, as far as the next one has room. */
static inline double wanted(const struct rings *rings, int host, int rank)
{
	const double room = rings->slots - edge_of(rings, host + 1, rank)->waits,
		     waits = edge_of(rings, host, rank)->waits;

	return waits < room ? waits : room;
}

/* A host's flows share its card: those that want less than an equal share leave the rest to the others. */
static inline void share_card(struct rings *rings, int host, double seconds)
{
	double left = FULL_CARD * FLOW * seconds, streams = 0, used = 0;
	bool more = true;

	for (int r = 0; r < rings->ranks; r++) {
		struct edge *edge = edge_of(rings, host, r);

		edge->moves = -1;
		edge->can = streams_of(rings, edge) * FLOW * rings->of[host].speed * seconds;
		streams += streams_of(rings, edge);
	}
	while (more) {
		const double each = streams > 0 ? left / streams : 0;

		more = false;
		for (int r = 0; r < rings->ranks; r++) {
			struct edge *edge = edge_of(rings, host, r);
			const double wants = wanted(rings, host, r), most = wants < edge->can ? wants : edge->can;

			if (edge->moves >= 0 || most > each * streams_of(rings, edge))
				continue;
			edge->moves = most;
			left -= most;
			streams -= streams_of(rings, edge);
			more = true;
		}
	}
	for (int r = 0; r < rings->ranks; r++) {
		struct edge *edge = edge_of(rings, host, r);

		if (edge->moves < 0)
			edge->moves = left * streams_of(rings, edge) / streams;
		used += edge->moves;
	}
	for (int r = 0; r < rings->ranks; r++) {
		struct edge *edge = edge_of(rings, host, r);
		const double free = FULL_CARD * FLOW * seconds - used + edge->moves;

		edge->can = edge->can < free ? edge->can : free;
	}
}

/* All edges at once: what waits at the beginning of the step. */
static inline void move(struct rings *rings, double seconds)
{
	for (int h = 0; h < rings->hosts; h++)
		share_card(rings, h, seconds);
	for (int h = 0; h < rings->hosts; h++)
		for (int r = 0; r < rings->ranks; r++) {
			struct edge *edge = edge_of(rings, h, r);

			edge->waits -= edge->moves;
			edge_of(rings, h + 1, r)->waits += edge->moves;
			edge->carried += edge->moves;
			edge->possible += edge->can;
			rings->of[h].sent += edge->moves;
			rings->total += edge->moves;
		}
}

static inline void answer_edge(struct edge *edge)
{
	const struct bnet_window_report report = {.mark = {.connection = 1,
							   .moved_us = edge->moved_us,
							   .received = (uint64_t)edge->received},
						  .rtt_us = RING_RTT_US};

	bnet_scaler_tell(&edge->scaler, &report);
}

static inline void sample_edge(struct rings *rings, int host, struct edge *edge)
{
	const double busy = edge->possible > 0 ? edge->carried / edge->possible : 0;
	const uint64_t bytes = (uint64_t)edge->carried;
	const bool moves = edge->carried > 0;
	const double sent = rings->of[host].sent - edge->sent;
	const struct bnet_sample sample = {
		.now_us = rings->now_us,
		.elapsed_us = TICK_US,
		.acked = bytes - bytes * 3 / 100 + bytes * chance(rings, 60) / 1000,
		.device_sent = (uint64_t)sent,
		.device_us = TICK_US,
		.rtt_us = RING_RTT_US + (busy > 0.5 ? RING_QUEUE_US : 0),
		.min_rtt_us = RING_RTT_US,
		.queue_us = busy > 0.5 ? RING_QUEUE_US : 0,
		.limited = busy >= 0.9,
		.pressed = busy >= 0.6,
		.queued = true,
		.busy = (uint32_t)(busy * 10000),
		.work = BNET_WORK_SMALL,
		.minute = (rings->now_us + rings->of[host].off_us) / 60000000,
	};

	edge->carried = edge->possible = 0;
	edge->sent = rings->of[host].sent;
	/* The next host receives what this one sends. */
	edge->moved_us += moves ? TICK_US : 0;
	edge->received += moves ? sent : 0;
	if (!moves)
		return;
	if (edge->scaler.window.asks)
		answer_edge(edge);
	bnet_scaler_step(&edge->scaler, &sample);
}

/* Each host samples at its own times. */
static inline void turn(struct rings *rings, double seconds)
{
	const uint64_t slot_us = (uint64_t)(rings->slots * rings->ranks * 1e6 / (FULL_CARD * FLOW));
	const uint64_t step_us = slot_us / 4 > TICK_US / 10 ? TICK_US / 10 : slot_us / 4;

	for (uint64_t end = rings->now_us + (uint64_t)(seconds * 1e6); rings->now_us < end; rings->now_us += step_us) {
		if (communicates(rings))
			move(rings, (double)step_us / 1e6);
		for (int h = 0; h < rings->hosts; h++) {
			const uint64_t offset = (uint64_t)h * 7919 % TICK_US;

			if ((rings->now_us + offset) / TICK_US == (rings->now_us + offset + step_us) / TICK_US)
				continue;
			for (int r = 0; r < rings->ranks; r++)
				sample_edge(rings, h, edge_of(rings, h, r));
		}
	}
}

/* The mean rate of a host over that time, in percent of that of as many rings with a full card. */
static inline double percent_in(struct rings *rings, double seconds)
{
	const double before = rings->total;

	turn(rings, seconds);
	return (rings->total - before) / seconds / rings->hosts / (FULL_CARD * FLOW) * 100;
}

#endif
