# SPDX-License-Identifier: MIT
"""Small models, their data, and steps of training, for functions that run on ranks."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from bagua_net.algorithms import AlgorithmHandle, attach
from tests.support.rank import Here

#: Megabytes of a bucket so small that a model has several.
SMALL_BUCKETS = 0.002
WIDTH = 24


def net(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Linear(WIDTH, 40), nn.Tanh(), nn.LayerNorm(40), nn.Linear(40, 30), nn.Tanh(), nn.Linear(30, 5)
    )


def group_of(here: Here, backend: str) -> Any:
    return here.gloo if backend == "gloo" else dist.group.WORLD


def ddp(here: Here, backend: str, model: nn.Module | None = None, **arguments: Any) -> DistributedDataParallel:
    arguments = {"bucket_cap_mb": SMALL_BUCKETS} | arguments
    return DistributedDataParallel(model or net(), process_group=group_of(here, backend), **arguments)


def attached(
    here: Here, backend: str, module: nn.Module, optimizer: torch.optim.Optimizer, algorithm: Any, **arguments: Any
) -> tuple[DistributedDataParallel, AlgorithmHandle]:
    """A model in buckets of the usual size, whose ranks keep their buffers, and the algorithm at work on it."""
    arguments = {"broadcast_buffers": False} | arguments
    model = DistributedDataParallel(module, process_group=group_of(here, backend), **arguments)
    return model, attach(model, optimizer, algorithm)


def batch(here: Here, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Another one on each rank at each step."""
    generator = torch.Generator().manual_seed(1000 * step + here.rank)
    return torch.randn(8, WIDTH, generator=generator), torch.randn(8, 5, generator=generator)


def backward(here: Here, model: nn.Module, step: int) -> None:
    x, y = batch(here, step)
    nn.functional.mse_loss(model(x), y).backward()


def gradients(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: each.grad.clone() for name, each in inside(model).named_parameters() if each.grad is not None}


def inside(model: nn.Module) -> nn.Module:
    return model.module if isinstance(model, DistributedDataParallel) else model


def exact_gradients(here: Here, model: nn.Module, step: int) -> dict[str, torch.Tensor]:
    """The mean over the ranks, by a copy of the model and gloo."""
    copy = deepcopy(inside(model))
    backward(here, copy, step)
    for parameter in copy.parameters():
        assert parameter.grad is not None
        dist.all_reduce(parameter.grad, group=here.gloo)
        parameter.grad /= here.size
    return gradients(copy)


def same_on_all_ranks(here: Here, tensors: dict[str, torch.Tensor]) -> bool:
    flat = torch.cat([tensor.reshape(-1) for tensor in tensors.values()])
    all_of = [torch.empty_like(flat) for _ in range(here.size)]
    dist.all_gather(all_of, flat, group=here.gloo)
    return all(torch.equal(each, flat) for each in all_of)


def mean_of(here: Here, tensor: torch.Tensor) -> torch.Tensor:
    total = tensor.clone()
    dist.all_reduce(total, group=here.gloo)
    return total / here.size
