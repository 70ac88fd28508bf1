/* SPDX-License-Identifier: MIT
 *
 * PAT's allgather: the reducescatter's ways backwards. What a rank received it sends on to the ranks of all lower bits,
 * and copies to its own output once. Pure.
 */
#include "kernel/pat_steps.h"

enum {
	RECEIVE, /* what nobody behind this rank needs */
	RELAY,   /* received parts and the own one go further */
	DOUBLE,  /* the groups themselves, the farthest first */
};

static void reset_group(struct emu_pat *pat)
{
	pat->group = 0;
	pat->last_group = pat->groups;
	if (pat->phase == DOUBLE)
		pat->last_group /= 2 * pat->scale;
}

/* The distances come so that each is sent as soon as it has arrived: every bit of the distance changes after a number
 * of turns that depends on how often it was zero. */
static int next_distance(struct emu_pat *pat)
{
	for (int i = 0; i < pat->bits; i++) {
		const int bit = 1 << i;

		if (--pat->turns[i] > 0)
			continue;
		pat->value ^= bit;
		pat->turns[i] = bit;
		if ((pat->value & bit) != 0)
			continue;
		pat->turns[i] += emu_pat_lowest_bit(pat->zeros[i], pat->bits) - 1;
		pat->zeros[i]++;
		if (pat->turns[i] == 0) {
			pat->value ^= bit;
			pat->turns[i] = bit;
		}
	}
	return pat->value;
}

void emu_pat_gather_reset(struct emu_pat *pat)
{
	const size_t left = pat->config.end - pat->at;

	pat->count = left < (size_t)pat->config.chunk ? (ssize_t)left : pat->config.chunk;
	pat->bits = emu_pat_lowest_bit(pat->gap, 0);
	pat->scale = pat->groups / 2;
	pat->phase = pat->scale > 0 ? DOUBLE : RELAY;
	pat->value = 0;
	for (int i = 0; i < pat->bits; i++) {
		pat->turns[i] = pat->bits - i;
		pat->zeros[i] = 1;
	}
	pat->distance = next_distance(pat);
	reset_group(pat);
}

static size_t output_of(const struct emu_pat *pat, int distance)
{
	const struct emu_pat_config *config = &pat->config;

	return (size_t)((config->rank + config->ranks + distance) % config->ranks) * config->stride + pat->at;
}

static ssize_t place(const struct emu_pat *pat, int n)
{
	return n % pat->per_slot * pat->count;
}

static bool fills_slot(const struct emu_pat *pat, int n)
{
	return (n + 1) % pat->per_slot == 0;
}

/* Is this the slot's last chunk, because it is full or the next distance does not exist? */
static bool completes(const struct emu_pat *pat, int n, int next)
{
	return fills_slot(pat, n) || next >= pat->config.ranks;
}

static void receive(struct emu_pat *pat, struct emu_pat_step *step)
{
	const int distance = pat->group * pat->gap + pat->distance;

	step->skip = distance >= pat->config.ranks;
	step->output = output_of(pat, distance);
	step->from = 0;
	step->from_at = place(pat, pat->group);
	step->post_from = completes(pat, pat->group, distance + pat->gap);
}

static void relay(struct emu_pat *pat, struct emu_pat_step *step)
{
	const int distance = pat->group * pat->gap + pat->distance;
	const int bit = emu_pat_lowest_bit(distance, pat->width), rest = distance - (1 << bit);
	int n = pat->group, next = distance + pat->gap - 1;

	step->skip = distance >= pat->config.ranks;
	step->to = bit;
	step->to_at = place(pat, pat->group);
	step->post_to = completes(pat, pat->group, distance + pat->gap);
	step->output = output_of(pat, rest);
	if (rest != 0) {
		step->from = emu_pat_lowest_bit(rest, pat->width);
		if (pat->distance == 1 << bit) { /* what the groups' phases received, in their order */
			n = pat->group * pat->gap >> (step->from + 1);
			next = (2 * (n + 1) + 1) << step->from;
		}
		step->from_at = place(pat, n);
		step->post_from = bit == 0 && completes(pat, n, next);
		step->ahead = bit == 0 ? 0 : n / pat->per_slot;
	}
	if (step->skip && bit == 0 && rest < pat->config.ranks) { /* nobody to send to, but a slot to give back */
		step->to = -1;
		step->post_to = false;
		step->skip = false;
	}
}

static void double_groups(struct emu_pat *pat, struct emu_pat_step *step)
{
	const int unit = pat->scale * pat->gap, distance = (2 * pat->group + 1) * unit;
	const int bit = emu_pat_lowest_bit(distance, pat->width), rest = distance - (1 << bit);

	step->skip = distance >= pat->config.ranks;
	step->to = bit;
	step->to_at = place(pat, pat->group);
	step->post_to = completes(pat, pat->group, distance + 2 * unit);
	step->output = output_of(pat, rest);
	if (rest != 0) {
		int n;

		step->from = emu_pat_lowest_bit(rest, pat->width);
		n = 2 * pat->group * unit >> (step->from + 1);
		step->from_at = place(pat, n);
		step->ahead = n / pat->per_slot;
	}
}

static void advance(struct emu_pat *pat, struct emu_pat_step *step)
{
	pat->group++;
	if (pat->group < pat->last_group || pat->group < pat->parallel)
		return;
	if (pat->phase == DOUBLE) {
		pat->scale /= 2;
		pat->phase = pat->scale > 0 ? DOUBLE : RELAY;
	} else if (pat->phase == RELAY && pat->distance % 2 == 1) {
		pat->phase = RECEIVE;
	} else {
		const bool received = pat->phase == RECEIVE;

		pat->phase = RELAY;
		pat->distance = next_distance(pat);
		if (received && pat->distance == pat->gap / 2) { /* all distances are done */
			pat->at += (size_t)pat->config.chunk;
			step->last = pat->at >= pat->config.end;
			emu_pat_gather_reset(pat);
			return;
		}
	}
	reset_group(pat);
}

void emu_pat_gather_step(struct emu_pat *pat, struct emu_pat_step *step)
{
	static void (*const phases[])(struct emu_pat *, struct emu_pat_step *) = {receive, relay, double_groups};

	step->input = pat->at;
	if (pat->group < pat->last_group)
		phases[pat->phase](pat, step);
	else
		step->skip = true;
	advance(pat, step);
}
