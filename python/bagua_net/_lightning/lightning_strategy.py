# SPDX-License-Identifier: MIT
"""The strategy for programs that import ``lightning``."""

from __future__ import annotations

from lightning.pytorch.strategies import DDPStrategy, StrategyRegistry

from .strategy import StrategyMixin, register


class BaguaStrategy(StrategyMixin, DDPStrategy):  # type: ignore[misc]
    __doc__ = StrategyMixin.__doc__


register(StrategyRegistry, BaguaStrategy)
