# SPDX-License-Identifier: MIT
"""Training steps of a small network by DDP and by FSDP2, each rank with its own part of every batch.

The mean of the ranks' losses and gradients is that of the whole batch, so a process that trains alone on whole batches
must see the same losses, except for the order of sums.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from .member import Member

STEPS = 8
_INPUTS, _HIDDEN, _CLASSES = 256, 1024, 10
_BATCH = 64
_RATE = 0.05


def _model(device: torch.device) -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Linear(_INPUTS, _HIDDEN), nn.ReLU(), nn.Linear(_HIDDEN, _HIDDEN), nn.ReLU(), nn.Linear(_HIDDEN, _CLASSES)
    ).to(device)


def gradient_bytes() -> int:
    """Of one step."""
    return sum(parameter.numel() * 4 for parameter in _model(torch.device("cpu")).parameters())


def _batch(step: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """The whole batch of a step: points around the centre of their class."""
    draw = torch.Generator().manual_seed(100)
    centres = torch.randn(_CLASSES, _INPUTS, generator=draw)
    draw.manual_seed(1000 + step)
    labels = torch.randint(_CLASSES, (_BATCH,), generator=draw)
    points = centres[labels] + torch.randn(_BATCH, _INPUTS, generator=draw)
    return points.to(device), labels.to(device)


def _train(model: nn.Module, share: slice, mean: Callable[[torch.Tensor], None], device: torch.device) -> list[float]:
    """The loss before each step.

    Args:
        share: the part of the batch that this process works on.
        mean: replaces a tensor by the mean over all processes.
    """
    optimizer = torch.optim.SGD(model.parameters(), lr=_RATE)
    losses = []
    for step in range(STEPS):
        points, labels = _batch(step, device)
        loss = nn.functional.cross_entropy(model(points[share]), labels[share])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seen = loss.detach().clone()
        mean(seen)
        losses.append(float(seen))
    return losses


def alone(device: str = "cpu") -> list[float]:
    """The losses of one process that trains on whole batches."""
    place = torch.device(device)
    return _train(_model(place), slice(None), lambda tensor: None, place)


def _with(member: Member, wrap: Callable[[nn.Sequential], nn.Module]) -> dict[str, Any]:
    part = _BATCH // member.ranks

    def mean(tensor: torch.Tensor) -> None:
        dist.all_reduce(tensor)
        tensor /= member.ranks

    with member.group():
        model = wrap(_model(member.device))
        share = slice(member.rank * part, (member.rank + 1) * part)
        losses = _train(model, share, mean, member.device)
        return {"losses": losses, "bytes_sent": member.bytes_sent()}


def ddp(member: Member) -> dict[str, Any]:
    """DistributedDataParallel: gradients are averaged while they are computed."""

    def wrap(model: nn.Sequential) -> nn.Module:
        return nn.parallel.DistributedDataParallel(model, device_ids=[0] if member.cuda else None, bucket_cap_mb=1)

    return _with(member, wrap)


def fsdp(member: Member) -> dict[str, Any]:
    """FSDP2: every rank keeps a share of each parameter; layers are gathered before use, gradients scattered."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    def wrap(model: nn.Sequential) -> nn.Module:
        mesh = init_device_mesh(member.job.device, (member.ranks,))
        for layer in model:
            if isinstance(layer, nn.Linear):
                fully_shard(layer, mesh=mesh)
        return fully_shard(model, mesh=mesh)

    return _with(member, wrap)
