# SPDX-License-Identifier: MIT
"""Steps of an optimizer, as its hooks see them."""

from __future__ import annotations

import sys
from types import CodeType, FrameType

import torch

#: Of the function that torch puts in the place of step() in each class of optimizers. It calls an instance's hooks.
_CALLS_HOOKS = frozenset(
    each for each in torch.optim.Optimizer.profile_hook_step.__code__.co_consts if isinstance(each, CodeType)
)


def is_whole(optimizer: torch.optim.Optimizer) -> bool:
    """Called by a hook: this is a step of the optimizer, and not one of a base class within it. torch calls the hooks
    for both, if an instance of the base class was ever made. It asks the stack, since a step that raises has no end."""
    frame: FrameType | None = sys._getframe(1)
    steps = 0
    while frame is not None:
        if frame.f_code in _CALLS_HOOKS and frame.f_locals.get("self") is optimizer:
            steps += 1
        frame = frame.f_back
    return steps <= 1
