/* SPDX-License-Identifier: MIT
 *
 * Many scalers over a network that they share: they use more streams where the network limits each flow, and not where
 * they would only take from each other. tests/netns/test_shared.py has the same on real queues, but for
 * bursts.
 */
#include <stdio.h>

#include "check.h"
#include "simulated_network.h"

#define SEEDS 5
#define RATE (1000 * MB)

/* K senders to K receivers over one link: of their common host, of the receivers' host, or in between. */
enum place { AT_SENDER, AT_RECEIVER, BETWEEN };

static void lay(struct net *net, enum place place, int paths, uint64_t rate)
{
	if (place == BETWEEN)
		net->middle = rate;
	else
		net->hosts[0].link = rate;
	for (int i = 0; i < paths; i++)
		switch (place) {
		case AT_SENDER:
			add_route(net, 0, 1 + i);
			break;
		case AT_RECEIVER:
			add_route(net, 1 + i, 0);
			break;
		case BETWEEN:
			add_route(net, i, 32 + i);
			break;
		}
}

static void a_shared_link_needs_one_stream_each(void)
{
	for (enum place place = AT_SENDER; place <= AT_RECEIVER; place++)
		for (enum queue queue = FIFO; queue <= FAIR; queue++)
			for (int paths = 1; paths <= 16; paths *= 2)
				for (uint64_t seed = 1; seed <= SEEDS; seed++) {
					struct net net = new_net(queue, seed);

					lay(&net, place, paths, RATE);
					play(&net, 30);
					check(highest(&net) <= 2);
					check(total(&net) >= RATE * 97 / 100);
					play(&net, 300);
					check(highest(&net) <= 2);
				}
}

/* Neither end sees what the others carry; a fresh flow waits in the queue. */
static void a_queue_in_between_is_felt(void)
{
	for (int paths = 2; paths <= 16; paths *= 2) {
		struct net net = new_net(FIFO, (uint64_t)paths);

		lay(&net, BETWEEN, paths, RATE);
		play(&net, 60);
		check_int(highest(&net), 1);
		check_int(net.changes, 0);
	}
}

/* What the paths know of the network is what keeps them from climbing. */
static void without_knowledge_all_climb(void)
{
	for (enum queue queue = FIFO; queue <= FAIR; queue++) {
		struct net net = new_net(queue, 3);

		net.blind = true;
		lay(&net, AT_SENDER, 4, RATE);
		play(&net, 30);
		check(highest(&net) > 8);
	}
}

/* A counter that shows less than the path itself has carried is of something else. */
static void counters_that_cannot_be_the_path_s_do_not_count(void)
{
	const struct bnet_end known = bnet_end_of(90 * MB, 100 * MB, 1000000);

	check(known.own > 89 * MB && known.own <= 90 * MB);
	check(known.all > 99 * MB && known.all <= 100 * MB);
	check_int(bnet_end_of(90 * MB, 50 * MB, 1000000).all, 0);
	check_int(bnet_end_of(90 * MB, 100 * MB, 0).all, 0);
}

/* Of a path that has carried 90 MB in a second between the two marks. */
static uint64_t received_between(struct bnet_mark from, struct bnet_mark to)
{
	const struct bnet_sample sample = {.elapsed_us = 1000000, .acked = 90 * MB};
	struct bnet_window window = {0};

	bnet_window_mark(&window, &(struct bnet_window_report){.mark = from});
	bnet_window_add(&window, &sample);
	bnet_window_mark(&window, &(struct bnet_window_report){.mark = to});
	return bnet_window_carried(&window).received.all;
}

static void answers_that_give_no_rate_do_not_count(void)
{
	const struct bnet_mark from = {.connection = 5, .moved_us = 7000000, .received = 700 * MB};
	struct bnet_mark to = {.connection = 5, .moved_us = 7900000, .received = 790 * MB};

	check(received_between(from, to) > 99 * MB && received_between(from, to) <= 100 * MB);
	check_int(received_between(to, from), 0);
	check_int(received_between((struct bnet_mark){.connection = 0}, to), 0);
	check_int(received_between(from, (struct bnet_mark){.connection = 0}), 0);
	to.moved_us = from.moved_us + 100000; /* most of the window was not seen */
	check_int(received_between(from, to), 0);
	to.moved_us = from.moved_us + 900000;
	to.connection = 6;
	check_int(received_between(from, to), 0);
}

