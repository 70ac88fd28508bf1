# SPDX-License-Identifier: MIT
"""What an algorithm asks of a DistributedDataParallel and its optimizers, for callers that wrap a model."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from ._algorithm import Algorithm

#: Arguments of DistributedDataParallel, that of torch 2.13 first: it still makes them equal at the beginning.
_ABOUT_BUFFERS = ("forward_sync_buffers", "broadcast_buffers")


def ddp_arguments(algorithm: Algorithm, given: Mapping[str, Any]) -> dict[str, Any]:
    """Those given for ``DistributedDataParallel``, and what the algorithm needs besides: buffers that stay each rank's
    own after the first step, where ranks train apart."""
    if algorithm.averages != "weights" or not given.keys().isdisjoint(_ABOUT_BUFFERS):
        return dict(given)
    known = inspect.signature(DistributedDataParallel).parameters
    return {**given, next(name for name in _ABOUT_BUFFERS if name in known): False}


def optimizer_for(algorithm: Algorithm, optimizers: Sequence[torch.optim.Optimizer]) -> torch.optim.Optimizer:
    """The one that the algorithm works with. Averages of gradients concern none, so there may be several.

    Raises:
        ValueError: no optimizer was given, or several for an algorithm that works with one.
    """
    if not optimizers:
        raise ValueError("bagua_net.algorithms: no optimizer was given; pass the one that trains the model")
    if len(optimizers) > 1 and algorithm.averages != "gradients":
        raise ValueError(
            f"bagua_net.algorithms: {algorithm.name} works with one optimizer, not with {len(optimizers)}; give one "
            "optimizer several parameter groups, or use an algorithm that averages gradients, such as bytegrad"
        )
    return optimizers[0]
