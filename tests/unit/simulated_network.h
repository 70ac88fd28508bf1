/* SPDX-License-Identifier: MIT
 *
 * For tests of the scaler: many paths, desynchronised, over hosts whose links they share. Each path is a real scaler;
 * the network is a fluid model. A stream passes the flow class that a hash gives it, its sender's link, a link in the
 * middle and its receiver's link; each of these is shared equally by the streams on it (max-min fairness).
 */
#ifndef BNET_SIMULATED_NETWORK_H
#define BNET_SIMULATED_NETWORK_H

#include <string.h>

#include "simulated_path.h"

#define MOST_PATHS 64
#define MOST_HOSTS 65
#define MOST_CLASSES 16
#define STREAMS (MOST_PATHS * MOST)
/* A saturated queue, and a round trip without one. */
#define QUEUE_US 4000
#define RTT_US 200
#define STEPS 4 /* of a tick */
#define STEP_US (TICK_US / STEPS)

enum queue {
	FIFO, /* a fresh flow waits as long as the old ones */
	FAIR, /* it does not wait */
};

struct host {
	uint64_t link; /* bytes/s in each direction; 0: no limit */
	uint64_t sent, received;
};

/* Of a job that computes and then sends. */
struct burst {
	uint64_t compute_us, bytes; /* 0 bytes: it always sends */
	uint64_t left;              /* of this burst; 0: it computes … */
	uint64_t until_us;          /* … until then */
};

/* What one end sees of its device, at its ticks. */
struct device {
	uint64_t counted; /* at the last tick */
	uint64_t moved_us, bytes;
};

struct route {
	struct bnet_scaler scaler;
	int from, to; /* hosts */
	uint64_t starts_us;
	uint64_t rate;    /* now */
	uint64_t carried; /* since the last tick */
	bool idle;        /* at the last tick */
	struct burst burst;
	struct device sender, receiver;
};

struct net {
	struct host hosts[MOST_HOSTS];
	struct route routes[MOST_PATHS];
	int nroutes;
	enum queue queue;
	uint64_t middle; /* bytes/s of a link that all share; 0: no limit */
	int nclasses;    /* of each sender's host; 0: no flow classes */
	uint64_t class;  /* bytes/s */
	bool blind;      /* nothing is known of the network */
	uint64_t now_us, random;
	uint64_t changes; /* of levels */
};

static inline uint64_t roll(struct net *net, uint64_t limit)
{
	net->random ^= net->random << 13;
	net->random ^= net->random >> 7;
	net->random ^= net->random << 17;
	return net->random % limit;
}

/* Begins within the first second. */
static inline void add_route(struct net *net, int from, int to)
{
	struct route *route = &net->routes[net->nroutes++];

	route->from = from;
	route->to = to;
	route->starts_us = net->now_us + roll(net, 1000000);
	bnet_scaler_init(&route->scaler, 1, MOST, 1 + roll(net, UINT64_MAX));
}

static inline struct net new_net(enum queue queue, uint64_t seed)
{
	return (struct net){.queue = queue, .now_us = 9000000, .random = seed * 2654435761 + 1};
}

/* ---- the fluid ---- */

/* The class of a stream: by its path and number, so that a path which tries the same level again meets other classes
 * only if the seed differs. */
static inline int class_of(const struct net *net, int route, int stream, uint64_t trial)
{
	uint64_t h = (uint64_t)route * 1000003 + (uint64_t)stream * 7919 + trial * 104729 + 12345;

	h ^= h >> 15;
	h *= UINT64_C(0x2c1b3c6d);
	h ^= h >> 12;
	h *= UINT64_C(0x297a2d39);
	h ^= h >> 15;
	return (int)(h % (uint64_t)net->nclasses);
}

/* A constraint: so much room for so many streams that are not fixed yet. */
struct share {
	double room;
	int streams;
};

struct fluid {
	struct share shares[2 * MOST_HOSTS + 1 + MOST_HOSTS * MOST_CLASSES];
	int of[STREAMS][4]; /* a stream's constraints; -1: none */
	int route[STREAMS];
	bool fixed[STREAMS];
	int nstreams;
};

