/* SPDX-License-Identifier: MIT
 *
 * One direction of a long line as arithmetic on packets and times: which packets are under way and until when, which
 * are lost, which find the queue full. It reads no clock and makes no system call. An object belongs to one thread.
 * Times are nanoseconds of one clock, sizes are bytes.
 *
 * A packet is written to line_room() and enters with line_enter(). line_due() is the time at which the oldest packet
 * comes out, line_oldest() its place until line_leave(). Losses are drawn at the far end by line_loses(), once for each
 * packet of the wire that a large packet stands for.
 */
#ifndef LINE_H
#define LINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define LINE_NEVER UINT64_MAX

struct line_config {
	uint64_t delay;       /* one way */
	double loss;          /* share of packets, 0 to 1 */
	uint64_t rate;        /* bytes a second; 0: as fast as they come */
	uint64_t queue;       /* bytes that may wait for the rate; a packet that exceeds them is dropped */
	uint32_t seed;        /* of the losses */
	uint32_t packets;     /* most packets under way: a limit of memory, not of the line */
	uint32_t packet_size; /* of the largest */
	uint32_t header_size; /* precedes each packet in memory and does not count as its bytes */
};

struct line_counts {
	uint64_t overflowed; /* packets that found the queue full */
	uint64_t drawn;      /* calls of line_loses() */
	uint64_t lost;       /* and the packets among them that were lost */
	uint64_t full;       /* calls of line_room() that returned NULL: memory limits, not the line */
};

struct line;
/* 0 or -errno: -EINVAL for an impossible configuration, -ENOMEM. */
int line_create(struct line **out, const struct line_config *config);
void line_destroy(struct line *line);

/* header_size + packet_size bytes, or NULL while `packets` packets are under way. */
void *line_room(struct line *line);
/* size: bytes written to line_room(), with the header. */
void line_enter(struct line *line, uint64_t now, size_t size);
/* When the oldest packet comes out; LINE_NEVER if none is under way. */
uint64_t line_due(const struct line *line);
/* The oldest packet, of which there must be one. */
const void *line_oldest(const struct line *line, size_t *size);
void line_leave(struct line *line);
/* Draws for one packet. */
bool line_loses(struct line *line);

void line_count(const struct line *line, struct line_counts *counts);

#endif