/* In a stall the peer counts nothing. */
static void stalls_are_left_out_at_both_ends(void)
{
	const struct bnet_mark from = {.connection = 5}, to = {.connection = 5, .moved_us = 50000, .received = 10 * MB};
	const struct bnet_sample moves = {.elapsed_us = 50000, .acked = 9 * MB}, stalls = {.elapsed_us = 50000};
	struct bnet_window window = {0};
	struct bnet_end received;

	bnet_window_mark(&window, &(struct bnet_window_report){.mark = from});
	bnet_window_add(&window, &moves);
	bnet_window_add(&window, &stalls);
	bnet_window_mark(&window, &(struct bnet_window_report){.mark = to});
	received = bnet_window_carried(&window).received;
	check(received.all > 199 * MB && received.own > 179 * MB && received.own <= 180 * MB);
}

/* The streams' readings and the device's counter must be of the same time. */
static void looks_out_of_step_do_not_count(void)
{
	for (uint64_t percent = 60; percent <= 140; percent += 20) {
		const struct bnet_sample sample = {.elapsed_us = 100000,
						   .acked = 9 * MB,
						   .device_sent = 10 * MB,
						   .device_us = 1000 * percent};
		struct bnet_window window = {0};

		bnet_window_add(&window, &sample);
		check(!bnet_window_carried(&window).sent.all == (percent < 75 || percent > 125));
	}
}

static void flow_classes_are_filled(void)
{
	for (enum place place = AT_SENDER; place <= AT_RECEIVER; place++)
		for (int paths = 1; paths <= 4; paths *= 2)
			for (uint64_t seed = 1; seed <= SEEDS; seed++) {
				struct net net = new_net(FAIR, seed);
				/* A sender's classes limit its own paths only. */
				const int senders = place == AT_SENDER ? 1 : paths;

				net.nclasses = 8;
				net.class = RATE / 8;
				lay(&net, place, paths, 0);
				play(&net, 30);
				check(total(&net) >= RATE * (uint64_t)senders * 85 / 100);
				play(&net, 300);
				check(total(&net) >= RATE * (uint64_t)senders * 85 / 100);
			}
}

/* The classes together have twice the link's capacity. */
static void classes_on_a_link_fill_the_link(void)
{
	for (enum place place = AT_SENDER; place <= AT_RECEIVER; place++)
		for (uint64_t seed = 1; seed <= SEEDS; seed++) {
			struct net net = new_net(FAIR, seed);

			net.nclasses = 8;
			net.class = RATE / 4;
			lay(&net, place, 4, RATE);
			play(&net, 30);
			check(total(&net) >= RATE * 97 / 100);
			check(streams(&net) <= 4 * 8);
		}
}

/* Each job computes for so many ms and then sends what takes as long: alone, or if all send at the same time. */
static void lay_bursts(struct net *net, int ms, bool alone)
{
	for (int i = 0; i < net->nroutes; i++)
		net->routes[i].burst = (struct burst){
			.compute_us = (uint64_t)ms * 1000,
			.bytes = RATE * (uint64_t)ms / 1000 / (uint64_t)(alone ? 1 : net->nroutes),
		};
}

/* Others send while a job computes: what they carry then says nothing of what it takes from them. With bursts of a few
 * readings that is seen badly. */
static void bursts_on_a_shared_link_need_one_stream_each(void)
{
	for (enum place place = AT_SENDER; place <= AT_RECEIVER; place++)
		for (enum queue queue = FIFO; queue <= FAIR; queue++)
			for (int ms = 240; ms <= 960; ms *= 4) {
				int all = 0, paths = 0;

				for (int i = 2; i <= 8; i *= 2)
					for (uint64_t seed = 1; seed <= 2 * SEEDS; seed++, paths += i) {
						struct net net = new_net(queue, seed);

						lay(&net, place, i, RATE);
						lay_bursts(&net, ms, seed > SEEDS);
						play(&net, 100);
						all += streams(&net);
					}
				/* 1.3 and 1.0; 1.4 to 6.8 where pauses count */
				check(all * 10 <= paths * (ms == 240 ? 15 : 11));
			}
}

