# SPDX-License-Identifier: MIT
"""Ranks that tests share. Without torch all tests here are skipped."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import bagua_net

if TYPE_CHECKING:
    from tests.support.pool import Pool
    from tests.support.ranks import Ranks

_NO_TORCH = importlib.util.find_spec("torch") is None


class Skipped(pytest.Module):
    """A file of tests that cannot be imported here."""

    def collect(self) -> Iterable[pytest.Item | pytest.Collector]:
        raise pytest.skip.Exception("torch is not installed", allow_module_level=True)


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module | None:
    return Skipped.from_parent(parent, path=module_path) if _NO_TORCH else None


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> Iterator[None]:
    """Small operations take longer on several threads where the processors are busy."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def ranks(pool: Pool) -> Ranks:
    """Two ranks of a group of this package's backend. A test leaves the group as it was."""
    try:
        bagua_net.plugin_path()
    except bagua_net.LibraryNotFound as error:
        pytest.skip(str(error))
    return pool.of(2)
