# SPDX-License-Identifier: MIT
"""The networks that can be measured, and which of them work here."""

from __future__ import annotations

from collections.abc import Callable

from ..._errors import BaguaNetError
from ..workload.config import Config
from .base import Kind

#: The networks for memory of a device, by name.
Kinds = Callable[[str], dict[str, Kind]]


def kinds(device: str) -> dict[str, Kind]:
    """The networks for memory of this device, ours first. Those for GPUs need only torch, those for emulated GPUs only
    NCCL."""
    rows: tuple[Kind, ...]
    if device == "cuda":
        from . import cuda

        rows = (cuda.WITH_PLUGIN, cuda.WITHOUT_PLUGIN)
    elif device == "emulated":
        from . import emulated

        rows = (emulated.BAGUA, emulated.SOCKET, emulated.OTHER)
    else:
        from . import gloo, nccl_net, torch_bagua

        rows = (nccl_net.BAGUA, *nccl_net.COMPRESSED, nccl_net.NCCL_SOCKET, gloo.GLOO, torch_bagua.TORCH_BAGUA)
    return {row.name: row for row in rows}


def survey(config: Config, names: list[str], known: Kinds = kinds) -> dict[str, tuple[bool, str]]:
    """name → (usable here, its description or the reason why not)."""
    found = {}
    for name in names:
        try:
            found[name] = (True, known(config.device)[name].describe(config))
        except BaguaNetError as error:
            found[name] = (False, str(error))
    return found
