# SPDX-License-Identifier: MIT
"""bagua.torch_api.contrib: the caches and fuse_optimizer, called as in Bagua."""

from __future__ import annotations

import logging
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from .. import data

_log = logging.getLogger("bagua_net.compat")

#: Bagua's arguments of Redis servers.
_OF_SERVERS = ("hosts", "cluster_mode")


class CacheLoader(data.CacheLoader):
    """:class:`bagua_net.data.CacheLoader` by Bagua's arguments, and ``directory=``. Those about Redis do nothing."""

    def __init__(
        self, backend: str = "redis", dataset_name: str = "", writer_buffer_size: int = 1, **others: Any
    ) -> None:
        super().__init__(dataset_name, **_without_servers(others))


class CachedDataset(data.CachedDataset):
    """:class:`bagua_net.data.CachedDataset` by Bagua's arguments, and ``directory=``. Those about Redis do nothing."""

    def __init__(
        self, dataset: Any, backend: str = "redis", dataset_name: str = "", writer_buffer_size: int = 20, **others: Any
    ) -> None:
        super().__init__(dataset, dataset_name, **_without_servers(others))


def _without_servers(named: dict[str, Any]) -> dict[str, Any]:
    if named.get("hosts"):
        _log.warning("bagua_net.compat: samples are kept in files of each host, and hosts= does nothing")
    renamed = {"capacity_per_node": "capacity"}
    return {renamed.get(name, name): value for name, value in named.items() if name not in _OF_SERVERS}


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
