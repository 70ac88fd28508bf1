/* SPDX-License-Identifier: MIT
 *
 * What a message costs a thread that waits on many connections, as in an all-to-all of which one peer answers:
 *
 *   waiting LIBRARY CONNECTIONS MESSAGES
 *
 * LIBRARY: the plugin, or another build of it. One process, both ends of each connection over the loopback interface; a
 * receive of one byte is outstanding on every one. A message goes to one of them by chance, and the receives are tested
 * in turn until it has arrived; its receive is posted again. Prints the mean time of a message and the plugin's system
 * calls for it in a line of JSON.
 */
#include <dlfcn.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bagua_net.h"
#include "common/client.h"
#include "traffic.h"

/* The control thread looks at what is active every 10 ms. */
#define WARM_UP_S 0.2

struct waiting {
	struct bnet_client client;
	int count;
	void **sends, **receives, **requests;
	void (*counters)(bnet_counters_t *);
	char from, into;
};

static void must(bool ok, const char *what)
{
	if (ok)
		return;
	fprintf(stderr, "waiting: %s failed\n", what);
	exit(1);
}

static void *allocate(int count)
{
	void *memory = calloc((size_t)count, sizeof(void *));

	must(memory != NULL, "calloc");
	return memory;
}

static void load(struct waiting *waiting, const char *path)
{
	void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL), *table, *counters;

	if (!library)
		fprintf(stderr, "%s\n", dlerror());
	must(library != NULL, "dlopen");
	table = dlsym(library, "ncclNetPlugin_v11");
	counters = dlsym(library, "bnet_counters");
	must(table && counters, "dlsym");
	memcpy(&waiting->counters, &counters, sizeof(counters));
	must(bnet_client_init(&waiting->client, table, 11, traffic_log) == ncclSuccess, "init");
}

static void open_one(struct waiting *waiting, int i)
{
	char handle[NCCL_NET_HANDLE_MAXSIZE] = {0};
	void *listener;

	must(bnet_client_listen(&waiting->client, 0, handle, &listener) == ncclSuccess, "listen");
	while (!waiting->sends[i] || !waiting->receives[i]) {
		if (!waiting->sends[i])
			must(bnet_client_connect(&waiting->client, 0, handle, &waiting->sends[i]) == ncclSuccess,
			     "connect");
		if (!waiting->receives[i])
			must(bnet_client_accept(&waiting->client, listener, &waiting->receives[i]) == ncclSuccess,
			     "accept");
	}
	must(bnet_client_close_listen(&waiting->client, listener) == ncclSuccess, "closeListen");
}

static void receive(struct waiting *waiting, int i)
{
	must(bnet_client_irecv(&waiting->client, waiting->receives[i], &waiting->into, 1, 0, NULL,
			       &waiting->requests[i]) == ncclSuccess,
	     "irecv");
}

static bool test(struct waiting *waiting, void *request)
{
	int done = 0;

	must(bnet_client_test(&waiting->client, request, &done, NULL) == ncclSuccess, "test");
	return done;
}

static bool test_all(struct waiting *waiting)
{
	bool any = false;

	for (int i = 0; i < waiting->count; i++) {
		if (!test(waiting, waiting->requests[i]))
			continue;
		any = true;
		receive(waiting, i);
	}
	return any;
}

static void pass_one(struct waiting *waiting, int i)
{
	void *request;

	must(bnet_client_isend(&waiting->client, waiting->sends[i], &waiting->from, 1, 0, NULL, &request) ==
		     ncclSuccess,
	     "isend");
	while (!test(waiting, request))
		;
	while (!test_all(waiting))
		;
}

static void measure(struct waiting *waiting, int messages)
{
	bnet_counters_t before, after;
	uint32_t chance = 1;
	double start = traffic_now(), took;

	while (traffic_now() - start < WARM_UP_S)
		test_all(waiting);
	waiting->counters(&before);
	start = traffic_now();
	for (int i = 0; i < messages; i++) {
		chance = chance * 1103515245 + 12345;
		pass_one(waiting, (int)((chance >> 8) % (uint32_t)waiting->count));
	}
	took = traffic_now() - start;
	waiting->counters(&after);
	printf("{\"connections\": %d, \"us\": %.2f, \"receive_calls\": %.2f, \"poll_calls\": %.2f}\n", waiting->count,
	       took * 1e6 / messages, (double)(after.receive_calls - before.receive_calls) / messages,
	       (double)(after.poll_calls - before.poll_calls) / messages);
}

int main(int argc, char **argv)
{
	struct waiting waiting = {0};
	int messages;

	must(argc == 4, "usage: waiting LIBRARY CONNECTIONS MESSAGES:");
	waiting.count = atoi(argv[2]);
	messages = atoi(argv[3]);
	must(waiting.count > 0 && messages > 0, "a number");
	setenv("NCCL_SOCKET_IFNAME", "lo", 1);
	setenv("BAGUA_NET_THREADS", "0", 1);
	load(&waiting, argv[1]);
	waiting.sends = allocate(waiting.count);
	waiting.receives = allocate(waiting.count);
	waiting.requests = allocate(waiting.count);
	for (int i = 0; i < waiting.count; i++) {
		open_one(&waiting, i);
		receive(&waiting, i);
	}
	measure(&waiting, messages);
	fflush(stdout);
	_Exit(0); /* the receives are outstanding */
}
