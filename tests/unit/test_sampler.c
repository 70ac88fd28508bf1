/* SPDX-License-Identifier: MIT
 *
 * However many streams move, the control thread reads a bounded number of them in a time, all of a path at once, and
 * what it reads still counts. Connections may end meanwhile.
 */
#include <pthread.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "bagua_net.h"
#include "common/clock.h"
#include "engine/engine.h"
#include "oneself.h"
#include "scaling/path.h"

#define DEADLINE_S 250
#define SKIPPED 77
#define PAIRS 16
#define STREAMS 60
#define DESCRIPTORS 6000
/* Those of sampler.c. */
#define READINGS_PER_S 6400
#define CREDIT 128

static struct bnet_client client;

/* ---- interposed: readings of the control thread ---- */

static pthread_t main_thread;
static _Atomic uint64_t readings;

int getsockopt(int fd, int level, int option, void *value, socklen_t *size)
{
	if (level == IPPROTO_TCP && option == TCP_INFO && !pthread_equal(pthread_self(), main_thread))
		atomic_fetch_add(&readings, 1);
	return (int)syscall(SYS_getsockopt, fd, level, option, value, size);
}

/* ---- connections ---- */

static void exchange_all(const struct oneself *ends)
{
	for (int i = 0; i < PAIRS; i++)
		send_to_oneself(&client, ends[i]);
}

static struct bnet_path *the_path(void)
{
	return bnet_entry(bnet_engine.paths.next, struct bnet_path, node);
}

/* In place of the scaler. */
static void use_streams(int streams)
{
	bnet_engine_lock();
	bnet_scaler_init(&the_path()->scaler, streams, streams, 1);
	bnet_path_widen(the_path());
	bnet_engine_wake();
	bnet_engine_unlock();
}

static void open_all(struct oneself *ends)
{
	for (int i = 0; i < PAIRS; i++)
		ends[i] = connect_to_oneself(&client);
	use_streams(STREAMS);
	for (int i = 0; i < PAIRS; i++)
		while (atomic_load(&((struct bnet_conn *)ends[i].send)->nstreams) < STREAMS)
			sched_yield();
}

static uint32_t samples(void)
{
	uint32_t count;

	bnet_engine_lock();
	count = the_path()->samples;
	bnet_engine_unlock();
	return count;
}

/* ---- the tests ---- */

static void readings_are_bounded(const struct oneself *ends)
{
	uint32_t first;
	uint64_t since, time;

	exchange_all(ends);
	atomic_store(&readings, 0);
	since = bnet_now_us();
	first = samples();
	while (samples() - first < 4)
		exchange_all(ends);
	time = bnet_now_us() - since;
	/* The credit may be full before, and negative after the last sample. */
	check(atomic_load(&readings) <= CREDIT + PAIRS * STREAMS + time * READINGS_PER_S / 1000000 + 1);
}

/* Though they are far apart. */
static void readings_count(const struct oneself *ends)
{
	bool counted = false;

	while (!counted) {
		exchange_all(ends);
		bnet_engine_lock();
		counted = the_path()->of[BNET_WORK_SMALL].count + the_path()->of[BNET_WORK_BULK].count > 0;
		bnet_engine_unlock();
	}
}

/* The one that is being read is freed after that. */
static bool no_path(void)
{
	bool none;

	bnet_engine_lock();
	none = bnet_list_empty(&bnet_engine.paths);
	bnet_engine_unlock();
	return none;
}

static _Atomic bool closing;

static void *close_all(void *arg)
{
	struct oneself *ends = arg;

	while (!atomic_load(&closing))
		sched_yield();
	for (int i = 0; i < PAIRS; i++)
		close_to_oneself(&client, ends[i]);
	return NULL;
}

static void connections_end_while_their_path_is_read(struct oneself *ends)
{
	pthread_t thread;
	uint32_t count = samples();

	check_int(pthread_create(&thread, NULL, close_all, ends), 0);
	while (samples() == count)
		exchange_all(ends);
	atomic_store(&closing, true);
	pthread_join(thread, NULL);
	while (!no_path())
		sched_yield();
}

static bool raise_descriptor_limit(void)
{
	struct rlimit limit;

	check_int(getrlimit(RLIMIT_NOFILE, &limit), 0);
	limit.rlim_cur = limit.rlim_max;
	check_int(setrlimit(RLIMIT_NOFILE, &limit), 0);
	return limit.rlim_max >= DESCRIPTORS;
}

int main(void)
{
	struct oneself ends[PAIRS];

	if (!raise_descriptor_limit()) {
		fprintf(stderr, "skipped: fewer than %d descriptors\n", DESCRIPTORS);
		return SKIPPED;
	}
	setenv("NCCL_SOCKET_IFNAME", "lo", 1);
	setenv("BAGUA_NET_STATS", "0", 1); /* it reads streams as well */
	alarm(DEADLINE_S);
	main_thread = pthread_self();
	check_int(bnet_client_init(&client, bnet_net_table(12), 12, print_warnings), ncclSuccess);
	open_all(ends);
	readings_are_bounded(ends);
	readings_count(ends);
	connections_end_while_their_path_is_read(ends);
	check_int(bnet_client_finalize(&client), ncclSuccess);
	return 0;
}
