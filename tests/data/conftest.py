# SPDX-License-Identifier: MIT
"""Ranks that tests share. Without torch all tests here are skipped."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support import with_torch

if TYPE_CHECKING:
    from tests.support.pool import Pool
    from tests.support.ranks import Ranks


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module | None:
    return with_torch.module_of(module_path, parent)


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
    return pool.of(2)
