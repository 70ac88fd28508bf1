# SPDX-License-Identifier: MIT
"""Chooses how an optimizer is fused: by torch itself where it can, else by flat tensors."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any

import torch
from torch.optim import Optimizer

from . import _layerwise
from ._flat import FlatOptimizer

#: Devices for which torch has an optimizer's step as one kernel, as far as it was tried or is documented.
_FUSED_DEVICES = {
    torch.optim.Adagrad: {"cpu"},
    torch.optim.Adam: {"cpu", "cuda"},
    torch.optim.AdamW: {"cpu", "cuda"},
    torch.optim.SGD: {"cpu", "cuda"},
}

_log = logging.getLogger("bagua_net.optim")


def fuse_optimizer(optimizer: Optimizer, *, elementwise: bool = False) -> Optimizer:
    """An optimizer that updates all parameters in a few operations instead of some for each.

    torch's optimizers have this built in (``fused``, else ``foreach``): it is turned on in the optimizer given, which
    is returned. Any other one is wrapped (:class:`FlatOptimizer`): its parameters are joined to flat tensors, which is
    right only where each element is updated by its own gradient and state, whatever the others are.

    >>> model = torch.nn.Linear(3, 2)
    >>> optimizer = fuse_optimizer(torch.optim.AdamW(model.parameters()))
    >>> optimizer.param_groups[0]["fused"]
    True

    Args:
        optimizer: may have been stepped. Make schedulers before or after.
        elementwise: your statement that it is so, for optimizers that are not torch's.

    Raises:
        TypeError: this is no optimizer of torch.
        ValueError: the optimizer is known to treat parameters as a whole, or ``elementwise`` is not stated.
    """
    if not isinstance(optimizer, Optimizer):
        raise TypeError(f"fuse_optimizer takes a torch.optim.Optimizer, not a {type(optimizer).__name__}")
    if isinstance(optimizer, FlatOptimizer):
        return optimizer
    if type(optimizer).__module__.startswith("torch.optim") and "foreach" in optimizer.defaults:
        _turn_on(optimizer)
        return optimizer
    reason = _layerwise.reason(optimizer)
    name = type(optimizer).__name__
    if reason is not None:
        raise ValueError(f"{name} cannot be fused: {reason}")
    if not elementwise:
        raise ValueError(
            f"{name} is not known here: if it updates each element by its own gradient and state alone, say so with "
            "elementwise=True; otherwise it cannot be fused"
        )
    return FlatOptimizer(optimizer)


# ---- torch's own ----


def _turn_on(optimizer: Optimizer) -> None:
    """Sets the fastest of torch's implementations that each group can have, unless its maker chose one."""
    for group in optimizer.param_groups:
        if group.get("fused") is not None or group["foreach"] is not None:
            continue
        way = next((name for name, possible in _WAYS.items() if possible(optimizer, group)), None)
        if way is not None:
            group[way] = True
            _move_counts(optimizer, group)
            _tell(type(optimizer).__name__, way)


def _can_fuse(optimizer: Optimizer, group: dict[str, Any]) -> bool:
    devices = _FUSED_DEVICES.get(type(optimizer), set())
    if type(optimizer) is torch.optim.SGD and group["momentum"]:
        return False  # its kernel takes no parameter whose first gradient comes in a later step than others'
    return not group.get("differentiable", False) and all(
        parameter.device.type in devices and parameter.is_floating_point() for parameter in group["params"]
    )


def _can_foreach(_: Optimizer, group: dict[str, Any]) -> bool:
    """torch refuses a learning rate in a tensor unless it may be captured in a graph."""
    return not group.get("differentiable", False) and (
        not isinstance(group["lr"], torch.Tensor) or group.get("capturable", False)
    )


_WAYS: dict[str, Callable[[Optimizer, dict[str, Any]], bool]] = {"fused": _can_fuse, "foreach": _can_foreach}


def _move_counts(optimizer: Optimizer, group: dict[str, Any]) -> None:
    """A fused kernel reads the counts of steps on its device, in float32; otherwise torch keeps them on the CPU."""
    for parameter in group["params"] if group.get("fused") else ():
        step = optimizer.state.get(parameter, {}).get("step")
        if step is not None:
            optimizer.state[parameter]["step"] = step.to(parameter.device, torch.float32)


@functools.cache
def _tell(name: str, way: str) -> None:
    """Once per process."""
    _log.warning("torch's own %s=True is on: torch.optim.%s has it without fuse_optimizer", way, name)
