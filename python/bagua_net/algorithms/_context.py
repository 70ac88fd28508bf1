# SPDX-License-Identifier: MIT
"""What an algorithm works on: a model, its optimizer, the ranks that train it, and what it gets for itself."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from ._groups import Groups
from ._nodes import Nodes
from ._worker import Runner, Stream, Worker

#: As an error shows it.
TAKES_SCALER = "attach(model, optimizer, algorithm, scaler=scaler)"


@dataclass(frozen=True)
class ModelContext:
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

    def refuse_left_out(self, why: str) -> None:
        """Raises ValueError: the optimizer has not all of the parameters. ``why`` it must, of one of them."""
        has = {each for group in self.optimizer.param_groups for each in group["params"]}
        for name, parameter in self.parameters.items():
            if parameter not in has:
                raise ValueError(
                    f"bagua_net.algorithms: attach: the optimizer has not the parameter {name}, {why}; give it all "
                    "that require a gradient"
                )


@dataclass(frozen=True)
class AlgorithmContext(ModelContext):
    """The same once all ranks agree to begin."""

    own: dist.ProcessGroup  # the ranks of the model's group, for the collectives of the algorithm
    groups: Groups  # where it is from, and where an algorithm gets more
    runner: Runner
    hosts: Nodes | None = None  # of the ranks, for codes of gradients

    @functools.cached_property
    def _known(self) -> frozenset[nn.Parameter]:
        return frozenset(self.parameters.values())

    def is_trained_by(self, optimizer: torch.optim.Optimizer) -> bool:
        """Whether the optimizer has one of the parameters: it need not be the one that was attached."""
        return any(each in self._known for group in optimizer.param_groups for each in group["params"])

    def refuse_unknown(self, bucket: Any, name: str) -> None:
        """In a backward pass. Raises RuntimeError: a parameter was frozen at the attach of the algorithm of this name,
        and is no longer."""
        for parameter in bucket.parameters():
            if parameter.requires_grad and parameter not in self._known:
                names = {each: where for where, each in self.module.named_parameters()}
                raise RuntimeError(
                    f"bagua_net.algorithms: {name}: the parameter {names.get(parameter, 'of this model')} required no "
                    "gradient when the algorithm was attached, so that nothing averages it; detach, and attach again"
                )


def trained_parameters(module: nn.Module, ignored: Collection[str] = ()) -> dict[str, nn.Parameter]:
    """ignored: by DistributedDataParallel, since each rank has one of its own. As there, a parameter with several names
    is ignored if all of them are, and one of the module itself is called ".name"."""
    kept = {
        parameter
        for path, part in module.named_modules()
        for name, parameter in part.named_parameters(recurse=False)
        if f"{path}.{name}" not in ignored
    }
    return {
        name: parameter
        for name, parameter in module.named_parameters()
        if parameter.requires_grad and parameter in kept
    }


def one_device(parameters: dict[str, nn.Parameter]) -> torch.device:
    """Raises ValueError: the parameters are on several devices, or there are none."""
    devices = {parameter.device for parameter in parameters.values()}
    if not devices:
        raise ValueError("bagua_net.algorithms: the model has no parameter that requires a gradient")
    if len(devices) > 1:
        named = ", ".join(sorted(str(device) for device in devices))
        raise ValueError(f"bagua_net.algorithms: the model's parameters are on {named}; one device is supported")
    return devices.pop()


def device_near(module: nn.Module) -> torch.device | None:
    """That of the first parameter, of a module that was not looked at yet."""
    return next((parameter.device for parameter in module.parameters()), None)


def runner_for(device: torch.device, name: str) -> Runner:
    return Stream(device) if device.type == "cuda" else Worker(name)
