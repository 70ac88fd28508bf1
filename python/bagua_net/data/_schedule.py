# SPDX-License-Identifier: MIT
"""Which sample each rank takes at each step, so that the ranks of a step have like costs.

The samples are those that torch's DistributedSampler draws from the same seed, sorted by their costs and cut into rows
of one sample for each rank. No other partition into such rows has a smaller sum of the rows' spreads (greatest minus
least cost): the greatest of the rows cannot be smaller together than every n-th of the sorted costs, nor the least
larger.
"""

from __future__ import annotations

import torch


def schedule(
    costs: torch.Tensor, replicas: int, *, seed: int | None, drop_last: bool, random_level: float
) -> torch.Tensor:
    """The indices of one epoch, of shape (steps, replicas).

    Args:
        costs: float64, of shape (samples,).
        seed: of the order of samples and steps; None: in the order of the costs.
        drop_last: leave out samples that do not fill a row; otherwise the first ones drawn fill it.
        random_level: from 0 to 1; how far a sample may move in the order of costs, as a part of their range. It needs
            a seed.
    """
    samples = len(costs)
    generator = None if seed is None else torch.Generator().manual_seed(seed)
    drawn = torch.arange(samples) if generator is None else torch.randperm(samples, generator=generator)
    rows = samples // replicas if drop_last else -(-samples // replicas)
    if rows == 0:
        return torch.empty(0, replicas, dtype=torch.int64)
    drawn = drawn.repeat(-(-rows * replicas // samples))[: rows * replicas]
    keys = costs[drawn]
    if generator is not None and random_level > 0:
        reach = random_level * (costs.max() - costs.min())
        keys = keys + reach * torch.rand(len(keys), dtype=torch.float64, generator=generator)
    # Stable: samples of one cost stay in the order in which they were drawn.
    table = drawn[torch.sort(keys, stable=True).indices].view(rows, replicas)
    if generator is not None:
        table = table[torch.randperm(rows, generator=generator)]
    return _turned(table)


def _turned(table: torch.Tensor) -> torch.Tensor:
    """Each row one place further: otherwise the last rank had the costliest sample of every step."""
    rows, replicas = table.shape
    places = (torch.arange(replicas) + torch.arange(rows).unsqueeze(1)) % replicas
    return table.gather(1, places)
