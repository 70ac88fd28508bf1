/* SPDX-License-Identifier: MIT
 *
 * Streams and events. Each stream has a lock; it protects the queue, the counters and the state below. A stream is
 * referenced by its owner, by its thread, and by events and gates that name it.
 */
#include "device/stream.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "common/thread.h"
#include "device/error.h"

struct operation {
	struct operation *next;
	emu_operation run;
	void *arg;
};

struct emu_stream {
	pthread_mutex_t lock;
	pthread_cond_t changed; /* an operation was appended or finished, or the stream ends */
	struct operation *first, **last;
	uint64_t appended, finished;
	int references;
	int error;     /* the first one */
	bool threaded; /* its thread has started */
	bool ending;
	uint64_t id;
	struct emu_stream *previous, *next; /* in the list of all streams, protected by streams_lock */
};

struct emu_event {
	pthread_mutex_t lock;
	struct emu_stream *stream; /* NULL: never recorded */
	uint64_t at;
};

/* Taken before a stream's lock. */
static pthread_mutex_t streams_lock = PTHREAD_MUTEX_INITIALIZER;
static struct emu_stream *streams;
static pthread_once_t default_once = PTHREAD_ONCE_INIT;
static struct emu_stream *default_stream;

/* ---- life ---- */

struct emu_stream *emu_stream_new(void)
{
	static atomic_uint_fast64_t ids;
	struct emu_stream *stream = calloc(1, sizeof(*stream));

	if (stream == NULL)
		return NULL;
	pthread_mutex_init(&stream->lock, NULL);
	pthread_cond_init(&stream->changed, NULL);
	stream->last = &stream->first;
	stream->references = 1;
	stream->id = atomic_fetch_add(&ids, 1) + 1;
	pthread_mutex_lock(&streams_lock);
	stream->next = streams;
	if (streams != NULL)
		streams->previous = stream;
	streams = stream;
	pthread_mutex_unlock(&streams_lock);
	return stream;
}

static void make_default(void)
{
	default_stream = emu_stream_new();
}

struct emu_stream *emu_stream_of(void *handle)
{
	if ((uintptr_t)handle > 2)
		return handle;
	pthread_once(&default_once, make_default);
	return default_stream;
}

uint64_t emu_stream_id(const struct emu_stream *stream)
{
	return stream->id;
}

static void hold(struct emu_stream *stream)
{
	pthread_mutex_lock(&stream->lock);
	stream->references++;
	pthread_mutex_unlock(&stream->lock);
}

static void release(struct emu_stream *stream)
{
	bool last;

	pthread_mutex_lock(&streams_lock);
	pthread_mutex_lock(&stream->lock);
	last = --stream->references == 0;
	pthread_mutex_unlock(&stream->lock);
	if (last) {
		if (stream->previous != NULL)
			stream->previous->next = stream->next;
		else
			streams = stream->next;
		if (stream->next != NULL)
			stream->next->previous = stream->previous;
	}
	pthread_mutex_unlock(&streams_lock);
	if (!last)
		return;
	pthread_cond_destroy(&stream->changed);
	pthread_mutex_destroy(&stream->lock);
	free(stream);
}

void emu_stream_drop(struct emu_stream *stream)
{
	if (stream == default_stream)
		return;
	pthread_mutex_lock(&stream->lock);
	stream->ending = true;
	pthread_cond_broadcast(&stream->changed);
	pthread_mutex_unlock(&stream->lock);
	release(stream);
}

/* ---- operations ---- */

/* Takes the lock and returns with it. */
static void finish(struct emu_stream *stream, int error)
{
	pthread_mutex_lock(&stream->lock);
	if (stream->error == 0)
		stream->error = error;
	stream->finished++;
	pthread_cond_broadcast(&stream->changed);
}

static void *work(void *arg)
{
	struct emu_stream *stream = arg;

	pthread_mutex_lock(&stream->lock);
	for (;;) {
		struct operation *operation = stream->first;
		int error;

		if (operation == NULL) {
			if (stream->ending)
				break;
			pthread_cond_wait(&stream->changed, &stream->lock);
			continue;
		}
		stream->first = operation->next;
		if (stream->first == NULL)
			stream->last = &stream->first;
		pthread_mutex_unlock(&stream->lock);
		error = operation->run(operation->arg);
		free(operation);
		finish(stream, error);
	}
	pthread_mutex_unlock(&stream->lock);
	release(stream);
	return NULL;
}

/* Starts the stream's thread; the caller holds the lock. */
static int start(struct emu_stream *stream)
{
	pthread_t thread;

	if (stream->threaded)
		return 0;
	if (bnet_thread_start(&thread, work, stream) < 0)
		return EMU_CUDA_MEMORY;
	pthread_setname_np(thread, "emu-stream");
	pthread_detach(thread);
	stream->threaded = true;
	stream->references++;
	return 0;
}

