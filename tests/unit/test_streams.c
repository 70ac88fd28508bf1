/* SPDX-License-Identifier: MIT
 *
 * Streams are added and dropped as fast as possible while connections carry data: races between the control thread and
 * the callers. Every byte is checked. The test sets the number of streams in place of the scaler, which would change it
 * only a few times a second.
 */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <time.h>
#include <unistd.h>

#include "bagua_net.h"
#include "common/clock.h"
#include "engine/engine.h"
#include "oneself.h"
#include "scaling/path.h"
#include "scaling/sampler.h"

#define DEADLINE_S 600 /* of a thousand changes under a sanitizer, beside others */
#define PAIRS 2
/* Beside others each takes a quarter of a second under ThreadSanitizer. */
#define CHANGES (is_nightly() ? 1000 : 300)
#define MOST 12
#define OUTSTANDING 4
#define BUFFER 400000

static struct bnet_client client;
static _Atomic bool stop;
/* The number of messages that a sender has posted, and whether it has finished. */
static _Atomic uint64_t sent[PAIRS];
static _Atomic bool ended[PAIRS];

struct pair {
	int number;
	struct oneself ends;
};

static void nap(void)
{
	nanosleep(&(struct timespec){.tv_nsec = 200000}, NULL);
}

/* ---- messages ---- */

/* Empty, small, large, aligned and odd sizes. */
static int size_of(uint64_t message)
{
	static const int sizes[] = {BUFFER, 1, 70000, 4096, 300001, 0, 20};

	return sizes[message % (sizeof(sizes) / sizeof(sizes[0]))];
}

static uint32_t word_of(int pair, uint64_t message, uint32_t index)
{
	return (uint32_t)(message * 2654435761u) ^ (index * 2246822519u) ^ (uint32_t)pair << 28;
}

static void fill(uint32_t *words, int pair, uint64_t message)
{
	for (uint32_t i = 0; i < BUFFER / 4; i++)
		words[i] = word_of(pair, message, i);
}

static void check_bytes(const uint32_t *words, int size, int pair, uint64_t message)
{
	uint32_t last = word_of(pair, message, (uint32_t)size / 4);

	for (uint32_t i = 0; i < (uint32_t)size / 4; i++)
		if (words[i] != word_of(pair, message, i))
			check_int(words[i], word_of(pair, message, i));
	check(memcmp(words + size / 4, &last, (size_t)size % 4) == 0);
}

struct slot {
	uint32_t *words;
	void *mr, *request;
};

static void open_slots(struct slot *slots, void *comm)
{
	for (int i = 0; i < OUTSTANDING; i++) {
		slots[i] = (struct slot){.words = malloc(BUFFER + 4)};
		check(slots[i].words != NULL);
		check_int(bnet_client_reg(&client, comm, slots[i].words, BUFFER, NCCL_PTR_HOST, &slots[i].mr),
			  ncclSuccess);
	}
}

static void close_slots(struct slot *slots, void *comm)
{
	for (int i = 0; i < OUTSTANDING; i++) {
		check_int(bnet_client_dereg(&client, comm, slots[i].mr), ncclSuccess);
		free(slots[i].words);
	}
}

static void finish(struct slot *slot, int expected)
{
	int done = 0, size = -1;

	while (!done) {
		check_int(bnet_client_test(&client, slot->request, &done, &size), ncclSuccess);
		sched_yield();
	}
	slot->request = NULL;
	check_int(size, expected);
}

static void *send_main(void *arg)
{
	const struct pair *pair = arg;
	struct slot slots[OUTSTANDING];
	uint64_t posted = 0, done = 0;

	open_slots(slots, pair->ends.send);
	while (!atomic_load(&stop) || done < posted) {
		struct slot *slot = &slots[posted % OUTSTANDING];

		if (posted - done == OUTSTANDING || atomic_load(&stop)) {
			finish(&slots[done % OUTSTANDING], size_of(done));
			done++;
			continue;
		}
		fill(slot->words, pair->number, posted);
		check_int(bnet_client_isend(&client, pair->ends.send, slot->words, (size_t)size_of(posted), 0, slot->mr,
					    &slot->request),
			  ncclSuccess);
		check(slot->request != NULL);
		atomic_store(&sent[pair->number], ++posted);
	}
	atomic_store(&ended[pair->number], true);
	close_slots(slots, pair->ends.send);
	return NULL;
}