/* … nor of what it gains without them: 977 MB/s, and 802 where pauses count. */
static void bursts_through_flow_classes_get_their_streams(void)
{
	uint64_t carried = 0, before;

	for (uint64_t seed = 1; seed <= 2 * SEEDS; seed++) {
		struct net net = new_net(FAIR, seed);

		net.nclasses = 8;
		net.class = RATE / 8;
		lay(&net, AT_RECEIVER, 8, 0);
		lay_bursts(&net, 240, false);
		play(&net, 40);
		before = net.hosts[0].received;
		play(&net, 60);
		carried += (net.hosts[0].received - before) / 60 / (2 * SEEDS);
	}
	check(carried >= 920 * MB);
}

/* A host with a path to each of 63 peers. */
static void many_peers_share_a_link(void)
{
	struct net net = new_net(FIFO, 7);

	lay(&net, AT_SENDER, 60, RATE);
	play(&net, 60);
	check(highest(&net) <= 2);
}

/* What helped while each flow was limited is given back once a link is. */
static void a_climb_is_given_back(void)
{
	for (uint64_t seed = 1; seed <= SEEDS; seed++) {
		struct net net = new_net(FAIR, seed);
		int before;

		net.nclasses = 8;
		net.class = RATE / 8;
		lay(&net, AT_SENDER, 4, 0);
		play(&net, 30);
		before = streams(&net);
		check(before > 8);
		net.nclasses = 0;
		net.hosts[0].link = RATE / 2;
		flow(&net);
		play(&net, 300);
		check(streams(&net) <= 8);
		check(total(&net) >= RATE / 2 * 97 / 100);
	}
}

/* Others may have streams of their own accord. */
static void what_others_lose_is_given_back(void)
{
	for (uint64_t seed = 1; seed <= SEEDS; seed++) {
		struct net net = new_net(FAIR, seed);

		lay(&net, AT_SENDER, 2, RATE);
		bnet_scaler_init(&net.routes[1].scaler, 4, 4, seed);
		bnet_scaler_set(&net.routes[0].scaler, 16);
		play(&net, 120);
		check((on_trial(&net.routes[0].scaler) ? net.routes[0].scaler.before : net.routes[0].scaler.level) <=
		      2);
	}
}

/* One of two paths on a link that is full. */
static uint64_t third(int streams)
{
	return streams == 1 ? 350 * MB : 650 * MB;
}

/* … and one of many, with a little more. */
static uint64_t some_more(int streams)
{
	return streams == 1 ? 350 * MB : 390 * MB;
}

/* … though the network limits it no more. */
static void a_raise_at_others_cost_does_not_stay(uint64_t (*carries)(int streams))
{
	struct world world = begin(carries, 1, MOST);

	for (uint64_t i = 0; i < 10 * SECOND; i++) {
		world.report.mark =
			(struct bnet_mark){.connection = 1, .moved_us = world.now_us, .received = world.now_us * 1000};
		world.limited = world.scaler.level == 1;
		world.busy = 2500;
		sample(&world);
	}
	check_int(world.highest, 4);
	check_int(kept(&world), 1);
}

int main(void)
{
	a_shared_link_needs_one_stream_each();
	a_queue_in_between_is_felt();
	without_knowledge_all_climb();
	counters_that_cannot_be_the_path_s_do_not_count();
	answers_that_give_no_rate_do_not_count();
	stalls_are_left_out_at_both_ends();
	looks_out_of_step_do_not_count();
	flow_classes_are_filled();
	classes_on_a_link_fill_the_link();
	bursts_on_a_shared_link_need_one_stream_each();
	bursts_through_flow_classes_get_their_streams();
	many_peers_share_a_link();
	a_climb_is_given_back();
	what_others_lose_is_given_back();
	a_raise_at_others_cost_does_not_stay(third);
	a_raise_at_others_cost_does_not_stay(some_more);
	return 0;
}