static inline void constrain(struct fluid *fluid, int stream, int which, int share, uint64_t room)
{
	fluid->of[stream][which] = room ? share : -1;
	if (!room)
		return;
	fluid->shares[share].room = (double)room;
	fluid->shares[share].streams++;
}

static inline bool sends(const struct net *net, const struct route *route)
{
	return net->now_us >= route->starts_us && (!route->burst.bytes || route->burst.left);
}

static inline void pour(const struct net *net, struct fluid *fluid)
{
	memset(fluid, 0, sizeof(*fluid));
	for (int i = 0; i < net->nroutes; i++) {
		const struct route *route = &net->routes[i];
		const int levels = sends(net, route) ? route->scaler.level : 0;

		for (int s = 0; s < levels; s++) {
			const int stream = fluid->nstreams++;
			const int class = net->nclasses ? class_of(net, i, s, 0) : 0;

			fluid->route[stream] = i;
			constrain(fluid, stream, 0, route->from, net->hosts[route->from].link);
			constrain(fluid, stream, 1, MOST_HOSTS + route->to, net->hosts[route->to].link);
			constrain(fluid, stream, 2, 2 * MOST_HOSTS, net->middle);
			constrain(fluid, stream, 3, 2 * MOST_HOSTS + 1 + route->from * MOST_CLASSES + class,
				  net->nclasses ? net->class : 0);
		}
	}
}

static inline double tightest(const struct fluid *fluid, int stream)
{
	double least = 1e18;

	for (int k = 0; k < 4; k++) {
		const int share = fluid->of[stream][k];

		if (share >= 0 && fluid->shares[share].room / fluid->shares[share].streams < least)
			least = fluid->shares[share].room / fluid->shares[share].streams;
	}
	return least;
}

/* Max-min: the streams of the tightest constraint get their share, again and again. */
static inline void flow(struct net *net)
{
	static struct fluid fluid;
	int left;

	pour(net, &fluid);
	left = fluid.nstreams;
	for (int i = 0; i < net->nroutes; i++)
		net->routes[i].rate = 0;
	while (left) {
		double least = 1e18;

		for (int i = 0; i < fluid.nstreams; i++)
			if (!fluid.fixed[i] && tightest(&fluid, i) < least)
				least = tightest(&fluid, i);
		for (int i = 0; i < fluid.nstreams; i++) {
			if (fluid.fixed[i] || tightest(&fluid, i) > least * 1.000001)
				continue;
			fluid.fixed[i] = true;
			left--;
			net->routes[fluid.route[i]].rate += (uint64_t)least;
			for (int k = 0; k < 4; k++)
				if (fluid.of[i][k] >= 0) {
					fluid.shares[fluid.of[i][k]].room -= least;
					fluid.shares[fluid.of[i][k]].streams--;
				}
		}
	}
}

/* ---- what a path learns ---- */

static inline bool is_full(const struct net *net, uint64_t link, int from, int to)
{
	uint64_t used = 0;

	for (int i = 0; i < net->nroutes; i++)
		if ((from < 0 || net->routes[i].from == from) && (to < 0 || net->routes[i].to == to))
			used += net->routes[i].rate;
	return link && used * 100 >= link * 99;
}

/* The round trip of a fresh flow. */
static inline uint32_t fresh_rtt(const struct net *net, const struct route *route)
{
	const bool waits = net->queue == FIFO && (is_full(net, net->hosts[route->from].link, route->from, -1) ||
						  is_full(net, net->hosts[route->to].link, -1, route->to) ||
						  is_full(net, net->middle, -1, -1));

	return RTT_US + (waits ? QUEUE_US : 0);
}

static inline void answer(struct net *net, int number)
{
	struct route *route = &net->routes[number];
	struct bnet_window_report report = {.rtt_us = 0};

	if (!net->blind) {
		report.mark = (struct bnet_mark){.connection = 1,
						 .moved_us = route->receiver.moved_us,
						 .received = route->receiver.bytes};
		report.rtt_us = fresh_rtt(net, route);
	}
	bnet_scaler_tell(&route->scaler, &report);
}

/* ---- time ---- */

