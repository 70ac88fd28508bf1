/* SPDX-License-Identifier: MIT
 *
 * The line of line.h: a queue of packets in the order of arrival, which is the order of departure, since all have the
 * same delay. Packets lie in slots of one size; the slot freed last is reused first, while it is in the processor's
 * cache. One thread per object.
 */
#include "line.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>

#define SECOND 1000000000ull
#define SLOT_ALIGNMENT 64u
#define LONGEST (60 * SECOND) /* of delay and of a queue's drain time: keeps the arithmetic within 64 bits */
#define MAX_RATE 1000000000000ull

struct packet {
	uint64_t due;
	uint32_t slot;
	uint32_t size;
};

struct line {
	struct line_config config;
	struct line_counts counts;
	uint64_t queue_time; /* in which config.queue drains */
	uint64_t busy_until; /* when the last byte that entered passes the bottleneck */
	struct drand48_data random;

	char *slots;
	size_t slot_size;
	uint32_t *unused; /* a stack of slots */
	uint32_t unused_count;
	struct packet *packets; /* a ring */
	uint32_t first;
	uint32_t count;
};

/* Rounded up, so that the rate is never exceeded. */
static uint64_t time_of(uint64_t bytes, uint64_t rate)
{
	return (uint64_t)(((unsigned __int128)bytes * SECOND + rate - 1) / rate);
}

static int check(const struct line_config *config)
{
	if (config->delay > LONGEST || !(config->loss >= 0 && config->loss <= 1) || !config->packets ||
	    !config->packet_size)
		return -EINVAL;
	if (!config->rate)
		return 0;
	if (config->rate > MAX_RATE || config->queue < config->packet_size ||
	    time_of(config->queue, config->rate) > LONGEST)
		return -EINVAL;
	return 0;
}

static size_t slots_size(const struct line *line)
{
	return line->slot_size * line->config.packets;
}

static int allocate(struct line *line)
{
	uint32_t packets = line->config.packets;
	size_t size = (size_t)line->config.header_size + line->config.packet_size;

	line->slot_size = (size + SLOT_ALIGNMENT - 1) / SLOT_ALIGNMENT * SLOT_ALIGNMENT;
	line->unused = calloc(packets, sizeof(*line->unused));
	line->packets = calloc(packets, sizeof(*line->packets));
	/* Untouched slots take no memory. */
	line->slots = mmap(NULL, slots_size(line), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
			   -1, 0);
	if (line->slots == MAP_FAILED)
		line->slots = NULL;
	if (!line->unused || !line->packets || !line->slots)
		return -ENOMEM;
	for (uint32_t i = 0; i < packets; i++)
		line->unused[i] = packets - 1 - i;
	line->unused_count = packets;
	return 0;
}

int line_create(struct line **out, const struct line_config *config)
{
	struct line *line;
	int err = check(config);

	if (err)
		return err;
	line = calloc(1, sizeof(*line));
	if (!line)
		return -ENOMEM;
	line->config = *config;
	line->queue_time = config->rate ? time_of(config->queue, config->rate) : 0;
	srand48_r((long)config->seed, &line->random);
	err = allocate(line);
	if (err)
		line_destroy(line);
	else
		*out = line;
	return err;
}

void line_destroy(struct line *line)
{
	if (!line)
		return;
	if (line->slots)
		munmap(line->slots, slots_size(line));
	free(line->packets);
	free(line->unused);
	free(line);
}

void *line_room(struct line *line)
{
	if (line->unused_count)
		return line->slots + line->unused[line->unused_count - 1] * line->slot_size;
	line->counts.full++;
	return NULL;
}

/* When a packet that arrives now has passed the bottleneck; LINE_NEVER if the queue is full. */
static uint64_t pass_bottleneck(struct line *line, uint64_t now, uint64_t bytes)
{
	uint64_t free_at = line->busy_until > now ? line->busy_until : now;
	uint64_t done;

	if (!line->config.rate)
		return now;
	done = free_at + time_of(bytes, line->config.rate);
	if (done > now + line->queue_time)
		return LINE_NEVER;
	line->busy_until = done;
	return done;
}

void line_enter(struct line *line, uint64_t now, size_t size)
{
	uint64_t passed = pass_bottleneck(line, now, size - line->config.header_size);
	uint32_t last;

	if (passed == LINE_NEVER) {
		line->counts.overflowed++;
		return;
	}
	last = (line->first + line->count++) % line->config.packets;
	line->packets[last] = (struct packet){
		.due = passed + line->config.delay,
		.slot = line->unused[--line->unused_count],
		.size = (uint32_t)size,
	};
}

uint64_t line_due(const struct line *line)
{
	return line->count ? line->packets[line->first].due : LINE_NEVER;
}

const void *line_oldest(const struct line *line, size_t *size)
{
	const struct packet *packet = &line->packets[line->first];

	*size = packet->size;
	return line->slots + packet->slot * line->slot_size;
}

void line_leave(struct line *line)
{
	line->unused[line->unused_count++] = line->packets[line->first].slot;
	line->first = (line->first + 1) % line->config.packets;
	line->count--;
}

bool line_loses(struct line *line)
{
	double drawn;

	line->counts.drawn++;
	if (!(line->config.loss > 0))
		return false;
	drand48_r(&line->random, &drawn);
	line->counts.lost += drawn < line->config.loss;
	return drawn < line->config.loss;
}

void line_count(const struct line *line, struct line_counts *counts)
{
	*counts = line->counts;
}
