# SPDX-License-Identifier: MIT
"""Data for distributed training: steps of like cost on all ranks, and samples that a host makes once.

- :class:`LoadBalancingDistributedSampler` and :class:`LoadBalancingDistributedBatchSampler`: no rank waits for another
  whose samples are longer, and all take the same number of steps.
- :class:`CachedDataset` and :class:`CacheLoader`: samples in files that the ranks and loader workers of a host share.

They need torch, but neither the library of this package nor a process group.
"""

from __future__ import annotations

from ._batches import LoadBalancingDistributedBatchSampler
from ._cache import CachedDataset, CacheLoader, SampleUnsupported
from ._sampler import LoadBalancingDistributedSampler

__all__ = [
    "CacheLoader",
    "CachedDataset",
    "LoadBalancingDistributedBatchSampler",
    "LoadBalancingDistributedSampler",
    "SampleUnsupported",
]
