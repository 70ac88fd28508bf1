/* SPDX-License-Identifier: MIT
 *
 * PAT's reducescatter. A rank's input for the rank at distance s travels along the bits of s; what arrives for the same
 * rank is added on the way. From the largest distance down, each step is done for several distances. Pure.
 */
#include "kernel/pat_steps.h"

enum {
	START,    /* inputs that nobody adds to: an odd distance's way begins here */
	RELAY,    /* what arrived is added to what goes further */
	LAST_HOP, /* distances 1 from the groups: receive from the neighbour */
	HALVE,    /* the groups themselves */
	KEEP,     /* the own result */
};

static void reset_group(struct emu_pat *pat)
{
	pat->group = 0;
	pat->skipped_to = pat->skipped_from = pat->ahead = 0;
	pat->last_group = pat->groups;
	if (pat->phase >= LAST_HOP)
		pat->last_group /= 2 * pat->scale;
	if (pat->phase == KEEP)
		pat->last_group = 1;
}

void emu_pat_reduce_reset(struct emu_pat *pat)
{
	const size_t left = pat->config.end - pat->at;

	pat->count = left < (size_t)pat->config.chunk ? (ssize_t)left : pat->config.chunk;
	pat->phase = START;
	pat->scale = 1;
	pat->received = 0;
	pat->distance = pat->gap - 1;
	reset_group(pat);
}

/* The groups' order: bits reversed and inverted, so that the farthest come first. */
static int mirrored(int value, int limit)
{
	int result = 0;

	for (int low = 1, high = limit / 2; low < limit; low *= 2, high /= 2)
		result += (value & low) == 0 ? high : 0;
	return result;
}

/* Does the group begin another peer's slots? Those are the limit less a power of two. */
static bool begins_peer(int group, int limit)
{
	return __builtin_popcount((unsigned)((group ^ (limit - 1)) + 1)) == 1;
}

static size_t input_for(const struct emu_pat *pat, int distance)
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

static bool is_last_group(const struct emu_pat *pat)
{
	return pat->group == pat->last_group - 1;
}

static void receive_nothing(struct emu_pat_step *step)
{
	step->from = -1;
	step->post_from = false;
	step->skip = false;
}

static void start(struct emu_pat *pat, struct emu_pat_step *step)
{
	const int distance = mirrored(pat->group, pat->last_group) * pat->gap + pat->distance;
	const int n = pat->group - pat->skipped_to;

	step->skip = distance >= pat->config.ranks;
	step->input = input_for(pat, distance);
	step->to = 0;
	step->to_at = place(pat, n);
	step->post_to = fills_slot(pat, n) || is_last_group(pat);
	if (step->skip && pat->config.compact)
		pat->skipped_to++;
}

/* Which slot of the next peer the step adds to. Without gaps it follows from the steps so far. */
static void look_ahead(struct emu_pat *pat, struct emu_pat_step *step, bool sends_now)
{
	const int n = pat->group - pat->skipped_to;

	step->to_at = place(pat, n);
	if (pat->config.compact) {
		step->ahead = sends_now ? 0 : n / pat->per_slot;
		return;
	}
	step->ahead = pat->ahead;
	if (!sends_now && fills_slot(pat, n) && !step->skip)
		pat->ahead++;
}

static void count_skipped(struct emu_pat *pat, const struct emu_pat_step *step)
{
	if (!pat->config.compact)
		return;
	pat->skipped_from += step->skip || step->from < 0;
	pat->skipped_to += step->skip;
}

static void relay(struct emu_pat *pat, struct emu_pat_step *step)
{
	const int distance = mirrored(pat->group, pat->last_group) * pat->gap + pat->distance;
	const int bit = emu_pat_lowest_bit(distance, pat->width), rest = distance - (1 << bit);
	const int n = pat->group - pat->skipped_from, out = pat->group - pat->skipped_to;

	step->skip = distance >= pat->config.ranks;
	step->from = bit;
	step->from_at = place(pat, n);
	step->post_from = fills_slot(pat, n) || is_last_group(pat);
	step->post_to = bit == 0 && (fills_slot(pat, out) || is_last_group(pat));
	step->input = input_for(pat, rest);
	step->to = rest == 0 ? -1 : emu_pat_lowest_bit(rest, pat->width);
	if (step->to >= 0 && pat->distance == 1 << bit && begins_peer(pat->group, pat->groups)) {
		pat->skipped_to = pat->group;
		pat->ahead = 0;
	}
	if (step->skip && rest < pat->config.ranks)
		receive_nothing(step);
	look_ahead(pat, step, bit == 0);
	count_skipped(pat, step);
}

