# SPDX-License-Identifier: MIT
"""The strategy for programs that import ``pytorch_lightning``."""

from __future__ import annotations

from pytorch_lightning.strategies import DDPStrategy, StrategyRegistry

from .strategy import StrategyMixin, register


class BaguaStrategy(StrategyMixin, DDPStrategy):  # type: ignore[misc]
    __doc__ = StrategyMixin.__doc__


register(StrategyRegistry, BaguaStrategy)
