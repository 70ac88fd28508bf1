# SPDX-License-Identifier: MIT
"""bagua.torch_api.contrib: the caches and fuse_optimizer, called as in Bagua.

Bagua's caches keep samples in Redis servers. Here they are in a file, whose path Bagua's arguments do not have.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from .. import data

_log = logging.getLogger("bagua_net.compat")


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


def fuse_optimizer(optimizer: Optimizer, do_flatten: bool = True) -> Optimizer:
    """The optimizer itself, with torch's ``foreach`` where it has that and its maker did not choose: one operation for
    many parameters, wherever they lie in memory. Its ``step`` is ``fuse_step`` as well, by Bagua's name."""
    if "foreach" not in optimizer.defaults:
        kind = type(optimizer).__name__
        _log.warning("bagua_net.compat: fuse_optimizer leaves %s as it is: it has no foreach, torch's fusion", kind)
    for group in optimizer.param_groups:
        if _may_have_foreach(group):
            group["foreach"] = True
    optimizer.fuse_step = lambda closure=None: optimizer.step(closure)
    return optimizer


def _may_have_foreach(group: dict[str, Any]) -> bool:
    """torch refuses it for steps that are differentiable, and for a rate in a tensor unless a graph may capture it."""
    free = group.get("foreach", False) is None and not group.get("fused") and not group.get("differentiable")
    return free and (not isinstance(group["lr"], Tensor) or bool(group.get("capturable")))
