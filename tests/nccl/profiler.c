/* SPDX-License-Identifier: MIT
 *
 * A profiler plugin of NCCL, interface v3 (NCCL 2.26 and later), that wants the kinds of events in BNET_TEST_EVENTS. At
 * its end it writes what it was told to the file that BNET_TEST_PROFILE names, a line a quantity.
 *
 * NCCL calls it on any thread.
 */
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/abi.h"

#define NET_PLUGIN (1 << 7)

struct event {
	uint8_t type;
	void *parent;
	int rank;
	struct {
		int64_t id;
		void *data;
	} net;
	uint64_t rest[16]; /* the other kinds are longer */
};

struct profiler {
	const char *name;
	ncclResult_t (*init)(void **context, int *mask);
	ncclResult_t (*start)(void *context, void **handle, const struct event *event);
	ncclResult_t (*stop)(void *handle);
	ncclResult_t (*record)(void *handle, int state, void *arguments);
	ncclResult_t (*finalize)(void *context);
};

static _Atomic uint64_t started, stopped, orphans, strange, sent, received;
/* A step's handle is this; so is a message's. */
static int step, message;

static ncclResult_t init(void **context, int *mask)
{
	*context = &started;
	*mask = atoi(getenv("BNET_TEST_EVENTS"));
	return ncclSuccess;
}

static void take(const struct event *event)
{
	const ncclProfilerNetSockDescr_v1_t *data = event->net.data;

	started++;
	if (event->parent != &step)
		orphans++;
	if (event->net.id != (NCCL_PROFILER_NET_TYPE_SOCK | 1) || data->type != ncclProfileSocket ||
	    data->sock.fd != -1)
		strange++;
	else
		*(data->sock.op == NCCL_SOCKET_SEND ? &sent : &received) += data->sock.length;
}

static ncclResult_t start(void *context, void **handle, const struct event *event)
{
	(void)context;
	*handle = &step;
	if (event->type == NET_PLUGIN) {
		take(event);
		*handle = &message;
	}
	return ncclSuccess;
}

static ncclResult_t stop(void *handle)
{
	stopped += handle == &message;
	return ncclSuccess;
}

static ncclResult_t record(void *handle, int state, void *arguments)
{
	(void)handle, (void)state, (void)arguments;
	return ncclSuccess;
}

static ncclResult_t finalize(void *context)
{
	FILE *file = fopen(getenv("BNET_TEST_PROFILE"), "w");

	(void)context;
	if (!file)
		return ncclSystemError;
	fprintf(file, "started %ju\nstopped %ju\norphans %ju\nstrange %ju\nsent %ju\nreceived %ju\n",
		(uintmax_t)started, (uintmax_t)stopped, (uintmax_t)orphans, (uintmax_t)strange, (uintmax_t)sent,
		(uintmax_t)received);
	fclose(file);
	return ncclSuccess;
}

extern const struct profiler ncclProfiler_v3;
const struct profiler ncclProfiler_v3 = {"test", init, start, stop, record, finalize};
