# SPDX-License-Identifier: MIT
"""What an algorithm works on: a model, its optimizer, the ranks that train it, and what it gets for itself."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from ._groups import Groups
from ._worker import Runner, Stream, Worker


@dataclass(frozen=True)
class Training:
    """One model that is trained by the ranks of a group. It does not keep a DistributedDataParallel alive: that holds
    its hook, which holds the algorithm, which holds this."""

    module: nn.Module  # the user's: inside of DistributedDataParallel, or the one that fully_shard was applied to
    wrapper: weakref.ref[nn.Module]  # the DistributedDataParallel, or the same module
    optimizer: torch.optim.Optimizer
    scaler: Any  # the torch.amp.GradScaler, if it is enabled, or None
    parameters: dict[str, nn.Parameter]  # those that are trained, by name, in the module's order
    device: torch.device
    group: dist.ProcessGroup  # the model's

    @property
    def rank(self) -> int:
        """In the group."""
        return int(self.group.rank())

    @property
    def size(self) -> int:
        return int(self.group.size())

    def names(self) -> dict[nn.Parameter, str]:
        return {parameter: name for name, parameter in self.parameters.items()}


@dataclass(frozen=True)
class Job(Training):
    """The same once all ranks agree to begin."""

    own: dist.ProcessGroup  # the ranks of the model's group, for the collectives of the algorithm
    groups: Groups  # where it is from, and where an algorithm gets more
    runner: Runner


def trained_parameters(module: nn.Module) -> dict[str, nn.Parameter]:
    return {name: parameter for name, parameter in module.named_parameters() if parameter.requires_grad}


def one_device(parameters: dict[str, nn.Parameter]) -> torch.device:
    """Raises ValueError: the parameters are on several devices, or there are none."""
    devices = {parameter.device for parameter in parameters.values()}
    if not devices:
        raise ValueError("bagua_net.algorithms: the model has no parameter that requires a gradient")
    if len(devices) > 1:
        named = ", ".join(sorted(str(device) for device in devices))
        raise ValueError(f"bagua_net.algorithms: the model's parameters are on {named}; one device is supported")
    return devices.pop()


def runner_for(device: torch.device, name: str) -> Runner:
    return Stream(device) if device.type == "cuda" else Worker(name)