int emu_stream_run(struct emu_stream *stream, emu_operation run, void *arg, bool is_short)
{
	struct operation *operation;
	int error;

	pthread_mutex_lock(&stream->lock);
	if (is_short && stream->appended == stream->finished) {
		/* Under the lock: whatever is appended meanwhile comes after it. */
		error = run(arg);
		if (stream->error == 0)
			stream->error = error;
		pthread_mutex_unlock(&stream->lock);
		return error;
	}
	operation = malloc(sizeof(*operation));
	error = operation == NULL ? EMU_CUDA_MEMORY : start(stream);
	if (error != 0) {
		pthread_mutex_unlock(&stream->lock);
		free(operation);
		return error;
	}
	*operation = (struct operation){NULL, run, arg};
	*stream->last = operation;
	stream->last = &operation->next;
	stream->appended++;
	pthread_cond_broadcast(&stream->changed);
	pthread_mutex_unlock(&stream->lock);
	return 0;
}

/* ---- waiting ---- */

static void wait_until(struct emu_stream *stream, uint64_t at)
{
	pthread_mutex_lock(&stream->lock);
	while (stream->finished < at)
		pthread_cond_wait(&stream->changed, &stream->lock);
	pthread_mutex_unlock(&stream->lock);
}

static uint64_t end_of(struct emu_stream *stream)
{
	uint64_t end;

	pthread_mutex_lock(&stream->lock);
	end = stream->appended;
	pthread_mutex_unlock(&stream->lock);
	return end;
}

static bool reached(struct emu_stream *stream, uint64_t at)
{
	bool done;

	pthread_mutex_lock(&stream->lock);
	done = stream->finished >= at;
	pthread_mutex_unlock(&stream->lock);
	return done;
}

int emu_stream_wait(struct emu_stream *stream)
{
	int error;

	wait_until(stream, end_of(stream));
	pthread_mutex_lock(&stream->lock);
	error = stream->error;
	pthread_mutex_unlock(&stream->lock);
	return error;
}

bool emu_stream_idle(struct emu_stream *stream)
{
	return reached(stream, end_of(stream));
}

void emu_stream_wait_all(void)
{
	struct emu_stream *stream;

	pthread_mutex_lock(&streams_lock);
	for (stream = streams; stream != NULL && emu_stream_idle(stream); stream = stream->next)
		;
	while (stream != NULL) {
		hold(stream);
		pthread_mutex_unlock(&streams_lock);
		(void)emu_stream_wait(stream);
		release(stream);
		pthread_mutex_lock(&streams_lock);
		for (stream = streams; stream != NULL && emu_stream_idle(stream); stream = stream->next)
			;
	}
	pthread_mutex_unlock(&streams_lock);
}

/* ---- events ---- */

struct emu_event *emu_event_new(void)
{
	struct emu_event *event = calloc(1, sizeof(*event));

	if (event != NULL)
		pthread_mutex_init(&event->lock, NULL);
	return event;
}

static void record(struct emu_event *event, struct emu_stream *stream, uint64_t at)
{
	struct emu_stream *old;

	pthread_mutex_lock(&event->lock);
	old = event->stream;
	event->stream = stream;
	event->at = at;
	pthread_mutex_unlock(&event->lock);
	if (old != NULL)
		release(old);
}

void emu_event_drop(struct emu_event *event)
{
	record(event, NULL, 0);
	pthread_mutex_destroy(&event->lock);
	free(event);
}

void emu_event_record(struct emu_event *event, struct emu_stream *stream)
{
	hold(stream);
	record(event, stream, end_of(stream));
}

/* The stream, held, and the position; NULL: nothing to wait for. */
static struct emu_stream *position(struct emu_event *event, uint64_t *at)
{
	struct emu_stream *stream;

	pthread_mutex_lock(&event->lock);
	stream = event->stream;
	*at = event->at;
	if (stream != NULL)
		hold(stream);
	pthread_mutex_unlock(&event->lock);
	return stream;
}

bool emu_event_done(struct emu_event *event)
{
	uint64_t at;
	struct emu_stream *stream = position(event, &at);
	bool done = true;

	if (stream != NULL) {
		done = reached(stream, at);
		release(stream);
	}
	return done;
}

void emu_event_wait(struct emu_event *event)
{
	uint64_t at;
	struct emu_stream *stream = position(event, &at);

	if (stream != NULL) {
		wait_until(stream, at);
		release(stream);
	}
}

struct gate {
	struct emu_stream *stream;
	uint64_t at;
};

static int pass(void *arg)
{
	struct gate *gate = arg;

	wait_until(gate->stream, gate->at);
	release(gate->stream);
	free(gate);
	return 0;
}

int emu_event_gate(struct emu_event *event, struct emu_stream *stream)
{
	uint64_t at;
	struct emu_stream *before = position(event, &at);
	struct gate *gate;
	int error;

	if (before == NULL)
		return 0;
	if (before == stream || reached(before, at)) {
		release(before);
		return 0;
	}
	gate = malloc(sizeof(*gate));
	if (gate == NULL) {
		release(before);
		return EMU_CUDA_MEMORY;
	}
	*gate = (struct gate){before, at};
	error = emu_stream_run(stream, pass, gate, false);
	if (error != 0) {
		release(before);
		free(gate);
	}
	return error;
}
