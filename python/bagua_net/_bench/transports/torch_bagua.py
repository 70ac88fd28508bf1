# SPDX-License-Identifier: MIT
"""This network as torch.distributed has it: the ``bagua_net`` backend, called as gloo is."""

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
    return TorchTransport(NAME, config, place)


#: In processes of its own, because a process has one default group, and gloo's is that of the others.
TORCH_BAGUA = Kind("torch+bagua", _describe, _open, dict, on_request=True)