/* As handshake/meter.c counts, not the first tick after a pause. */
static inline void meter_route(struct net *net, struct route *route)
{
	struct device *device = &route->receiver;
	const uint64_t bytes = net->hosts[route->to].received - device->counted;

	device->counted += bytes;
	if (route->carried && !route->idle) {
		device->moved_us += TICK_US;
		device->bytes += bytes;
	}
}

/* True: the level has changed. As the sampler does, it leaves out the reading in which a burst begins. */
static inline bool sample_route(struct net *net, int number)
{
	struct route *route = &net->routes[number];
	const uint64_t sent = net->hosts[route->from].sent - route->sender.counted, bytes = route->carried;
	const struct bnet_sample sample = {
		.now_us = net->now_us,
		.elapsed_us = TICK_US,
		.acked = bytes - bytes * 3 / 100 + bytes * roll(net, 60) / 1000,
		.device_sent = sent,
		.device_us = net->blind ? 0 : TICK_US,
		.rtt_us = RTT_US + QUEUE_US,
		.min_rtt_us = RTT_US,
		.queue_us = QUEUE_US,
		.limited = true,
		.queued = true,
		.busy = 10000,
		.work = BNET_WORK_BULK,
		.minute = net->now_us / 60000000,
	};
	const bool begins = route->idle && route->burst.bytes;

	meter_route(net, route);
	route->sender.counted += sent;
	route->idle = bytes == 0;
	route->carried = 0;
	if (bytes == 0)
		return false;
	if (route->scaler.window.asks)
		answer(net, number);
	return !begins && bnet_scaler_step(&route->scaler, &sample);
}

/* True: it begins or ends. */
static inline bool turn_burst(struct net *net, struct route *route, uint64_t sent)
{
	struct burst *burst = &route->burst;

	if (!burst->bytes || net->now_us < route->starts_us)
		return false;
	if (burst->left) {
		burst->left -= sent < burst->left ? sent : burst->left;
		burst->until_us = net->now_us + burst->compute_us * (90 + roll(net, 20)) / 100;
		return burst->left == 0;
	}
	if (net->now_us < burst->until_us)
		return false;
	burst->left = burst->bytes;
	return true;
}

static inline bool begins(const struct net *net, const struct route *route)
{
	return net->now_us >= route->starts_us && net->now_us < route->starts_us + STEP_US;
}

static inline bool move(struct net *net)
{
	bool changed = false;

	for (int i = 0; i < net->nroutes; i++) {
		struct route *route = &net->routes[i];
		const uint64_t sent = route->rate * STEP_US / 1000000;

		route->carried += sent;
		net->hosts[route->from].sent += sent;
		net->hosts[route->to].received += sent;
		changed |= turn_burst(net, route, sent);
		changed |= begins(net, route);
	}
	return changed;
}

/* Each path has its own ticks. */
static inline void play(struct net *net, double seconds)
{
	for (uint64_t end = net->now_us + (uint64_t)(seconds * 1e6), step = 0; net->now_us < end; step++) {
		bool changed;

		net->now_us += STEP_US;
		changed = move(net);
		for (int i = (int)(step % STEPS); i < net->nroutes; i += STEPS) {
			const bool now = sample_route(net, i);

			net->changes += now;
			changed |= now;
		}
		if (changed)
			flow(net);
	}
}

static inline uint64_t total(const struct net *net)
{
	uint64_t rate = 0;

	for (int i = 0; i < net->nroutes; i++)
		rate += net->routes[i].rate;
	return rate;
}

/* Streams of all paths, without those on trial. */
static inline int streams(const struct net *net)
{
	int count = 0;

	for (int i = 0; i < net->nroutes; i++)
		count += on_trial(&net->routes[i].scaler) ? net->routes[i].scaler.before : net->routes[i].scaler.level;
	return count;
}

static inline int highest(const struct net *net)
{
	int most = 0;

	for (int i = 0; i < net->nroutes; i++) {
		const struct bnet_scaler *scaler = &net->routes[i].scaler;
		const int level = on_trial(scaler) ? scaler->before : scaler->level;

		most = level > most ? level : most;
	}
	return most;
}

#endif
