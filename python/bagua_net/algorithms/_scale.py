# SPDX-License-Identifier: MIT
"""The scale of a GradScaler, which residuals follow: they are errors of scaled gradients."""

from __future__ import annotations

from typing import Any


class Scale:
    """What residuals are to be multiplied by, from one backward pass to the next. Equal on all ranks."""

    def __init__(self, scaler: Any) -> None:
        """scaler: the ``torch.amp.GradScaler``; None: gradients are not scaled."""
        self._scaler = scaler
        self._of_residuals = self._now()
        self._loaded = False

    def _now(self) -> float:
        return float(self._scaler.get_scale()) if self._scaler is not None else 1.0

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
