# SPDX-License-Identifier: MIT
"""For the conftest of each directory of tests that need torch: without it, or the library, all of them are skipped."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable
from pathlib import Path

import pytest

import bagua_net


def _obstacle() -> str | None:
    if importlib.util.find_spec("torch") is None:
        return "torch is not installed"
    import torch.distributed as dist

    if not dist.is_available() or not dist.is_gloo_available():
        return "this torch has no torch.distributed, or no gloo to compare with"
    try:
        bagua_net.plugin_path()
    except bagua_net.LibraryNotFound as error:
        return str(error)
    return None


OBSTACLE = _obstacle()


class Obstructed(pytest.Module):
    """A file of tests that cannot be imported here."""

    def collect(self) -> Iterable[pytest.Item | pytest.Collector]:
        raise pytest.skip.Exception(str(OBSTACLE), allow_module_level=True)


def module_of(module_path: Path, parent: pytest.Collector) -> pytest.Module | None:
    """What pytest_pycollect_makemodule returns."""
    return Obstructed.from_parent(parent, path=module_path) if OBSTACLE else None
