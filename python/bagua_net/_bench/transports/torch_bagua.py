# SPDX-License-Identifier: MIT
"""This network through torch.distributed: the ``bagua_net`` backend, called as gloo is."""

from __future__ import annotations

from ..._native import library
from ..._torch_backend import NAME
from ..workload.config import Config
from .base import Kind, Place
from .torch_distributed import TorchTransport, import_torch


def _describe(config: Config) -> str:
    torch = import_torch()
    return f"BaguaNet {library.text(library.load().bnet_version())} as a backend of torch {torch.__version__}"


def _open(config: Config, place: Place) -> TorchTransport:
    from ...torch import register  # which imports torch

    register()
    return TorchTransport(f"cpu:{NAME}", config, place)


#: Measured in separate processes: a process has one default group, and in the shared ones that is gloo's.
TORCH_BAGUA = Kind("torch+bagua", _describe, _open, lambda config: {}, on_request=True)
