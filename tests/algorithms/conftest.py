# SPDX-License-Identifier: MIT
"""The ranks that the tests use. Without torch or the library all tests here are skipped.

Each rank believes that it is on a host of its own: ranks of one host share memory, and bagua_net sends no codes.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support import with_torch
from tests.support.tiers import variants

if TYPE_CHECKING:
    from tests.support.pool import Pool
    from tests.support.ranks import Ranks


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module | None:
    return with_torch.module_of(module_path, parent)


@pytest.fixture(params=variants(3, nightly=[2]), ids=lambda size: f"{size}-ranks")
def ranks(request: pytest.FixtureRequest, pool: Pool) -> Ranks:
    return pool.of(request.param, hosts=request.param)


@pytest.fixture
def two(pool: Pool) -> Ranks:
    return pool.of(2, hosts=2)


@pytest.fixture
def four(pool: Pool) -> Ranks:
    return pool.of(4, hosts=4)
