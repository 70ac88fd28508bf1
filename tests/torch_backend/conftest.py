# SPDX-License-Identifier: MIT
"""The ranks that the tests share. Without torch or the library all tests here are skipped."""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import bagua_net

if TYPE_CHECKING:
    from ranks import Ranks


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


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module | None:
    return Obstructed.from_parent(parent, path=module_path) if OBSTACLE else None


@pytest.fixture(scope="session")
def pool() -> Iterator[dict[int, Ranks]]:
    """Ranks by their number. They serve many tests, so a test leaves their groups as they were."""
    made: dict[int, Ranks] = {}
    with contextlib.ExitStack() as stack:
        yield made
        for ranks in made.values():
            stack.enter_context(ranks)


@pytest.fixture(params=[2, 3, 4], ids=lambda size: f"{size}-ranks")
def ranks(request: pytest.FixtureRequest, pool: dict[int, Ranks]) -> Ranks:
    from ranks import Ranks

    if request.param not in pool:
        pool[request.param] = Ranks(request.param)
    return pool[request.param]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Reports the time of these tests, the slowest of all."""
    here = f"{Path(__file__).parent.relative_to(terminalreporter.config.rootpath)}/"
    reports = [one for some in terminalreporter.stats.values() for one in some if isinstance(one, pytest.TestReport)]
    seconds = sum(report.duration for report in reports if report.nodeid.startswith(here))
    if seconds:
        terminalreporter.write_line(f"{here} took {seconds:.0f} s of it")
