# SPDX-License-Identifier: MIT
"""A dataset of numbers with costs, and batches of it: what test_loaders.py and lightning_job.py have in common."""

from __future__ import annotations

COSTS = [(index * 37) % 23 for index in range(46)]


def threes(indices: list[int]) -> list[list[int]]:
    return [indices[start : start + 3] for start in range(0, len(indices), 3)]
