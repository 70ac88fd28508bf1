# SPDX-License-Identifier: MIT
"""``bagua_net.lightning`` for programs that import ``pytorch_lightning``, the other name of ``lightning.pytorch``.

>>> from bagua_net.pytorch_lightning import BaguaStrategy       # doctest: +SKIP
"""

from __future__ import annotations

from ._lightning.packages import PYTORCH_LIGHTNING, is_installed, missing

if not is_installed(PYTORCH_LIGHTNING):
    raise missing(__name__, PYTORCH_LIGHTNING)

from ._lightning.pytorch_lightning_strategy import BaguaStrategy

__all__ = ["BaguaStrategy"]
