# SPDX-License-Identifier: MIT
"""gloo, the network that torch.distributed uses for host memory."""

from __future__ import annotations

import os

from ..._machine import interfaces
from ..workload.config import Config
from .base import Kind, Place, Unavailable
from .torch_distributed import TorchTransport, import_torch

_INTERFACE = "GLOO_SOCKET_IFNAME"


def _describe(config: Config) -> str:
    torch = import_torch()
    if not torch.distributed.is_gloo_available():
        raise Unavailable(f"torch {torch.__version__} was built without gloo")
    if config.operation.reduces and config.redop == "avg":
        raise Unavailable("gloo has no average")
    return f"gloo of torch {torch.__version__}"


def _open(config: Config, place: Place) -> TorchTransport:
    """Uses the interface by which the ranks met, unless one is set: gloo's default is the address of this host's name,
    which is often on loopback."""
    if _INTERFACE not in os.environ:
        rows = interfaces.scan()
        # One address of each is known: they may have met by another one.
        found = [row.name for row in rows if row.address == place.host] + [row.name for row in rows if not row.reason]
        if found:
            os.environ[_INTERFACE] = found[0]
    return TorchTransport("gloo", config, place)


GLOO = Kind("gloo", _describe, _open)
