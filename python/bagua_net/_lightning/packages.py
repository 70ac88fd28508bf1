# SPDX-License-Identifier: MIT
"""Which of Lightning's two packages there are. ``lightning.pytorch`` and ``pytorch_lightning`` are the same code under
two names; classes and the registry of strategies of one are nothing to the other."""

from __future__ import annotations

import importlib.util

LIGHTNING = "lightning"
PYTORCH_LIGHTNING = "pytorch_lightning"


def is_installed(package: str) -> bool:
    spec = importlib.util.find_spec(package)
    return spec is not None and spec.origin is not None  # a folder of that name is not a package


def missing(module: str, package: str) -> ImportError:
    return ImportError(f"{module}: {package} is not installed; pip install {package.replace('_', '-')}")
