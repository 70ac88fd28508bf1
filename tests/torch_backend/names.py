# SPDX-License-Identifier: MIT
"""Collectives by their names in torch 2.13, for every torch version, and those that a version lacks."""

from __future__ import annotations

import inspect
from typing import Any

import torch.distributed as dist
from torch.distributed import _functional_collectives as functional


def _named(module: Any, name: str, before: str) -> Any:
    return getattr(module, name, None) or getattr(module, before)


all_gather_single = _named(dist, "all_gather_single", "all_gather_into_tensor")
reduce_scatter_single = _named(dist, "reduce_scatter_single", "reduce_scatter_tensor")

functional_all_gather = _named(functional, "all_gather_single", "all_gather_tensor")
functional_all_gather_autograd = _named(functional, "all_gather_single_autograd", "all_gather_tensor_autograd")
functional_all_gather_coalesced = _named(functional, "all_gather_single_coalesced", "all_gather_into_tensor_coalesced")
functional_reduce_scatter = _named(functional, "reduce_scatter_single", "reduce_scatter_tensor")
functional_reduce_scatter_coalesced = _named(
    functional, "reduce_scatter_single_coalesced", "reduce_scatter_tensor_coalesced"
)

#: Options for a new_group whose ranks are in another order than the job's; torch 2.11 has none.
UNSORTED = {"sort_ranks": False} if "sort_ranks" in inspect.signature(dist.new_group).parameters else {}
