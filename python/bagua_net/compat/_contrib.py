# SPDX-License-Identifier: MIT
"""bagua.torch_api.contrib: the caches and fuse_optimizer, called as in Bagua.

Bagua's caches keep samples in Redis servers. Here they are in a file, whose path Bagua's arguments do not have.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch.optim import Optimizer

from .. import data, optim


class CacheLoader(data.CacheLoader):
    """``CacheLoader(path="decoded.cache")``, with :class:`bagua_net.data.CacheLoader`'s other arguments.

    Raises:
        TypeError: the arguments are Bagua's.
    """

    def __init__(self, *others: Any, **named: Any) -> None:
        _refuse_servers(data.CacheLoader, others, named)
        super().__init__(**named)


class CachedDataset(data.CachedDataset):
    """``CachedDataset(dataset, path="decoded.cache")``, with :class:`bagua_net.data.CachedDataset`'s other arguments.

    Raises:
        TypeError: the arguments are Bagua's.
    """

    def __init__(self, dataset: Any, *others: Any, **named: Any) -> None:
        _refuse_servers(data.CachedDataset, others, named)
        super().__init__(dataset, **named)


def _refuse_servers(kind: type, others: Sequence[Any], named: Mapping[str, Any]) -> None:
    known = inspect.signature(kind).parameters
    unknown = [*map(repr, others), *(f"{name}=" for name in named if name not in known)]
    if unknown or "path" not in named:
        without = f", without {' and '.join(unknown)}" if unknown else ""
        raise TypeError(
            f"bagua_net.compat: {kind.__name__} keeps its samples in a file, and has no Redis; give path= of a file on "
            f"a local disk{without}"
        )


def fuse_optimizer(optimizer: Optimizer, do_flatten: bool = True, *, elementwise: bool = False) -> Optimizer:
    """:func:`bagua_net.optim.fuse_optimizer`. The ``step`` of what it returns is fused, and is ``fuse_step`` as well,
    by Bagua's name. Whether parameters are flattened depends on the optimizer, not on ``do_flatten``."""
    fused = optim.fuse_optimizer(optimizer, elementwise=elementwise)

    def fuse_step(closure: Callable[[], Any] | None = None) -> Any:
        return fused.step(closure)

    fused.fuse_step = fuse_step
    return fused
