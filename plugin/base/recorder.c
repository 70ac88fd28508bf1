/* SPDX-License-Identifier: MIT
 *
 * See recorder.h.
 *
 * The places are of the process, from the first recording on: a thread that was interrupted between its look at the
 * flag and its write may come late. A place says of which recording its event is, and whether it is being written: who
 * finds a later one there, or one that is being written, gives way.
 */
#include "base/recorder.h"

#include <stdalign.h>
#include <sys/mman.h>

/* Two seconds of the most that two processors have sent through one connection, 128 KiB a slice, both ends. */
#define PLACES (1u << 18)
#define BYTES (PLACES * sizeof(struct place))

struct place {
	struct bnet_event event;
	_Atomic uint64_t state; /* twice the recording's number, and one more while it is written */
};

_Atomic bool bnet_recording;

static struct place *places;
static alignas(64) _Atomic uint64_t taken;
static alignas(64) _Atomic uint64_t number;

void bnet_record(const struct bnet_event *event)
{
	uint64_t of = 2 * atomic_load_explicit(&number, memory_order_acquire), state;
	struct place *place;
	uint64_t at;

	/* The look at the flag orders nothing: the number may be older, and nothing has told this thread of the places. */
	if (of == 0)
		return;
	at = atomic_fetch_add_explicit(&taken, 1, memory_order_relaxed);
	if (at >= PLACES)
		return;
	place = &places[at];
	state = atomic_load_explicit(&place->state, memory_order_relaxed);
	if (state >= of || state & 1 ||
	    !atomic_compare_exchange_strong_explicit(&place->state, &state, of + 1, memory_order_acquire,
						     memory_order_relaxed))
		return;
	place->event = *event;
	atomic_store_explicit(&place->state, of, memory_order_release);
}

bool bnet_recording_begin(void)
{
	void *made;

	if (!places) {
		made = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		if (made == MAP_FAILED)
			return false;
		places = made;
	}
	atomic_store_explicit(&taken, 0, memory_order_relaxed);
	atomic_fetch_add_explicit(&number, 1, memory_order_release);
	atomic_store_explicit(&bnet_recording, true, memory_order_release);
	return true;
}

void bnet_recording_stop(void)
{
	atomic_store_explicit(&bnet_recording, false, memory_order_relaxed);
}

size_t bnet_recording_size(uint64_t *dropped)
{
	uint64_t all = atomic_load_explicit(&taken, memory_order_acquire);

	*dropped = all > PLACES ? all - PLACES : 0;
	return all > PLACES ? PLACES : (size_t)all;
}

bool bnet_recording_get(size_t at, struct bnet_event *event)
{
	if (atomic_load_explicit(&places[at].state, memory_order_acquire) !=
	    2 * atomic_load_explicit(&number, memory_order_relaxed))
		return false;
	*event = places[at].event;
	return true;
}

void bnet_recording_free(void)
{
	if (places)
		madvise(places, BYTES, MADV_DONTNEED);
}