static void last_hop(struct emu_pat *pat, struct emu_pat_step *step)
{
	const int group = (2 * mirrored(pat->group, pat->last_group) + 1) * pat->scale * pat->gap;
	const int n = pat->group - pat->skipped_to;

	step->skip = group + 1 >= pat->config.ranks;
	step->from = 0;
	step->input = input_for(pat, group);
	step->to = emu_pat_lowest_bit(group, pat->width);
	step->to_at = place(pat, n);
	step->post_to = is_last_group(pat) || fills_slot(pat, n);
	if (step->skip && group < pat->config.ranks) {
		receive_nothing(step);
	} else if (!step->skip) {
		const int in = pat->config.compact ? pat->received++
						   : pat->group + pat->groups - pat->groups / pat->scale;

		step->from_at = place(pat, in);
		step->post_from = fills_slot(pat, in);
	}
	if (step->skip && pat->config.compact)
		pat->skipped_to++;
}

static void halve(struct emu_pat *pat, struct emu_pat_step *step)
{
	const int group = (2 * mirrored(pat->group, pat->last_group) + 1) * pat->scale * pat->gap;
	const int bit = emu_pat_lowest_bit(group, pat->width), rest = group - (1 << bit);
	const int n = pat->group - pat->skipped_from;

	step->skip = group >= pat->config.ranks;
	step->from = bit;
	step->from_at = place(pat, n);
	step->post_from = is_last_group(pat) || fills_slot(pat, n);
	step->input = input_for(pat, rest);
	step->to = rest == 0 ? -1 : emu_pat_lowest_bit(rest, pat->width);
	if (step->skip && rest < pat->config.ranks)
		receive_nothing(step);
	if (begins_peer(pat->group, pat->groups / (2 * pat->scale))) {
		pat->skipped_to = pat->group;
		pat->ahead = 0;
	}
	look_ahead(pat, step, false);
	count_skipped(pat, step);
}

static void keep(struct emu_pat *pat, struct emu_pat_step *step)
{
	const int n = pat->config.compact ? pat->received : pat->groups - 1;

	step->from = 0;
	step->from_at = place(pat, n);
	step->post_from = true;
	step->complete = true;
	step->input = input_for(pat, 0);
	pat->at += (size_t)pat->config.chunk;
}

static int next_phase(const struct emu_pat *pat)
{
	switch (pat->phase) {
	case START:
		return pat->distance > 1 ? RELAY : pat->groups > 1 ? LAST_HOP : KEEP;
	case RELAY:
		return pat->distance % 2 == 1 ? START : RELAY;
	case LAST_HOP:
		return HALVE;
	default:
		return pat->scale < pat->groups ? LAST_HOP : KEEP;
	}
}

static void advance(struct emu_pat *pat, struct emu_pat_step *step)
{
	pat->group++;
	if (pat->group < pat->last_group || pat->group < pat->parallel) {
		return;
	}
	if (pat->phase == KEEP) {
		step->last = pat->at >= pat->config.end;
		emu_pat_reduce_reset(pat);
		return;
	}
	if (pat->phase == RELAY)
		pat->distance--;
	if (pat->phase == HALVE)
		pat->scale *= 2;
	pat->phase = next_phase(pat);
	reset_group(pat);
}

void emu_pat_reduce_step(struct emu_pat *pat, struct emu_pat_step *step)
{
	static void (*const phases[])(struct emu_pat *, struct emu_pat_step *) = {start, relay, last_hop, halve, keep};

	step->output = pat->at;
	if (pat->group < pat->last_group)
		phases[pat->phase](pat, step);
	else
		step->skip = true;
	advance(pat, step);
}
