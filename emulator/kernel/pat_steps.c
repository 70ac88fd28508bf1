/* SPDX-License-Identifier: MIT
 *
 * What both directions of PAT have in common: how many chunks share a slot, and steps in rounds. Pure.
 */
#include "kernel/pat_steps.h"

#include "layout/layout.h"

static int round_up_power(int value)
{
	int power = 1;

	while (power < value)
		power *= 2;
	return power;
}

/* Small chunks are collected in a slot; then steps are taken for more distances at once than share a slot, as far as
 * the connection has slots. */
static void choose_groups(struct emu_pat *pat)
{
	const struct emu_pat_config *config = &pat->config;
	const size_t slot = (size_t)config->chunk * config->element;
	const size_t bytes = (config->end - config->offset) * config->element;

	pat->groups = 1;
	while (slot / (bytes * (size_t)pat->groups) >= 2 && pat->groups < config->ranks / 2)
		pat->groups *= 2;
	pat->per_slot = pat->groups;
	pat->parallel = config->compact ? 1 : EMU_PAT_PARALLEL;
	if (pat->per_slot < pat->parallel)
		pat->parallel = pat->per_slot;
	for (int slots = EMU_STEPS; slots > 1 && pat->groups < config->ranks / 2; slots /= 2)
		pat->groups *= 2;
	pat->gap = pat->width / pat->groups;
}

void emu_pat_open(struct emu_pat *pat, const struct emu_pat_config *config)
{
	*pat = (struct emu_pat){.config = *config, .at = config->offset};
	pat->width = round_up_power(config->ranks);
	choose_groups(pat);
	if (config->reduces)
		emu_pat_reduce_reset(pat);
	else
		emu_pat_gather_reset(pat);
}

int emu_pat_next(struct emu_pat *pat, struct emu_pat_step *steps)
{
	int count = 0;

	while (count < pat->parallel) {
		struct emu_pat_step *step = &steps[count++];

		*step = (struct emu_pat_step){.count = pat->count, .from = -1, .to = -1};
		if (pat->config.reduces)
			emu_pat_reduce_step(pat, step);
		else
			emu_pat_gather_step(pat, step);
		if (step->last)
			break;
	}
	return count;
}
