# SPDX-License-Identifier: MIT
"""What each sample of a dataset costs: computed sample by sample, or given."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Sized
from typing import Any

import torch

#: A function of a sample, or the costs themselves: numbers, a tensor or an array.
Complexity = Callable[[Any], Any] | Sequence[float] | Any


def costs_of(dataset: Sized, complexity_fn: Complexity) -> torch.Tensor:
    """The costs as float64, of shape (len(dataset),).

    A function is called with each sample, so every sample is loaded once.

    Raises:
        TypeError: a cost is not a number.
        ValueError: a cost is infinite or not a number (NaN), or there is not one for each sample.
    """
    if callable(complexity_fn):
        costs = torch.tensor(
            [_cost(dataset, index, complexity_fn) for index in range(len(dataset))], dtype=torch.float64
        )
    else:
        costs = _given(complexity_fn)
    if costs.shape != (len(dataset),):
        raise ValueError(f"the costs have the shape {tuple(costs.shape)}: give one for each of {len(dataset)} samples")
    wrong = torch.nonzero(~torch.isfinite(costs)).flatten().tolist()
    if wrong:
        raise ValueError(f"the cost of sample {wrong[0]} is {costs[wrong[0]].item()}: give finite numbers")
    return costs


def _cost(dataset: Any, index: int, complexity_fn: Callable[[Any], Any]) -> float:
    cost = complexity_fn(dataset[index])
    try:
        return float(cost)
    except (TypeError, ValueError):
        raise TypeError(f"complexity_fn returned {cost!r} for sample {index}: it returns one number") from None


def _given(costs: Any) -> torch.Tensor:
    try:
        return torch.as_tensor(costs, dtype=torch.float64, device="cpu").detach().clone()
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(f"complexity_fn is a function of a sample, or a number for each sample: {error}") from None
