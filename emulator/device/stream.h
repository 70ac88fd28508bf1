/* SPDX-License-Identifier: MIT
 *
 * Streams and events. A stream's operations run one after another: short ones on the caller's thread where the stream
 * is idle, all others on a thread of the stream, which starts with the first of them. An event is a position in a
 * stream. All functions may be called from any thread.
 */
#ifndef EMU_STREAM_H
#define EMU_STREAM_H

#include <stdbool.h>
#include <stdint.h>

struct emu_stream;
struct emu_event;

/* Runs on the stream; 0 or a cudaError_t, which the stream keeps. It owns arg. */
typedef int (*emu_operation)(void *arg);

struct emu_stream *emu_stream_new(void);
/* The stream behind a cudaStream_t: NULL and CUDA's special values (1, 2) are the default stream. Borrowed. */
struct emu_stream *emu_stream_of(void *handle);
/* Ends the stream when its operations are done; returns at once. */
void emu_stream_drop(struct emu_stream *stream);
uint64_t emu_stream_id(const struct emu_stream *stream);

/* Appends an operation; 0 or a cudaError_t. A short operation copies or sets memory and never waits. */
int emu_stream_run(struct emu_stream *stream, emu_operation operation, void *arg, bool is_short);
/* Waits until all operations appended so far are done; the stream's error. */
int emu_stream_wait(struct emu_stream *stream);
bool emu_stream_idle(struct emu_stream *stream);
/* The same for every stream of the process. */
void emu_stream_wait_all(void);

struct emu_event *emu_event_new(void);
void emu_event_drop(struct emu_event *event);
/* The event is now the stream's end. */
void emu_event_record(struct emu_event *event, struct emu_stream *stream);
bool emu_event_done(struct emu_event *event);
void emu_event_wait(struct emu_event *event);
/* Operations appended to stream from now on wait for the event as it is recorded now. */
int emu_event_gate(struct emu_event *event, struct emu_stream *stream);

#endif
