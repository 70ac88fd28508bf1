# SPDX-License-Identifier: MIT
"""Optimizers: :func:`fuse_optimizer` updates all parameters in a few operations. It needs torch only."""

from __future__ import annotations

from ._flat import FlatOptimizer
from ._fuse import fuse_optimizer

__all__ = ["FlatOptimizer", "fuse_optimizer"]
