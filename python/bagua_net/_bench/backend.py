# SPDX-License-Identifier: MIT
"""This network as torch.distributed has it: the ``bagua_net`` backend, called as gloo is."""

from __future__ import annotations

from .. import _lib
from .._torch_backend import NAME, register
from .config import Config
from .torchdist import TorchTransport, import_torch
from .transports import Kind, Place


def _describe(config: Config) -> str:
    torch = import_torch()
    return f"BaguaNet {_lib.text(_lib.load().bnet_version())} as a backend of torch {torch.__version__}"


def _open(config: Config, place: Place) -> TorchTransport:
    register()
    return TorchTransport(NAME, config, place)


#: In processes of its own, because a process has one default group, and gloo's is that of the others.
TORCH_BAGUA = Kind("torch+bagua", _describe, _open, dict, on_request=True)
