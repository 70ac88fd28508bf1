# SPDX-License-Identifier: MIT
"""The strategy for programs that import ``lightning``."""

from __future__ import annotations

from lightning.pytorch.strategies import DDPStrategy, StrategyRegistry

from .strategy import Bagua, register


class BaguaStrategy(Bagua, DDPStrategy):  # type: ignore[misc]
    __doc__ = Bagua.__doc__


register(StrategyRegistry, BaguaStrategy)
