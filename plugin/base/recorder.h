/* SPDX-License-Identifier: MIT
 *
 * Records what happens on connections, for a while and on request: slices, from the first byte to the last, and
 * messages, from the post until they are done. Any thread that moves data records, without a lock; while nothing is
 * asked for, that is one look at a flag. What finds no room is counted.
 */
#ifndef BNET_RECORDER_H
#define BNET_RECORDER_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum bnet_event_kind {
	BNET_EVENT_SLICE = 1,
	BNET_EVENT_MESSAGE = 2,
};

/* As it is written into a file. Times of bnet_now_us. */
struct bnet_event {
	uint64_t begin_us, end_us;
	uint64_t connection, message, bytes;
	uint32_t stream; /* its serial; 0: of a message */
	uint16_t kind, sender;
};

extern _Atomic bool bnet_recording;

static inline bool bnet_recording_is_on(void)
{
	return atomic_load_explicit(&bnet_recording, memory_order_relaxed);
}

void bnet_record(const struct bnet_event *event);

/* One thread. False: no memory. */
bool bnet_recording_begin(void);
void bnet_recording_stop(void);
/* After the stop: the number of places that hold events. dropped: the number of events that came when all were
 * taken. */
size_t bnet_recording_size(uint64_t *dropped);
/* False: another thread is still about to write it. */
bool bnet_recording_get(size_t place, struct bnet_event *event);
/* Gives its memory back to the kernel. */
void bnet_recording_free(void);

#endif
