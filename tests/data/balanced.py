# SPDX-License-Identifier: MIT
"""A dataset of numbers with costs, and batches of it: what test_loaders.py and lightning_job.py have in common."""

from __future__ import annotations

COSTS = [(index * 37) % 23 for index in range(46)]


EPOCHS = 4


def threes(indices: list[int]) -> list[list[int]]:
    return [indices[start : start + 3] for start in range(0, len(indices), 3)]


def at_most_40(indices: list[int]) -> list[list[int]]:
    """By cost: another number of batches in each epoch."""
    batches: list[list[int]] = []
    cost = 0
    for index in indices:
        if not batches or cost + COSTS[index] > 40:
            batches.append([])
            cost = 0
        batches[-1].append(index)
        cost += COSTS[index]
    return batches
