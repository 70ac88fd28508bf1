/* SPDX-License-Identifier: MIT
 *
 * One direction of a long line, as arithmetic on packets and times: what is under way and until when, what is lost, what
 * finds the queue full. It reads no clock and makes no system call. One object belongs to one thread. Times are
 * nanoseconds of one clock, sizes bytes.
 *
 * A packet is written where line_room() points and enters with line_enter(); line_due() says when the oldest one comes
 * out, line_oldest() where it lies until line_leave(). Which packets are lost is drawn at the far end, by line_loses(): a
 * large packet that stands for many of the wire is drawn for as often.
 */
#ifndef LINE_H
#define LINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define LINE_NEVER UINT64_MAX

struct line_config {
	uint64_t delay;          /* one way */
	double loss;             /* share of packets, 0 to 1 */
	uint64_t rate;           /* bytes a second; 0: as fast as they come */
	uint64_t queue;          /* bytes that may wait for the rate; a packet that would exceed them is dropped */
	uint32_t seed;           /* of the losses */
	uint32_t packets;        /* under way at most: memory, and no property of the line */
	uint32_t packet_size;    /* of the largest */
	uint32_t header_size;    /* what precedes each packet in memory and does not count as its bytes */
};

struct line_counts {
	uint64_t overflowed;     /* packets that found the queue full */
	uint64_t drawn;          /* packets that line_loses() was asked for */
	uint64_t lost;           /* and those of them that it lost */
	uint64_t full;           /* times that line_room() had none: then memory limits, not the line */
};

struct line;
/* 0, or -errno: -EINVAL for what no line can be like, -ENOMEM. */
int line_create(struct line **out, const struct line_config *config);
void line_destroy(struct line *line);

/* header_size + packet_size bytes, or NULL while as many packets as there is memory for are under way. */
void *line_room(struct line *line);
/* size: of what was written to line_room(), with the header. */
void line_enter(struct line *line, uint64_t now, size_t size);
/* When the oldest packet comes out; LINE_NEVER where none is under way. */
uint64_t line_due(const struct line *line);
/* The oldest packet, of which there must be one. */
const void *line_oldest(const struct line *line, size_t *size);
void line_leave(struct line *line);
/* Draws for one packet. */
bool line_loses(struct line *line);

void line_count(const struct line *line, struct line_counts *counts);

#endif
