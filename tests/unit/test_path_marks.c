/* SPDX-License-Identifier: MIT
 *
 * Trials ask for marks: the peer is asked what its device has received, about one connection of the path, and this
 * end's counter is read with each sample.
 */
#include <netinet/in.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "bagua_net.h"
#include "common/clock.h"
#include "engine/engine.h"
#include "oneself.h"
#include "scaling/path.h"
#include "scaling/path_sample.h"
#include "scaling/sampler.h"

#define DEADLINE_S 250
#define TICK_US 20000

static struct bnet_client client;

/* The scaler has a question at the end of a sample. */
static void judge_with_question(struct bnet_path *path, const struct bnet_conn *asker)
{
	path->of[BNET_WORK_SMALL].count = path->streams = 1;
	path->sample.elapsed_us = TICK_US;
	path->scaler.window.asks = true;
	path->asker = asker->id;
	bnet_path_judge(path, bnet_now_us());
}

static void await_answer(const struct bnet_window *window)
{
	while (window->asks) {
		bnet_engine_unlock();
		sched_yield();
		bnet_engine_lock();
	}
}

/* A sample of which the scaler takes what the device has sent since the one before. */
static void judge_again(struct bnet_path *path, uint64_t now_us)
{
	memset(&path->sample, 0, sizeof(path->sample));
	path->sample.elapsed_us = TICK_US;
	path->of[BNET_WORK_SMALL].count = path->streams = 1;
	bnet_path_judge(path, now_us);
}

/* The peer's counter by a question, this end's with each sample from the first mark on. */
static void both_ends_counters_are_seen(void)
{
	struct oneself ends = connect_to_oneself(&client);
	struct bnet_conn *conn = ends.send, *receiver = ends.recv;
	struct bnet_window *window = &conn->path->scaler.window;
	const struct bnet_metered counted = {.moved_us = 40000, .received = 1 << 20}; /* so far (test_meter.c) */
	const uint64_t now_us = bnet_now_us() + 1000000;
	static char bytes[2];

	bnet_engine_lock();
	receiver->meter.seen = counted;
	move_oneself(ends);
	judge_with_question(conn->path, conn);
	await_answer(window);
	check(window->marked > 0 && window->from.connection == conn->id);
	check(window->from.received >= counted.received && window->from.moved_us >= counted.moved_us);
	judge_again(conn->path, now_us);
	pass_to_oneself(&client, ends, &bytes[0], &bytes[1], 1);
	judge_again(conn->path, now_us + TICK_US);
	check(window->seen.all > 0 && window->seen.us == TICK_US);
	conn->path->device_sent = UINT64_MAX; /* another counter than before */
	judge_again(conn->path, now_us + 2 * TICK_US);
	check(window->seen.us == TICK_US);
	bnet_engine_unlock();
	close_to_oneself(&client, ends);
}

/* What another one waits for says less of the path. */
static void the_peer_is_asked_about_the_connection_that_carries_most(void)
{
	static char from[1 << 20], into[1 << 20];
	struct oneself little = connect_to_oneself(&client), much = connect_to_oneself(&client);
	struct bnet_conn *senders[] = {much.send, little.send};
	struct bnet_path *path = senders[0]->path;

	bnet_engine_lock();
	do { /* until no sample of the control thread's lies between */
		uint64_t now_us;

		bnet_engine_unlock();
		pass_to_oneself(&client, little, from, into, 1);
		pass_to_oneself(&client, much, from, into, sizeof(from));
		bnet_engine_lock();
		now_us = bnet_now_us();
		path->sampled_us = 0;
		check(bnet_path_begin_sample(path, now_us));
		for (int i = 0; i < 2; i++)
			bnet_path_sample_conn(senders[i], now_us, false);
	} while (path->sample.acked < sizeof(from) / 2);
	check(path->asker == senders[0]->id);
	bnet_engine_unlock();
	close_to_oneself(&client, little);
	close_to_oneself(&client, much);
}

/* Two answers give a rate if they are about one connection, though it may be idle by now. */
static void the_same_connection_is_asked_about(void)
{
	struct oneself first = connect_to_oneself(&client), second = connect_to_oneself(&client);
	struct bnet_conn *moving = first.send, *idle = second.send;
	struct bnet_window *window = &moving->path->scaler.window;

	bnet_engine_lock();
	check(moving->path == idle->path);
	move_oneself(first);
	do { /* a sample of the control thread's may begin another window */
		window->marked = 1;
		window->from.connection = idle->id;
		judge_with_question(moving->path, moving);
		await_answer(window);
	} while (window->marked != 2 || window->from.connection != idle->id);
	check(window->to.connection == idle->id);
	bnet_engine_unlock();
	close_to_oneself(&client, first);
	close_to_oneself(&client, second);
}

/* The peer's kernel takes the question, and nobody answers. */
static void a_question_without_an_answer_ends(void)
{
	struct oneself ends = connect_to_oneself(&client);
	struct bnet_conn *conn = ends.send;
	struct sockaddr_storage silent = conn->setup.peers[0];
	socklen_t size = sizeof(silent);
	int fd = socket(silent.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);

	((struct sockaddr_in *)&silent)->sin_port = 0; /* at the same place for IPv6 */
	check_int(bind(fd, (struct sockaddr *)&silent, size), 0);
	check_int(listen(fd, 10), 0);
	check_int(getsockname(fd, (struct sockaddr *)&silent, &size), 0);
	bnet_engine_lock();
	conn->setup.peers[0] = silent;
	conn->path->scaler.window.marked = 0; /* the path may be that of a connection which is about to end */
	move_oneself(ends);
	judge_with_question(conn->path, conn);
	check(conn->path->asking);
	while (conn->path->asking) {
		bnet_engine_unlock();
		sched_yield();
		bnet_engine_lock();
	}
	check(!conn->path->scaler.window.asks);
	bnet_engine_unlock();
	close(fd);
	close_to_oneself(&client, ends);
}

int main(void)
{
	setenv("NCCL_SOCKET_IFNAME", "lo", 1);
	alarm(DEADLINE_S);
	check_int(bnet_client_init(&client, bnet_net_table(12), 12, print_warnings), ncclSuccess);
	both_ends_counters_are_seen();
	the_peer_is_asked_about_the_connection_that_carries_most();
	the_same_connection_is_asked_about();
	a_question_without_an_answer_ends();
	check_int(bnet_client_finalize(&client), ncclSuccess);
	return 0;
}
