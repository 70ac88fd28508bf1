# SPDX-License-Identifier: MIT
"""gloo, the network that torch.distributed uses for host memory."""

from __future__ import annotations

from .config import Config
from .torchdist import TorchTransport, import_torch
from .transports import Kind, Unavailable


def _describe(config: Config) -> str:
    torch = import_torch()
    if not torch.distributed.is_gloo_available():
        raise Unavailable(f"torch {torch.__version__} was built without gloo")
    if config.operation.reduces and config.redop == "avg":
        raise Unavailable("gloo has no average")
    return f"gloo of torch {torch.__version__}"


GLOO = Kind("gloo", _describe, lambda config, place: TorchTransport("gloo", config, place))
