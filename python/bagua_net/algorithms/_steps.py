# SPDX-License-Identifier: MIT
"""Steps of an optimizer, as its hooks see them."""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from ._context import AlgorithmContext

#: Of what torch puts in the place of step() in each class of optimizers. It calls an instance's hooks.
_CALLS_HOOKS = torch.optim.Optimizer.profile_hook_step(lambda _: None).__code__
if "self" not in _CALLS_HOOKS.co_varnames:
    raise RuntimeError(f"bagua_net.algorithms does not know the optimizers of torch {torch.__version__}")


def is_whole(optimizer: torch.optim.Optimizer) -> bool:
    """Called by a hook: this is a step of the optimizer, and not one of a base class within it. torch calls the hooks
    for both, if an instance of the base class was ever made. It asks the stack, since a step that raises has no end.

    Raises RuntimeError where torch does not call hooks as it did.
    """
    frame: FrameType | None = sys._getframe(1)
    steps = 0
    while frame is not None:
        if frame.f_code is _CALLS_HOOKS and frame.f_locals.get("self") is optimizer:
            steps += 1
        frame = frame.f_back
    if steps == 0:
        raise RuntimeError(
            f"bagua_net.algorithms: the hooks of {type(optimizer).__name__} are not called by "
            f"torch.optim.Optimizer's step, in torch {torch.__version__}"
        )
    return steps == 1


class StepHooks:
    """Hooks on the steps of a job's optimizer, at which its weights are averaged, and a look at those of all others.

    Another optimizer may step within such a step, or around it: a wrapper does.
    """

    def __init__(
        self,
        context: AlgorithmContext,
        name: str,
        before: Callable[..., Any],
        after: Callable[..., Any],
        rests: Callable[[], bool],
    ) -> None:
        """
        name: the algorithm's.
        before, after: as ``register_step_pre_hook`` and ``register_step_post_hook`` take.
        rests: whether gradients are averaged now, so that any optimizer may step.
        """
        self._context = context
        self._rests = rests
        self._names = context.names()
        self._name = name
        self._in_step = False
        self._steps = 0
        self._steps_before: weakref.WeakKeyDictionary[torch.optim.Optimizer, int] = weakref.WeakKeyDictionary()
        #: Another optimizer has changed weights.
        self.missed_one = False
        optimizer = context.optimizer
        self._handles = [
            optimizer.register_step_pre_hook(self._begin),
            optimizer.register_step_pre_hook(before),
            optimizer.register_step_post_hook(after),
            optimizer.register_step_post_hook(self._end),
        ]
        _look_at_all_steps()
        _hooked.add(self)

    def remove(self) -> None:
        _hooked.discard(self)
        for handle in self._handles:
            handle.remove()

    def _begin(self, *_: Any) -> None:
        self._in_step = True

    def _end(self, *_: Any) -> None:
        self._in_step = False
        self._steps += 1

    def before_any(self, optimizer: torch.optim.Optimizer) -> None:
        self._steps_before[optimizer] = self._steps

    def after_any(self, optimizer: torch.optim.Optimizer) -> None:
        """Raises RuntimeError: this step has changed weights that are averaged in steps of another optimizer."""
        if optimizer is self._context.optimizer or self._in_step or self._rests():
            return
        if self._steps_before.get(optimizer) != self._steps:
            return  # the job's optimizer has made this step
        changed = (self._names.get(each) for group in optimizer.param_groups for each in group["params"])
        name = next(filter(None, changed), None)
        if name is not None:
            self.missed_one = True
            raise RuntimeError(
                f"bagua_net.algorithms: {self._name}: another optimizer ({type(optimizer).__name__}) has changed the "
                f"parameter {name}, and weights are averaged at the steps of the one that was attached; detach, and "
                "attach with the optimizer that trains the model"
            )


#: Those of models that train apart.
_hooked: weakref.WeakSet[StepHooks] = weakref.WeakSet()


@functools.cache
def _look_at_all_steps() -> None:
    """Once: a hook that is removed while torch calls all of them, as by a finalizer, would break its loop."""
    register_optimizer_step_pre_hook(_before_any)
    register_optimizer_step_post_hook(_after_any)


def _before_any(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    for each in list(_hooked):
        each.before_any(optimizer)


def _after_any(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    for each in list(_hooked):
        each.after_any(optimizer)