/* Posts receives only for sent messages, so that none remains in the end. */
static void *receive_main(void *arg)
{
	const struct pair *pair = arg;
	struct slot slots[OUTSTANDING];
	uint64_t posted = 0, done = 0;

	open_slots(slots, pair->ends.recv);
	for (;;) {
		struct slot *slot = &slots[posted % OUTSTANDING];
		bool last = atomic_load(&ended[pair->number]);

		if (posted - done < OUTSTANDING && posted < atomic_load(&sent[pair->number])) {
			check_int(bnet_client_irecv(&client, pair->ends.recv, slot->words, BUFFER, 0, slot->mr,
						    &slot->request),
				  ncclSuccess);
			check(slot->request != NULL);
			posted++;
		} else if (done < posted) {
			finish(&slots[done % OUTSTANDING], size_of(done));
			check_bytes(slots[done % OUTSTANDING].words, size_of(done), pair->number, done);
			done++;
		} else if (last && done == atomic_load(&sent[pair->number])) {
			break;
		} else {
			sched_yield();
		}
	}
	close_slots(slots, pair->ends.recv);
	return NULL;
}

/* ---- the number of streams ---- */

/* Makes every connection use `level` streams. */
static void set_level(int level)
{
	bnet_engine_lock();
	bnet_list_each(node, &bnet_engine.paths) {
		struct bnet_path *path = bnet_entry(node, struct bnet_path, node);

		bnet_scaler_init(&path->scaler, level, level, 1);
		bnet_path_widen(path);
	}
	bnet_engine_unlock();
}

/* Samples the paths like the control thread, but more often. True: both ends of all connections have that level. */
static bool reached(int level)
{
	bool all = true;

	bnet_engine_lock();
	bnet_sampler_read(bnet_now_us());
	bnet_list_each(node, &bnet_engine.conns) {
		const struct bnet_conn *conn = bnet_entry(node, struct bnet_conn, node);

		check_int(conn->error, 0);
		all &= conn->nstreams == level;
	}
	bnet_engine_unlock();
	return all;
}

static void change_levels(void)
{
	uint32_t state = 12345;

	for (int i = 0; i < CHANGES; i++) {
		int level = 1;

		if (i % 2 == 0) {
			state = state * 1664525 + 1013904223;
			level = 2 + (int)(state >> 16) % (MOST - 1);
		}
		set_level(level);
		/* Every third change may be superseded before it is complete. */
		for (int polls = 0; !reached(level) && (i % 3 || polls < 2); polls++)
			nap();
	}
	set_level(1);
	while (!reached(1))
		nap();
}

/* ---- the test ---- */

static uint64_t descriptors(void)
{
	bnet_counters_t counters;

	bnet_counters(&counters);
	return counters.descriptors;
}

int main(void)
{
	struct pair pairs[PAIRS];
	pthread_t threads[2 * PAIRS];
	uint64_t streams;

	setenv("NCCL_SOCKET_IFNAME", "lo", 1);
	setenv("BAGUA_NET_MIN_CHUNKSIZE", "4K", 1);
	setenv("BAGUA_NET_CONTROL_TICK", "1", 1); /* receivers close ended streams as often */
	setenv("BAGUA_NET_STATS", "0", 1);        /* which has a descriptor */
	alarm(DEADLINE_S);
	check_int(bnet_client_init(&client, bnet_net_table(12), 12, print_warnings), ncclSuccess);
	for (int i = 0; i < PAIRS; i++)
		pairs[i] = (struct pair){.number = i, .ends = connect_to_oneself(&client)};
	streams = descriptors();
	for (int i = 0; i < PAIRS; i++) {
		check_int(pthread_create(&threads[2 * i], NULL, send_main, &pairs[i]), 0);
		check_int(pthread_create(&threads[2 * i + 1], NULL, receive_main, &pairs[i]), 0);
	}
	change_levels();
	atomic_store(&stop, true);
	for (int i = 0; i < 2 * PAIRS; i++)
		pthread_join(threads[i], NULL);
	for (int i = 0; i < PAIRS; i++)
		check(sent[i] > OUTSTANDING);
	/* Of its added streams a connection keeps only the epoll descriptor. */
	while (descriptors() > streams + 2 * PAIRS)
		nap();
	for (int i = 0; i < PAIRS; i++)
		close_to_oneself(&client, pairs[i].ends);
	check_int(bnet_client_finalize(&client), ncclSuccess);
	return 0;
}
