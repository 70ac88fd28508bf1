# SPDX-License-Identifier: MIT
"""Bagua's algorithms in PyTorch Lightning, on CPUs and on GPUs.

>>> from bagua_net.lightning import BaguaStrategy                       # doctest: +SKIP
>>> trainer = Trainer(strategy=BaguaStrategy("bytegrad"))               # doctest: +SKIP
>>> trainer = Trainer(strategy="bagua")     # the same, by name         # doctest: +SKIP

Importing this module makes the name "bagua" known to ``lightning`` and to ``pytorch_lightning``, whichever is
installed. The class is for ``lightning`` where that is installed; that of ``bagua_net.pytorch_lightning`` is always for
``pytorch_lightning``. More: docs/lightning.md.
"""

from __future__ import annotations

import contextlib
from typing import NoReturn

from ._lightning.packages import LIGHTNING, PYTORCH_LIGHTNING, is_installed, missing

if is_installed(LIGHTNING):
    from ._lightning.lightning_strategy import BaguaStrategy

    with contextlib.suppress(ImportError):  # absent, or without what it needs: it is not what was asked for
        from ._lightning import pytorch_lightning_strategy  # noqa: F401
elif is_installed(PYTORCH_LIGHTNING):
    from ._lightning.pytorch_lightning_strategy import BaguaStrategy
else:
    raise missing(__name__, LIGHTNING)

__all__ = ["BaguaStrategy"]


def __getattr__(name: str) -> NoReturn:
    if name == "BaguaEnvironment":
        raise ImportError(
            "bagua_net.lightning: there is no BaguaEnvironment; Lightning finds ranks that torchrun started by its own "
            "TorchElasticEnvironment: torchrun --nproc-per-node 8 train.py"
        )
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
