# SPDX-License-Identifier: MIT
"""GradScaler: the scale that residuals follow, and a look at the scalers that step a model's optimizers.

``attach`` cannot see a scaler that it was not given, and an optimizer's hooks do not tell who calls ``step``. So
:func:`watch_scalers` replaces ``torch.amp.GradScaler.step``, once in a process, by a function that first asks the
algorithms at work and then calls torch's own. Subclasses (``torch.cuda.amp.GradScaler``, FSDP's
``ShardedGradScaler``), Lightning and accelerate all step through it. It costs two calls in a step with a scaler, and
nothing without one.
"""

from __future__ import annotations

import functools
import weakref
from typing import Any, Protocol

import torch


class Scale:
    """What residuals are to be multiplied by, from one backward pass to the next. Equal on all ranks."""

    def __init__(self, scaler: Any) -> None:
        """scaler: the ``torch.amp.GradScaler``; None: gradients are not scaled."""
        self.scaler = scaler
        self._of_residuals = self._now()
        self._loaded = False

    def _now(self) -> float:
        return float(self.scaler.get_scale()) if self.scaler is not None else 1.0

    def load(self, scale: float) -> None:
        """The residuals are those of a checkpoint, of gradients with this scale."""
        self._of_residuals = scale
        self._loaded = True

    def change(self) -> float:
        """The factor, once. 0 where the scale has fallen: the scaler has skipped a step, whose gradients nobody added,
        and what they lost may be far larger than gradients are. The residuals of the steps before are in them."""
        before, self._of_residuals = self._of_residuals, self._now()
        loaded, self._loaded = self._loaded, False
        factor = self._of_residuals / before
        return factor if loaded or factor >= 1 else 0.0

    @property
    def of_residuals(self) -> float:
        """What a checkpoint keeps beside them."""
        return self._of_residuals


def scaled(residual: Any, factor: float) -> None:
    """In place."""
    residual.mul_(factor) if factor else residual.zero_()


def enabled(scaler: Any) -> Any:
    """The GradScaler; None in the place of one that is there and does nothing."""
    return scaler if scaler is not None and scaler.is_enabled() else None


# ---- scalers that nobody passed ----


class _AsksScalers(Protocol):
    def check_scaler(self, scaler: Any, optimizer: torch.optim.Optimizer) -> None:
        """Raises RuntimeError: this scaler must not step this optimizer."""


_watching: weakref.WeakSet[_AsksScalers] = weakref.WeakSet()


def watch_scalers(asks: _AsksScalers) -> None:
    """From now on, until :func:`unwatch_scalers` or its end, before every step that an enabled scaler makes."""
    _replace_step()
    _watching.add(asks)


def unwatch_scalers(asks: _AsksScalers) -> None:
    _watching.discard(asks)


def unknown_scaler(name: str, call: str) -> RuntimeError:
    """name: the algorithm's. call: what takes a scaler, such as ``attach(model, ..., scaler=scaler)``."""
    return RuntimeError(
        f"bagua_net.algorithms: {name}: the optimizer is stepped by a GradScaler that {call.partition('(')[0]} was not "
        f"given, so that quantization errors would not follow its scale; pass it: {call}"
    )


@functools.cache
def _replace_step() -> None:
    own = torch.amp.GradScaler.step

    @functools.wraps(own)
    def step(self: Any, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> Any:
        if self.is_enabled():
            for each in list(_watching):
                each.check_scaler(self, optimizer)
        return own(self, optimizer, *args, **kwargs)

    torch.amp.GradScaler.step = step
