# SPDX-License-Identifier: MIT
"""Collectives that torch has renamed: the new name where this torch has it, for the old one warns there."""

from __future__ import annotations

import torch.distributed as dist

all_gather_single = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
reduce_scatter_single = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)
