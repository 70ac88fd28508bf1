# SPDX-License-Identifier: MIT
"""install: ``import bagua`` finds the names that are kept, and a line for the others."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Sequence
from functools import partial
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import nn

from ._module import with_bagua
from ._names import KEPT, instead_of

ROOT = "bagua"
#: The folder of a package of that name, which calls :func:`install_for_workers`.
_FOR_WORKERS = str(Path(__file__).parent / "_for_workers")


def install() -> None:
    """Makes ``import bagua`` and ``nn.Module.with_bagua`` work in this process. A second call does nothing.

    Raises:
        ImportError: there is a package of that name already.
    """
    if any(isinstance(finder, _Finder) for finder in sys.meta_path):
        return
    other = importlib.util.find_spec(ROOT)
    if other is not None and str(other.origin).startswith(_FOR_WORKERS):
        install_for_workers()
    elif other is not None:
        raise ImportError(
            f"bagua_net.compat: a package named {ROOT} is installed already, at {other.origin}; uninstall it, or do "
            "without bagua_net.compat"
        )
    else:
        sys.meta_path.append(_Finder())
        nn.Module.with_bagua = with_bagua


def install_for_workers() -> None:
    """:func:`install`, also for processes that multiprocessing starts afresh: they import the script's module again,
    with this process's ``sys.path`` and nothing else of it.

    Raises:
        ImportError: as :func:`install`.
    """
    while _FOR_WORKERS in sys.path:  # else it would be found in the place of another package, and of what install makes
        sys.path.remove(_FOR_WORKERS)
    sys.modules.pop(ROOT, None)
    install()
    importlib.import_module(ROOT)
    sys.path.append(_FOR_WORKERS)


class _Finder(MetaPathFinder, Loader):
    """Finds Bagua's modules."""

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> Any:
        if name in KEPT:
            return ModuleSpec(name, self, is_package=True)
        line = instead_of(name)
        if line or name.startswith(f"{ROOT}."):
            line = line or f"bagua_net.compat: there is no module {name}, nor has Bagua one"
            raise ModuleNotFoundError(line, name=name)
        return None

    def create_module(self, spec: ModuleSpec) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        module.__getattr__ = partial(_looked_up, module)  # type: ignore[method-assign]
        module.__all__ = [name for name in KEPT[module.__name__] if not name.startswith("_")]  # type: ignore[attr-defined]


def _looked_up(module: ModuleType, name: str) -> Any:
    """An attribute that the module does not have yet."""
    whole = f"{module.__name__}.{name}"
    if whole in KEPT:
        return importlib.import_module(whole)
    if name in KEPT[module.__name__]:
        value = _kept(whole, KEPT[module.__name__][name])
        setattr(module, name, value)
        return value
    line = instead_of(whole)
    if line:  # not AttributeError, whose text `from … import` drops
        raise ImportError(line, name=whole)
    raise AttributeError(f"module {module.__name__!r} has no attribute {name!r}")


def _kept(whole: str, place: str) -> Any:
    module, name = place.split(":")
    try:
        return getattr(importlib.import_module(module), name)
    except (ModuleNotFoundError, AttributeError) as error:
        raise ImportError(f"bagua_net.compat: {whole} would be {module}.{name}: {error}", name=whole) from error
