# SPDX-License-Identifier: MIT
"""The ranks that the tests share. Without torch or the library all tests here are skipped."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import with_torch

if TYPE_CHECKING:
    from ranks import Ranks


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module | None:
    return with_torch.module_of(module_path, parent)


@pytest.fixture(scope="session")
def pool() -> Iterator[dict[int, Ranks]]:
    yield from with_torch.pool_of_ranks()


def _ranks_of(pool: dict[int, Ranks], size: int) -> Ranks:
    """Each believes that it is on a host of its own: ranks of one host share memory, and bagua_net sends no codes."""
    return with_torch.ranks_of(pool, size, hosts=size)


@pytest.fixture(params=[2, 3], ids=lambda size: f"{size}-ranks")
def ranks(request: pytest.FixtureRequest, pool: dict[int, Ranks]) -> Ranks:
    return _ranks_of(pool, request.param)


@pytest.fixture
def two(pool: dict[int, Ranks]) -> Ranks:
    return _ranks_of(pool, 2)


@pytest.fixture
def four(pool: dict[int, Ranks]) -> Ranks:
    return _ranks_of(pool, 4)
