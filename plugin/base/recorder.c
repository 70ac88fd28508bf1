/* SPDX-License-Identifier: MIT
 *
 * See recorder.h.
 *
 * The places are of the process, from the first recording on: a thread that was interrupted between its look at the flag
 * and its write may come late. The number of its recording tells its event from those of the next one.
 */
#include "base/recorder.h"

#include <stdlib.h>

/* Two seconds of the most that two processors have sent through one connection, 128 KiB a slice, both ends. */
#define PLACES (1u << 18)

struct place {
	struct bnet_event event;
	_Atomic uint64_t recording; /* it is whole, of this one */
};

_Atomic bool bnet_recording;

static struct place *places;
static _Atomic uint64_t taken, number;

void bnet_record(const struct bnet_event *event)
{
	uint64_t of = atomic_load_explicit(&number, memory_order_acquire);
	uint64_t at = atomic_fetch_add_explicit(&taken, 1, memory_order_relaxed);

	if (at >= PLACES)
		return;
	places[at].event = *event;
	atomic_store_explicit(&places[at].recording, of, memory_order_release);
}

bool bnet_recording_begin(void)
{
	if (!places)
		places = calloc(PLACES, sizeof(*places));
	if (!places)
		return false;
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

bool bnet_recording_get(size_t place, struct bnet_event *event)
{
	if (atomic_load_explicit(&places[place].recording, memory_order_acquire) !=
	    atomic_load_explicit(&number, memory_order_relaxed))
		return false;
	*event = places[place].event;
	return true;
}
