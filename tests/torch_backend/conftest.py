# SPDX-License-Identifier: MIT
"""The ranks that the tests share. Without torch or the library all tests here are skipped."""

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


@pytest.fixture(params=variants(3, nightly=[2, 4]), ids=lambda size: f"{size}-ranks")
def ranks(request: pytest.FixtureRequest, pool: Pool) -> Ranks:
    return pool.of(request.param)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Reports the time of these tests, the slowest of all."""
    here = f"{Path(__file__).parent.relative_to(terminalreporter.config.rootpath)}/"
    reports = [one for some in terminalreporter.stats.values() for one in some if isinstance(one, pytest.TestReport)]
    seconds = sum(report.duration for report in reports if report.nodeid.startswith(here))
    if seconds:
        terminalreporter.write_line(f"{here} took {seconds:.0f} s of it")
